//! A power cut, as near as a file system in a file comes to it: what the store's process has written and not made durable
//! is in the memory of the kernel and not in the file, so a copy of the file is what a disk would hold after the cut.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::child::{self, say};
use crate::crash;
use crate::support::*;
use crate::tools;

/// Cuts of one store; the check after each reads all that is in it by then.
const CUTS: usize = 5;
/// Stores, one after the other, when the tests are [`exhaustive`].
const STORES: usize = 40;

#[test]
fn what_was_acknowledged_survives_a_power_cut() {
    let tools = ["mkfs.ext4", "mount"];
    if !rustix::process::geteuid().is_root() {
        tools::left_out_but_in_ci("power cuts: it takes root");
        return;
    }
    if !tools.iter().all(|tool| tools::there(tool, "power cuts")) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    // The mounts are gone with the process.
    command
        .arg("-m")
        .arg(std::env::current_exe().unwrap())
        .args(child::ARGS);
    child::set_job(&mut command, "power", dir.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    if said.contains("mounted") {
        let (mounted, survived) = (
            said.matches("mounted").count(),
            said.matches("survived").count(),
        );
        assert_eq!(mounted, survived, "{said}");
    } else {
        // Also in CI: a container's root has loop devices only where its host lends them.
        tools::left_out("no file system in a file to be had here");
    }
}

/// A process that fills a store and says what it has done; killed when this is dropped.
struct Writing {
    process: Child,
    said: Vec<u8>,
}

impl Writing {
    fn start(root: &Path) -> Writing {
        Writing {
            process: child::command("endless", root).spawn().unwrap(),
            said: Vec::new(),
        }
    }

    fn read(&mut self, max: usize) {
        let mut buf = vec![0; max];
        let n = self
            .process
            .stderr
            .as_mut()
            .unwrap()
            .read(&mut buf)
            .unwrap();
        assert!(n > 0, "it ended: {}", String::from_utf8_lossy(&self.said));
        self.said.extend_from_slice(&buf[..n]);
    }

    fn wait_for_a_line(&mut self) {
        let before = self.said.len();
        while !self.said[before..].contains(&b'\n') {
            self.read(4096);
        }
    }

    /// What it has said until now, without waiting for more.
    fn all_lines(&mut self) -> Vec<String> {
        loop {
            let waiting =
                rustix::io::ioctl_fionread(self.process.stderr.as_ref().unwrap()).unwrap();
            if waiting == 0 {
                return String::from_utf8_lossy(&self.said)
                    .lines()
                    .map(str::to_owned)
                    .collect();
            }
            self.read(waiting as usize);
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn done(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn mount(image: &Path, at: &Path) -> bool {
    done(
        Command::new("mount")
            .args(["-o", "loop"])
            .arg(image)
            .arg(at),
    )
}

fn signal(process: u32, signal: &str) {
    assert!(tools::kill(signal, process));
}

/// The process has stopped, all its threads: nothing more comes from it.
fn wait_until_stopped(process: u32) {
    let threads = format!("/proc/{process}/task");
    let stopped = |stat: String| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    while !std::fs::read_dir(&threads).unwrap().all(|thread| {
        let stat = thread.unwrap().path().join("stat");
        std::fs::read_to_string(stat).is_ok_and(stopped)
    }) {
        std::thread::yield_now();
    }
}

/// The child's part, in a mount namespace of its own.
pub(crate) fn cut_the_power(dir: &Path) {
    let first = u64::from(std::process::id());
    let stores = if exhaustive() { STORES } else { 1 };
    for seed in first..first + stores as u64 {
        let dir = dir.join(seed.to_string());
        std::fs::create_dir(&dir).unwrap();
        let Some(lines) = cut_one_store(&dir, seed) else {
            return;
        };
        std::fs::remove_dir_all(&dir).unwrap();
        say(&format!(
            "survived {CUTS} cuts with {lines} lines said, seed {seed}"
        ));
    }
}

/// How much was said; `None` when there is no file system to be had.
fn cut_one_store(dir: &Path, seed: u64) -> Option<usize> {
    let (image, copy, live) = (dir.join("image"), dir.join("copy"), dir.join("live"));
    std::fs::create_dir(&live).unwrap();
    std::fs::File::create(&image)
        .unwrap()
        .set_len(256 << 20)
        .unwrap();
    if !done(Command::new("mkfs.ext4").arg("-q").arg(&image)) || !mount(&image, &live) {
        return None;
    }
    say("mounted");
    let mut writing = Writing::start(&live.join("store"));
    let mut random = bytes(seed, 1000).into_iter();
    for cut in 0..CUTS {
        for _ in 0..=random.next().unwrap() % 4 {
            writing.wait_for_a_line();
        }
        for _ in 0..u32::from(random.next().unwrap()) * 400 {
            std::hint::spin_loop();
        }
        signal(writing.process.id(), "-STOP");
        wait_until_stopped(writing.process.id());
        let said = writing.all_lines();
        std::fs::copy(&image, &copy).unwrap();
        let bench = crash::bench_in_real_time();
        assert!(mount(&copy, bench.dir.path()), "cut {cut}");
        crash::check(&bench, &said, &format!("cut {cut}, seed {seed}"));
        assert!(done(Command::new("umount").arg(bench.dir.path())));
        // Only now, so that the store does not grow meanwhile.
        signal(writing.process.id(), "-CONT");
    }
    let lines = writing.all_lines().len();
    drop(writing);
    assert!(done(Command::new("umount").arg(&live)));
    Some(lines)
}
