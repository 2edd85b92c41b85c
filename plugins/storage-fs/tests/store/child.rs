//! Work for processes of their own: to be killed, to run out of disk, to have their memory measured. The test binary starts
//! itself again with this one test and a job in the environment.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{BlobCreate, CreateRequest, Error};
use skillgate_storage_fs::{Free, StorageFs, Sweeps, World};

use crate::support::*;

const JOB: &str = "SKILLGATE_TEST_STORE_JOB";

/// Writes to descriptor 2 before the work begins, so that faults that are counted per thread never meet those of the
/// harness's own thread, which makes fewer.
pub(crate) const PADDING_WRITES: u64 = 16;

/// Without a job there is nothing to do; with one this is the whole process.
#[test]
fn entry() {
    let Ok(job) = std::env::var(JOB) else { return };
    let (job, argument) = job.split_once(' ').unwrap();
    match job {
        "round" => round(argument),
        "endless" => endless(argument),
        "beside" => beside(argument),
        "sweep" => sweep(argument),
        "shelf" => crate::shelf::scan(Path::new(argument)),
        "full" => crate::limits::fill_the_disk(Path::new(argument)),
        "stream" => crate::limits::stream_much(Path::new(argument)),
        "power" => crate::power::cut_the_power(Path::new(argument)),
        other => panic!("no job {other:?}"),
    }
    std::process::exit(0);
}

/// The arguments that make a process of this binary do `job`.
pub(crate) fn command(job: &str, argument: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    set_job(&mut command, job, argument).args(ARGS);
    command
}

pub(crate) const ARGS: [&str; 4] = ["child::entry", "--exact", "--nocapture", "--test-threads=1"];

pub(crate) fn set_job<'a>(command: &'a mut Command, job: &str, argument: &Path) -> &'a mut Command {
    let job = format!("{job} {}", argument.display());
    command
        .env(JOB, job)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
}

/// One line to the parent, in one write, seen even if the next instruction is never reached.
pub(crate) fn say(line: &str) {
    rustix::io::write(std::io::stderr(), format!("{line}\n").as_bytes()).unwrap();
}

/// Acknowledged: the parent will look for it.
fn ack(what: &str) {
    say(&format!("ack {what}"));
}

fn open(root: &str) -> Result<StorageFs, Error> {
    let host = skillgate_plugin_sdk::Host::for_tests(|_, _, _, _| {});
    // Some work on file systems that are small.
    let config = format!(r#"{{"root": {root:?}, "reserve_bytes": 0, "reserve_inodes": 0}}"#);
    StorageFs::create(
        host,
        CreateRequest {
            config_json: config.into_bytes(),
            ..CreateRequest::default()
        },
    )
}

/// A little of everything, once. What fails is not acknowledged, and the work goes on.
fn round(root: &str) {
    for _ in 0..PADDING_WRITES {
        rustix::io::write(std::io::stderr(), b"").unwrap();
    }
    say("begin");
    if let Ok(store) = open(root) {
        work(&store, "one");
    }
    say("end");
}

fn endless(root: &str) {
    let store = open(root).unwrap();
    for n in 0.. {
        work(&store, &format!("n{n}"));
    }
}

/// fsync calls of [`beside`]: the thread that puts the deep tree makes more of its directories alone, all else makes fewer.
pub(crate) const BESIDE_FSYNCS: usize = 30;

/// Somebody's small skill is put while somebody else's deep tree is being made durable.
fn beside(root: &str) {
    let store = open(root).unwrap();
    let paths = [0, 1, 2, 3].map(|n| format!("{n}/{}x", "d/".repeat(10)));
    let files = paths.each_ref().map(|path| (path.as_str(), &b"x"[..]));
    let deep = put_of("deep", "a.b", "1.0.0", &files);
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| {
            store.skill_put(&deep).unwrap();
            ack("deep");
        });
        // Its last file is there.
        let is_written = |one: std::fs::DirEntry| one.path().join("meta.json").exists();
        let in_tmp = || std::fs::read_dir(Path::new(root).join("tmp")).unwrap();
        while !in_tmp().any(|one| is_written(one.unwrap())) && !putting.is_finished() {
            std::thread::yield_now();
        }
        assert!(!putting.is_finished());
        store
            .skill_put(&skill("small", "a.b", "1.0.0", b"x"))
            .unwrap();
        ack("small");
        // Nobody waits for the other one.
        std::process::exit(0);
    });
}

/// A store whose mortal blobs have expired, until it has removed them.
fn sweep(root: &str) {
    let (told, swept) = std::sync::mpsc::channel();
    let host = skillgate_plugin_sdk::Host::for_tests(move |_, _, message, _| {
        if message == crate::blobs::SWEPT {
            told.send(()).unwrap();
        }
    });
    let since = || std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    let world = World {
        clock: Arc::new(move || since() + LATER_MS),
        space: Arc::new(|_| Ok(Free::default())),
        sweeps: Sweeps {
            after: Duration::ZERO,
            every: Duration::from_secs(3600),
        },
    };
    let request = CreateRequest {
        config_json: format!(r#"{{"root": {root:?}}}"#).into_bytes(),
        ..CreateRequest::default()
    };
    let _store = StorageFs::within(host, &request, world).unwrap();
    swept.recv().unwrap();
    say("end");
}

/// When everything that is mortal has long expired.
pub(crate) const LATER_MS: u64 = 3_600_000;

/// Names the seeds of what it stores in its acknowledgements.
fn work(store: &StorageFs, name: &str) {
    let mortal = BlobCreate {
        ttl_s: 3600,
        ..blob_of("acme")
    };
    let small = store_blob(store, &mortal, &bytes(1, 1000));
    if let Ok(stat) = &small {
        ack(&format!("blob acme {} 1 1000", stat.id));
    }
    let skill_name = format!("crash.{name}");
    if store
        .skill_put(&skill("acme", &skill_name, "1.0.0", &bytes(2, 70_000)))
        .is_ok()
    {
        ack(&format!("skill {skill_name} 1.0.0 2 70000"));
    }
    // Again: found, and made durable once more.
    if store
        .skill_put(&skill("acme", &skill_name, "1.0.0", &bytes(2, 70_000)))
        .is_ok()
    {
        ack(&format!("skill {skill_name} 1.0.0 2 70000"));
    }
    // Of another tenant: two blobs of one lie in one directory once in a thousand times, and then take fewer calls.
    if let Ok(stat) = store_blob(store, &blob_of("else"), &bytes(3, 1_200_000)) {
        ack(&format!("blob else {} 3 1200000", stat.id));
    }
    if let Ok(stat) = small {
        say(&format!("deleting {}", stat.id));
        if store.blob_delete("acme", &stat.id).is_ok() {
            ack(&format!("deleted {}", stat.id));
        }
    }
}
