//! Kills and faults at every step of publishing. What was acknowledged is there byte for byte afterwards, what was not is
//! there whole or not at all, and the next start needs no hand.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{BlobCreate, SkillQuery};

use crate::child;
use crate::support::*;
use crate::tools;

/// What changes the disk. A kill between two of these leaves what a kill at the next one leaves.
pub(crate) const SYSCALLS: [&str; 9] = [
    "write",
    "openat2",
    "mkdirat",
    "fchmod",
    "fsync",
    "renameat2",
    "unlinkat",
    "ftruncate",
    "flock",
];

/// Looks at the store as the next life finds it, and compares with what a child has said.
pub(crate) fn check(bench: &Bench, said: &[String], context: &str) {
    let store = bench.store();
    assert_eq!(bench.in_tmp(), 0, "{context}: tmp/ is swept by the start");
    assert!(
        !bench.logged("left out"),
        "{context}: {:?}",
        bench.logs.lock().unwrap()
    );
    let mut deleting = HashSet::new();
    let mut blobs = BTreeMap::new();
    let mut skills = Vec::new();
    for line in said {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["ack", "blob", tenant, id, seed, len] => {
                blobs.insert(id, (tenant, seed.parse().unwrap(), len.parse().unwrap()));
            }
            ["ack", "skill", name, version, seed, len] => {
                skills.push((name, version, seed.parse().unwrap(), len.parse().unwrap()));
            }
            ["deleting", id] => {
                deleting.insert(id);
            }
            ["ack", "deleted", id] => {
                blobs.remove(id);
                assert_eq!(
                    store.blob_stat("acme", id).unwrap_err().code,
                    abi::E_NOT_FOUND,
                    "{context}: {id} is back"
                );
            }
            _ => {}
        }
    }
    for (id, (tenant, seed, len)) in &blobs {
        match read_blob(&store, tenant, id) {
            Ok(content) => assert!(
                content == bytes(*seed, *len),
                "{context}: {id} has other content"
            ),
            Err(error) => assert!(
                error.code == abi::E_NOT_FOUND && deleting.contains(id),
                "{context}: {id}: {error}"
            ),
        }
    }
    for (name, version, seed, len) in &skills {
        let expected = skill("acme", name, version, &bytes(*seed, *len));
        let got = store
            .skill_get("acme", name, version)
            .unwrap_or_else(|error| panic!("{context}: {name}: {error}"));
        assert!(
            read_skill(&store, "acme", &got) == expected.files,
            "{context}: {name}"
        );
    }
    // And whatever else is there is whole.
    let query = SkillQuery {
        limit: 1000,
        tenant: "acme".to_owned(),
        ..SkillQuery::default()
    };
    for skill in store.skill_list(&query).unwrap().skills {
        assert_eq!(read_skill(&store, "acme", &skill).len(), 4, "{context}");
    }
    for tenant in ["acme", "else"] {
        let shelves = bench.root().join("tenants").join(tenant).join("blobs");
        for shelf in std::fs::read_dir(shelves).into_iter().flatten() {
            for blob in std::fs::read_dir(shelf.unwrap().path()).unwrap() {
                let id = format!("blob:{}", blob.unwrap().file_name().to_str().unwrap());
                read_blob(&store, tenant, &id)
                    .unwrap_or_else(|error| panic!("{context}: {id}: {error}"));
            }
        }
    }
}

/// The real time, which the children use.
pub(crate) fn bench_in_real_time() -> Bench {
    let bench = Bench::new();
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    bench.now_ms.store(
        since.as_millis() as u64,
        std::sync::atomic::Ordering::Relaxed,
    );
    bench
}

pub(crate) fn run(mut command: Command) -> Vec<String> {
    let output = command.output().unwrap();
    let said: Vec<String> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .map(str::to_owned)
        .collect();
    assert!(
        !said.iter().any(|line| line.contains("panicked")),
        "{said:?}"
    );
    said
}

/// `strace` of a round; `None` when there is no strace, or none that works here.
pub(crate) fn strace(options: &[&str], trace: &Path, root: &Path) -> Option<Command> {
    strace_of("round", options, trace, root)
}

/// The same with another job of a child.
pub(crate) fn strace_of(job: &str, options: &[&str], trace: &Path, root: &Path) -> Option<Command> {
    if !tools::there("strace", "faults at the store's system calls") {
        return None;
    }
    let works = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "true"])
        .stdin(Stdio::null())
        .output();
    if !works.is_ok_and(|output| output.status.success()) {
        // Also in CI: a container may be started with a filter that knows no ptrace, or on a kernel that keeps it to itself.
        tools::left_out("strace may not trace here");
        return None;
    }
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(trace).args(options);
    command
        .arg(std::env::current_exe().unwrap())
        .args(child::ARGS);
    child::set_job(&mut command, job, root);
    Some(command)
}

/// What a round acknowledges when nothing disturbs it.
const ACKS: usize = 5;

fn acks(said: &[String]) -> usize {
    said.iter().filter(|line| line.starts_with("ack")).count()
}

