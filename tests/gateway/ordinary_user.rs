//! The gateway as an ordinary user: what it cannot enforce stops it until the operator has written so.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::alone;
use crate::support::eventually;
use crate::support::gateway::{House, Settings, is_root};

/// Nobody, which every system has.
const UID: u32 = 65534;

/// The program and its plugins where anybody can read them: a build directory may be below a private one.
fn copy_program(into: &Path) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_skillgate"));
    let copy = into.join("skillgate");
    fs::copy(program, &copy).unwrap();
    for file in [
        "libskillgate_storage_fs.so",
        "libskillgate_sandbox_process.so",
    ] {
        let beside = program.parent().unwrap();
        let built = [beside.join("deps").join(file), beside.join(file)];
        let built = built.iter().find(|path| path.is_file()).unwrap();
        fs::copy(built, into.join(file)).unwrap();
    }
    copy
}

/// Gives everything to the user that the gateway will be.
fn give(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    chown(path, Some(UID), Some(UID)).unwrap();
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

/// `skillgate serve` as that user, or as ourselves when we are one already.
fn command(house: &House, program: &Path) -> Command {
    if !is_root() {
        return house.command_of(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={UID}"), format!("--regid={UID}")])
        .arg("--clear-groups")
        .arg(program)
        .args(["serve", "--config"])
        .arg(house.config());
    house.clean(&mut command);
    command
}

#[test]
fn an_ordinary_user_writes_what_is_missing() {
    let _alone = alone();
    let house = House::new(Settings::default());
    // The skills and policies too may be where this user cannot look.
    let [skills, policies] = ["skills", "policies"].map(|name| house.path().join(name));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    copy_tree(&sources.join("skills"), &skills);
    copy_tree(&sources.join("policies"), &policies);
    let extra = format!("[policy]\npath = {policies:?}");
    let program = copy_program(house.path());
    let own_files = |house: &House| {
        let text = fs::read_to_string(house.config()).unwrap();
        let from = format!("{:?}", Path::new(env!("CARGO_MANIFEST_DIR")).join("skills"));
        fs::write(house.config(), text.replace(&from, &format!("{skills:?}"))).unwrap();
        if is_root() {
            give(house.path());
        }
    };
    house.configure(Settings {
        sandbox: Some("{}"),
        extra: &extra,
        ..Settings::default()
    });
    own_files(&house);

    // Without the downgrade: it names the layer and what to do, and is gone.
    let announced = house.path().join("stdout.log");
    let mut child = command(&house, &program)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&announced).unwrap())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut status = None;
    eventually("it refuses", Duration::from_secs(30), || {
        // One that serves is not left behind.
        status = child.try_wait().unwrap();
        status.is_some() || !fs::read(&announced).unwrap().is_empty()
    });
    if status.is_none() {
        let _ended = child.kill();
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    println!(
        "as an ordinary user, nothing written: {} {}",
        output.status,
        said.lines().last().unwrap_or_default()
    );
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(
        said.contains("cgroup") && said.contains("downgrades"),
        "{said}"
    );
    let announced = fs::read_to_string(&announced).unwrap();
    assert_eq!(announced, "", "it serves nothing");

    // With it: the rest is the same.
    house.configure(Settings {
        sandbox: Some(r#"{ downgrades = ["cgroup"] }"#),
        extra: &extra,
        ..Settings::default()
    });
    own_files(&house);
    let gateway = house.start_as(command(&house, &program));
    let params = json!({ "name": "hello.world", "args": { "name": "nobody" } });
    let result = gateway.client().result("execute_skill", params).unwrap();
    assert_eq!(result["output"]["greeting"], "Hello, nobody!", "{result}");
    let code = "import os\ndef main(args):\n    s = open('/proc/self/status').read()\n    caps = [l.split()[1] for l in s.splitlines() if l.startswith('Cap')]\n    return [os.getuid(), caps, 'Seccomp:\\t2' in s, os.path.exists('/home')]\n";
    let seen = gateway.client().run(code, json!({})).unwrap()["output"].clone();
    println!(
        "as an ordinary user, with downgrades = [\"cgroup\"]: runs; uid, capabilities, filter, /home: {seen}"
    );
    assert_ne!(seen[0], 0);
    assert!(
        seen[1]
            .as_array()
            .unwrap()
            .iter()
            .all(|set| *set == "0000000000000000"),
        "{seen}"
    );
    assert_eq!(
        (&seen[2], &seen[3]),
        (&json!(true), &json!(false)),
        "{seen}"
    );
    gateway.stop();
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
