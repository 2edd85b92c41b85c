//! This very binary again: as an ordinary user, and with the checks that know one way at a time in the ways that are not
//! the default.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::*;
use crate::tools;

/// What an instance is made for by `config`, whatever the way is that runs get their interpreters. The other checks go
/// through all ways by themselves, or are about one.
const ONE_WAY_AT_A_TIME: [&str; 9] = [
    "basics::",
    "egress::",
    "guards::",
    "hostile::",
    "inside::",
    "lifecycle::",
    "neighbours::",
    "programs::",
    "red_list::",
];
const ORDINARY: u32 = 65534;

/// Passes, or says what did not.
fn again(user: u32, mode: Option<&str>, tests: &[&str]) {
    use std::os::unix::process::CommandExt;
    if !is_root() {
        return; // one of those that are started here
    }
    // Copied, since the build directory may be closed to others.
    let dir = tempfile::tempdir().unwrap();
    crate::basics::open_to_all(dir.path());
    let exe = dir.path().join("sandbox");
    std::fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    std::fs::copy(launcher(), dir.path().join(launcher().file_name().unwrap())).unwrap();
    // As some service managers start programs: ^C and SIGTERM ignored, and a mask that closes every file to others, who for
    // root's files are also the users of runs.
    let mask = if user == 0 { "022" } else { "077" };
    let script = "umask \"$0\"; trap '' INT TERM; exec \"$@\"";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, mask])
        .arg(exe)
        .args(["--test-threads", "2", "--skip", "everywhere::"])
        .args(tests)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .uid(user)
        .gid(user)
        .current_dir("/");
    if let Some(mode) = mode {
        command.env("SANDBOX_MODE", mode);
    }
    succeeds(&mut command);
}

#[test]
fn as_user() {
    again(ORDINARY, None, &[]);
}

#[test]
fn on_demand() {
    again(0, Some("demand"), &ONE_WAY_AT_A_TIME);
}

#[test]
fn on_demand_as_user() {
    again(ORDINARY, Some("demand"), &ONE_WAY_AT_A_TIME);
}

#[test]
fn fresh() {
    again(0, Some("fresh"), &ONE_WAY_AT_A_TIME);
}

#[test]
fn fresh_as_user() {
    again(ORDINARY, Some("fresh"), &ONE_WAY_AT_A_TIME);
}

/// A gateway that is one of the first to be killed when memory is short: what it starts may not be less than that, but where it
/// is root in the first user namespace.
#[test]
fn where_all_are_the_first_to_be_killed() {
    const FIRST_TO_BE_KILLED: &str = "basics::a_run_is_the_first_to_be_killed";
    if !is_root() {
        return tools::left_out("an ordinary user may not take it back, and cannot begin with it");
    }
    let exec = "echo 950 >/proc/self/oom_score_adj && exec \"$@\"";
    let text = succeeds(
        Command::new("sh")
            .args(["-c", exec, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", FIRST_TO_BE_KILLED]),
    );
    assert!(text.contains("1 passed"), "{text}");
}

/// Whoever may mount chooses the name, any bytes: fusermount(1) does so for every user.
#[test]
fn beside_a_mount_whose_name_is_no_text() {
    if !is_root() {
        return tools::left_out("an ordinary user has no control groups to find");
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = r#"mkdir "$0" && mount -t tmpfs none "$0" && exec "$@""#;
    let text = succeeds(
        Command::new("unshare")
            .args(["--mount", "sh", "-c", mount])
            .arg(dir.path().join(OsStr::from_bytes(b"caf\xe9")))
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "basics::hello"]),
    );
    assert!(text.contains("1 passed"), "{text}");
}

/// A control group that goes with the test, also where that fails.
struct Group(PathBuf);

impl Group {
    fn new(hierarchy: &Path) -> Group {
        let made = tempfile::Builder::new()
            .prefix("skillgate-test-half-")
            .tempdir_in(hierarchy);
        Group(made.unwrap().keep())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last process may need a moment to leave it.
        let until = Instant::now() + Duration::from_secs(10);
        let mut removed = std::fs::remove_dir(&self.0);
        while removed.is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            removed = std::fs::remove_dir(&self.0);
        }
        // A second panic would end all tests.
        assert!(
            removed.is_ok() || std::thread::panicking(),
            "{}: {removed:?}",
            self.0.display()
        );
    }
}

/// A group of version 1 takes no more of the processors than the one above it has: the service of an operator who gives the gateway
/// half of one still has runs of one, as with version 2.
#[test]
fn in_a_group_with_less_of_the_processors_than_a_run() {
    let hierarchy = Path::new("/sys/fs/cgroup/cpu");
    if !is_root() || !hierarchy.join("tasks").exists() {
        return tools::left_out("a group with less of the processors: it takes root and version 1");
    }
    let group = Group::new(hierarchy);
    let enter = r#"echo 50000 >"$0/cpu.cfs_quota_us" && echo $$ >"$0/tasks" && exec "$@""#;
    let text = succeeds(
        Command::new("sh")
            .args(["-c", enter])
            .arg(&group.0)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "basics::hello"]),
    );
    assert!(text.contains("1 passed"), "{text}");
}