/// How often the thread that works makes each of these calls.
fn counts() -> Option<BTreeMap<&'static str, u64>> {
    let bench = bench_in_real_time();
    let trace = bench.dir.path().join("trace");
    let set = format!("trace={}", SYSCALLS.join(","));
    let said = run(strace(&["-e", &set], &trace, &bench.root())?);
    assert_eq!(said.last().map(String::as_str), Some("end"), "{said:?}");
    assert_eq!(acks(&said), ACKS, "{said:?}");
    check(&bench, &said, "undisturbed");
    let text = std::fs::read_to_string(&trace).unwrap();
    Some(counts_of(&text, SYSCALLS))
}

/// How often the thread that renames makes each of these calls.
fn counts_of<const N: usize>(trace: &str, calls: [&'static str; N]) -> BTreeMap<&'static str, u64> {
    let renames = |line: &&str| line.contains("renameat2(");
    let first = trace.lines().find(renames).unwrap();
    let thread = first.split(' ').next().unwrap();
    let count = |name| {
        let of_it = |line: &&str| line.starts_with(thread) && line.contains(&format!(" {name}("));
        trace.lines().filter(of_it).count()
    };
    calls.map(|name| (name, count(name) as u64)).into()
}

/// Every `step`-th point of every call; all of them when the tests are [`exhaustive`].
fn points(counts: &BTreeMap<&'static str, u64>, step: u64) -> Vec<(&'static str, u64)> {
    let step = if exhaustive() { 1 } else { step };
    let mut points = Vec::new();
    for (name, count) in counts {
        let first = if *name == "write" {
            child::PADDING_WRITES + 1
        } else {
            1
        };
        // Calls that matter most are few: each of them is a point.
        let step = if matches!(*name, "fsync" | "renameat2" | "mkdirat") {
            step.div_ceil(2)
        } else {
            step
        };
        points.extend(
            (first..=*count)
                .step_by(step as usize)
                .map(|when| (*name, when)),
        );
    }
    points
}

#[test]
fn killed_at_every_syscall() {
    let Some(counts) = counts() else { return };
    let points = points(&counts, 4);
    let mut cut_short = 0;
    for (name, when) in &points {
        let bench = bench_in_real_time();
        let (set, inject) = (
            format!("trace={name}"),
            format!("inject={name}:signal=SIGKILL:when={when}"),
        );
        let said = run(strace(
            &["-e", &set, "-e", &inject],
            Path::new("/dev/null"),
            &bench.root(),
        )
        .unwrap());
        cut_short += usize::from(said.last().is_none_or(|line| line != "end"));
        check(&bench, &said, &format!("killed at {name} {when}"));
    }
    println!("{} kill points of {counts:?}", points.len());
    assert_eq!(cut_short, points.len(), "a kill did not hit");
}

/// What the child has said of a sweep over two mortal blobs, when the next life has ended what was begun of it.
fn sweep(options: &[&str], trace: &Path) -> Option<Vec<String>> {
    let bench = bench_in_real_time();
    let store = bench.store();
    let mortal = |tenant| BlobCreate {
        ttl_s: 1,
        ..blob_of(tenant)
    };
    let put = |blob: &BlobCreate, len| store_blob(&store, blob, &bytes(1, len)).unwrap().id;
    // Of two tenants, as in a round.
    let end = [("acme", 1000), ("else", 1_200_000)].map(|(of, len)| (of, put(&mortal(of), len)));
    let stays = put(&blob_of("acme"), 1000);
    drop(store);
    let said = run(strace_of("sweep", options, trace, &bench.root())?);
    bench.pass_ms(child::LATER_MS);
    let store = bench.store();
    let began = Instant::now();
    while count(&bench.root().join("expires")) > 0 {
        assert!(began.elapsed() < PATIENCE, "{options:?}: markers are left");
        std::thread::yield_now();
    }
    assert_eq!(bench.in_tmp(), 0, "{options:?}");
    for (tenant, id) in end {
        assert!(!bench.blob_dir(tenant, &id).exists(), "{options:?}: {id}");
    }
    assert_eq!(read_blob(&store, "acme", &stays).unwrap(), bytes(1, 1000));
    Some(said)
}

#[test]
fn what_a_killed_sweep_had_begun_the_next_one_ends() {
    const CHANGES: [&str; 4] = ["renameat2", "unlinkat", "fsync", "mkdirat"];
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let set = format!("trace={}", CHANGES.join(","));
    let Some(said) = sweep(&["-e", &set], &trace) else {
        return;
    };
    assert_eq!(said, ["end"]);
    let text = std::fs::read_to_string(&trace).unwrap();
    let counts = counts_of(&text, CHANGES);
    let points = points(&counts, 2);
    for (name, when) in &points {
        let set = format!("trace={name}");
        let inject = format!("inject={name}:signal=SIGKILL:when={when}");
        let options = ["-e", &set, "-e", &inject];
        let said = sweep(&options, Path::new("/dev/null")).unwrap();
        assert!(said.is_empty(), "{inject}: the kill did not hit: {said:?}");
    }
    println!("{} kill points of {counts:?}", points.len());
    assert!(counts.values().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn every_syscall_fails_once_or_from_then_on() {
    let Some(counts) = counts() else { return };
    let errors = |name| match name {
        "write" => "ENOSPC",
        "openat2" => "EMFILE",
        "mkdirat" => "EDQUOT",
        _ => "EIO",
    };
    let mut points = points(&counts, 6);
    // The acknowledgement is a write too, and one that fails says nothing about the store; a full disk has its own test.
    points.retain(|(name, _)| *name != "write");
    for (n, (name, when)) in points.iter().enumerate() {
        let bench = bench_in_real_time();
        let on = if n % 2 == 0 { "" } else { "+" };
        let inject = format!("inject={name}:error={}:when={when}{on}", errors(name));
        let set = format!("trace={name}");
        let said = run(strace(
            &["-e", &set, "-e", &inject],
            Path::new("/dev/null"),
            &bench.root(),
        )
        .unwrap());
        assert_eq!(
            said.last().map(String::as_str),
            Some("end"),
            "{inject}: {said:?}"
        );
        check(&bench, &said, &inject);
        // What failed was a step of something, and that something was not acknowledged.
        if ["fsync", "renameat2", "mkdirat", "fchmod"].contains(name) {
            assert!(acks(&said) < ACKS, "{inject}: {said:?}");
        }
    }
    println!("{} fault points of {counts:?}", points.len());
}

/// One damaged directory is no reason not to serve what is in all others.
#[test]
fn a_directory_that_the_disk_cannot_list_is_left_out_at_the_start() {
    let bench = bench_in_real_time();
    let trace = bench.dir.path().join("trace");
    let listing = ["-y", "-e", "trace=getdents64"];
    // The second one finds what the first has put.
    for _ in 0..2 {
        let Some(command) = strace(&listing, &trace, &bench.root()) else {
            return;
        };
        assert_eq!(acks(&run(command)), ACKS);
    }
    let text = std::fs::read_to_string(&trace).unwrap();
    let skills = |line: &&str| line.contains("/tenants/acme/skills>");
    let thread = |line: &str| line.split(' ').next().unwrap().to_owned();
    let of = thread(text.lines().find(skills).unwrap());
    let mut its = text.lines().filter(|line| thread(line) == of);
    let when = its.position(|line| skills(&line)).unwrap() + 1;
    let inject = format!("inject=getdents64:error=EIO:when={when}");
    let options = ["-e", "trace=getdents64", "-e", &inject];
    let said = run(strace(&options, Path::new("/dev/null"), &bench.root()).unwrap());
    assert_eq!(acks(&said), ACKS, "{said:?}");
    check(&bench, &said, &inject);
}

/// An fsync that failed and is asked again says "fine" without having written anything. So after the first failure of a
/// directory that stays, nothing more is acknowledged in this life.
#[test]
fn a_failed_fsync_of_a_directory_ends_all_writing() {
    let bench = bench_in_real_time();
    let trace = bench.dir.path().join("trace");
    let Some(command) = strace(&["-y", "-e", "trace=fsync"], &trace, &bench.root()) else {
        return;
    };
    run(command);
    let text = std::fs::read_to_string(&trace).unwrap();
    let published = text
        .lines()
        .position(|line| line.contains("/skills/crash.one>"));
    let inject = format!("inject=fsync:error=EIO:when={}", published.unwrap() + 1);
    let bench = bench_in_real_time();
    let options = ["-e", "trace=fsync", "-e", &inject];
    let said = run(strace(&options, Path::new("/dev/null"), &bench.root()).unwrap());
    let first = said.iter().find(|line| line.starts_with("ack")).unwrap();
    assert!(first.starts_with("ack blob"), "{said:?}");
    assert_eq!(acks(&said), 1, "{said:?}");
    check(&bench, &said, &inject);
    let query = SkillQuery {
        limit: 1,
        tenant: "acme".to_owned(),
        ..SkillQuery::default()
    };
    assert!(
        bench.store().skill_list(&query).unwrap().skills.is_empty(),
        "it was taken back"
    );
}

#[test]
fn killed_at_random() {
    let seed = std::process::id().into();
    println!("seed {seed}");
    let mut random = bytes(seed, 1000).into_iter();
    let bench = bench_in_real_time();
    let mut said = Vec::new();
    let lives = if exhaustive() { 200 } else { 12 };
    for life in 0..lives {
        let mut process = child::command("endless", &bench.root()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        // Some acknowledgements, then some time that differs from life to life.
        for _ in 0..=random.next().unwrap() % 8 {
            said.push(lines.next().unwrap().unwrap());
        }
        for _ in 0..u32::from(random.next().unwrap()) * 400 {
            std::hint::spin_loop();
        }
        process.kill().unwrap();
        process.wait().unwrap();
        said.extend(lines.map_while(Result::ok));
        // The same names come again in every life, with the same content: putting them again is fine.
        check(&bench, &said, &format!("life {life}, seed {seed}"));
    }
    println!("{} lines said in {lives} lives", said.len());
}
