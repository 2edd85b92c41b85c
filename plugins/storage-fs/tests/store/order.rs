//! What a power cut would leave cannot be seen by killing a process: the kernel keeps what was written. So the order of
//! calls is checked instead, against the rules that make a power cut harmless.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::child;
use crate::crash;

/// What a trace has written or changed and not made durable since.
#[derive(Default)]
struct Disk {
    dirty: BTreeSet<String>,
    root: String,
    renames: usize,
    acks: usize,
}

impl Disk {
    /// One line of `strace -f -y`: descriptors are shown with their paths.
    fn step(&mut self, line: &str) -> Result<(), String> {
        let call = line
            .split_once(' ')
            .map_or("", |(_, call)| call.trim_start());
        let (name, rest) = call.split_once('(').unwrap_or((call, ""));
        let fd_paths: Vec<&str> = rest
            .split('<')
            .skip(1)
            .filter_map(|part| part.split_once('>'))
            .map(|(path, _)| path)
            .collect();
        let names: Vec<&str> = rest.split('"').skip(1).step_by(2).collect();
        if rest.contains(" = -1 ") {
            return Ok(());
        }
        match name {
            "openat2" if rest.contains("O_CREAT") => {
                // Only its entry: an empty file has no content to lose.
                self.change(parent(fd_paths.last().ok_or("openat2 without a result")?));
            }
            "write" if names.first().is_some_and(|text| text.starts_with("ack ")) => {
                self.acks += 1;
                let open: Vec<&String> = self
                    .dirty
                    .iter()
                    .filter(|path| !self.is_private(path))
                    .collect();
                if !open.is_empty() {
                    return Err(format!(
                        "acknowledged {:?} before {open:?} was durable",
                        names[0]
                    ));
                }
            }
            "write" | "ftruncate" => self.change(fd_paths.first().copied().unwrap_or_default()),
            "mkdirat" => self.change(fd_paths.first().ok_or("mkdirat without a directory")?),
            "unlinkat" => {}
            "fsync" => {
                self.dirty
                    .remove(*fd_paths.first().ok_or("fsync without a path")?);
            }
            "renameat2" => {
                self.renames += 1;
                let from = format!("{}/{}", fd_paths[0], names[0]);
                let (to_dir, into_tmp) = (
                    fd_paths[1].to_owned(),
                    fd_paths[1] == format!("{}/tmp", self.root),
                );
                let inside: Vec<&String> = self
                    .dirty
                    .iter()
                    .filter(|path| path.starts_with(&from))
                    .collect();
                if !into_tmp && !inside.is_empty() {
                    return Err(format!(
                        "published {:?} before {inside:?} was durable",
                        names[1]
                    ));
                }
                self.change(&to_dir);
                self.change(fd_paths[0]);
            }
            _ => {}
        }
        Ok(())
    }

    fn change(&mut self, path: &str) {
        if path.starts_with(&self.root) {
            self.dirty.insert(path.to_owned());
        }
    }

    /// What is in tmp/, and tmp/ itself, may be lost; the lock holds a number for a message.
    fn is_private(&self, path: &str) -> bool {
        path.strip_prefix(&self.root)
            .is_some_and(|rest| rest.starts_with("/tmp") || rest == "/lock")
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

#[test]
fn everything_is_durable_before_it_is_seen_and_before_it_is_acknowledged() {
    let bench = crash::bench_in_real_time();
    let trace = bench.dir.path().join("trace");
    let set = format!("trace={}", crash::SYSCALLS.join(","));
    let Some(command) = crash::strace(&["-y", "-s", "200", "-e", &set], &trace, &bench.root())
    else {
        return;
    };
    let said = crash::run(command);
    assert_eq!(said.last().map(String::as_str), Some("end"));
    let root = bench.root().canonicalize().unwrap().display().to_string();
    let mut disk = Disk {
        root,
        ..Disk::default()
    };
    let text = std::fs::read_to_string(&trace).unwrap();
    for line in text.lines() {
        disk.step(line)
            .unwrap_or_else(|why| panic!("{why}\nat {line}"));
    }
    // Two blobs, a skill, the format, and one blob's way out; five acknowledgements.
    assert_eq!((disk.renames, disk.acks), (5, 5), "{text}");
    assert!(text.lines().count() as u64 > child::PADDING_WRITES);
}

/// Who made the directories above the store, the gateway for its audit log or a life that ended at once, need not have made
/// them durable: a power cut would take the store away with them.
#[test]
fn the_way_to_the_store_is_durable_before_anything_is_acknowledged() {
    let bench = crash::bench_in_real_time();
    let trace = bench.dir.path().join("trace");
    let above = bench.dir.path().canonicalize().unwrap();
    for (way, made) in [
        ("there/store", "there"),
        ("all/there", "all/there"),
        ("a/b", ""),
    ] {
        std::fs::create_dir_all(above.join(made)).unwrap();
        let root = above.join(way);
        let options = ["-y", "-s", "200", "-e", "trace=fsync,write"];
        let Some(command) = crash::strace(&options, &trace, &root) else {
            return;
        };
        crash::run(command);
        let text = std::fs::read_to_string(&trace).unwrap();
        let (before, _) = text.split_once("ack ").unwrap();
        for dir in root.ancestors().skip(1).take(2) {
            let its = format!("<{}>", dir.display());
            let is_synced = |line: &str| line.contains("fsync(") && line.contains(&its);
            assert!(before.lines().any(is_synced), "{way}: {its} in {before}");
        }
    }
}

/// Whoever published it may have been killed between making it seen and making it durable.
#[test]
fn what_an_earlier_life_published_is_durable_before_it_is_acknowledged() {
    let bench = crash::bench_in_real_time();
    let trace = bench.dir.path().join("trace");
    let options = ["-y", "-s", "200", "-e", "trace=fsync,write"];
    crash::run(child::command("round", &bench.root()));
    let Some(command) = crash::strace(&options, &trace, &bench.root()) else {
        return;
    };
    crash::run(command);
    let text = std::fs::read_to_string(&trace).unwrap();
    let (before, _) = text.split_once("ack skill").unwrap();
    let versions = bench.root().canonicalize().unwrap();
    let versions = versions.join("tenants/acme/skills/crash.one");
    let its = format!("<{}>", versions.display());
    let is_synced = |line: &str| line.contains("fsync(") && line.contains(&its);
    assert!(before.lines().any(is_synced), "{its} in {before}");
}

/// Each directory of a tree is made durable, and there may be very many: nobody else's skill waits for that.
#[test]
fn a_deep_tree_is_made_durable_while_others_publish() {
    let bench = crash::bench_in_real_time();
    // Long enough for whoever does not wait for it, and nobody waits for its end.
    let inject = format!(
        "inject=fsync:delay_enter=60000000:when={}",
        child::BESIDE_FSYNCS
    );
    let options = ["-e", "trace=fsync", "-e", &inject];
    let null = Path::new("/dev/null");
    let Some(mut command) = crash::strace_of("beside", &options, null, &bench.root()) else {
        return;
    };
    let mut strace = command.spawn().unwrap();
    let said = BufReader::new(strace.stderr.take().unwrap()).lines();
    let mut said = said.map_while(Result::ok);
    let first = said.find(|line| line.starts_with("ack"));
    strace.kill().unwrap();
    strace.wait().unwrap();
    // Its child goes on without it, and ends by itself.
    assert!(said.all(|line| !line.contains("panicked")));
    assert_eq!(first.as_deref(), Some("ack small"));
}
