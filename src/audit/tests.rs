//! The log as a whole, on real files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::verify::check_waiting;
use super::{Audit, Kind, Record, Report, Unavailable, find, verify};
use crate::config::{self, Fsync, OnAuditFailure};

mod gone;
mod outside;
mod synced;
mod tampered;
mod turns;

/// A directory with a log's settings.
struct Place {
    dir: tempfile::TempDir,
    settings: config::Audit,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let settings = config::Audit {
            path: dir.path().join("logs/audit.jsonl"),
            fsync: Fsync::Never,
            max_file_bytes: 1 << 20,
            on_failure: OnAuditFailure::Deny,
        };
        Place { dir, settings }
    }

    fn open(&self) -> Audit {
        Audit::open_at(&self.settings, || UNIX_EPOCH + Duration::from_secs(1)).unwrap()
    }

    fn refusal(&self) -> String {
        Audit::open(&self.settings)
            .map(drop)
            .unwrap_err()
            .to_string()
    }

    fn path(&self) -> &Path {
        &self.settings.path
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn verify(&self) -> Report {
        // Nobody writes it, so nothing is waited for.
        check_waiting(&find(self.path()).unwrap(), || ()).unwrap()
    }

    fn full(&self) -> Vec<PathBuf> {
        let names = super::file::Names::of(self.path()).unwrap();
        names.full_files().unwrap()
    }
}

fn record(n: u64) -> Record {
    Record::new(
        Kind::Decision,
        json!({ "decision_id": format!("dec_{n}"), "n": n })
            .as_object()
            .unwrap()
            .clone(),
    )
}

/// Some records from the number `from` on.
async fn write(audit: &Audit, from: u64, count: u64) {
    for n in from..from + count {
        audit.append(record(n)).await.unwrap();
    }
}

#[tokio::test]
async fn records_are_chained_in_order_over_restarts() {
    let place = Place::new();
    for life in 0..3 {
        let audit = place.open();
        write(&audit, life * 10, 10).await;
        audit.close().await;
        assert_eq!(audit.append(record(99)).await, Err(Unavailable), "closed");
    }
    let lines = place.lines();
    let events: Vec<&Value> = lines
        .iter()
        .filter(|line| line["kind"] == "log")
        .map(|line| &line["event"])
        .collect();
    assert_eq!(
        events,
        [
            "started", "stopped", "started", "stopped", "started", "stopped"
        ]
    );
    let numbers: Vec<u64> = lines.iter().filter_map(|line| line["n"].as_u64()).collect();
    assert_eq!(numbers, (0..30).collect::<Vec<_>>());
    assert!(
        lines
            .iter()
            .all(|line| line["timestamp"] == "1970-01-01T00:00:01.000000000Z")
    );
    let report = place.verify();
    assert!(report.ok && report.notes.is_empty(), "{report:?}");
    assert_eq!(
        (
            report.files[0].first_sequence,
            report.files[0].last_sequence
        ),
        (1, 36)
    );
    assert_eq!(
        fs::metadata(place.path()).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_lose_nothing() {
    for fsync in [
        Fsync::Always,
        Fsync::Interval(Duration::from_millis(1)),
        Fsync::Never,
    ] {
        let mut place = Place::new();
        place.settings.fsync = fsync;
        let audit = place.open();
        let tasks = (0..16).map(|task| {
            let audit = audit.clone();
            tokio::spawn(async move { write(&audit, task * 100, 50).await })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        audit.close().await;
        let mut numbers: Vec<u64> = place
            .lines()
            .iter()
            .filter_map(|line| line["n"].as_u64())
            .collect();
        numbers.sort_unstable();
        let all: Vec<u64> = (0..16)
            .flat_map(|task| task * 100..task * 100 + 50)
            .collect();
        assert_eq!(numbers, all);
        assert!(place.verify().ok);
        let health = audit.health();
        assert_eq!((health.records, health.lost, health.refused), (800, 0, 0));
    }
}

#[tokio::test]
async fn a_large_record_waits_for_room_and_keeps_its_limit() {
    let place = Place::new();
    let audit = place.open();
    let large = |n: u64| {
        json!({ "n": n, "input": "x".repeat(1 << 20) })
            .as_object()
            .unwrap()
            .clone()
    };
    let writes = (0..40).map(|n| audit.append(Record::new(Kind::Decision, large(n))));
    for outcome in futures_util::future::join_all(writes).await {
        outcome.unwrap();
    }
    audit.close().await;
    let erased = place
        .lines()
        .into_iter()
        .filter(|line| line["erased"] == json!(["/input"]))
        .count();
    assert_eq!(erased, 40);
}

#[tokio::test]
async fn files_are_rotated_without_a_seam() {
    let place = Place::new();
    let large = |n: u64| {
        json!({ "n": n, "input": "x".repeat(100_000) })
            .as_object()
            .unwrap()
            .clone()
    };
    for life in 0..2 {
        let audit = place.open();
        for n in 0..30 {
            audit
                .append(Record::new(Kind::Decision, large(life * 30 + n)))
                .await
                .unwrap();
        }
        audit.close().await;
        assert!(audit.health().rotations >= 2);
    }
    let full = place.full();
    assert!(full.len() >= 4, "{full:?}");
    for path in full.iter().chain([&place.settings.path]) {
        let meta = fs::metadata(path).unwrap();
        assert!(meta.len() <= 1 << 20, "{path:?} has {} bytes", meta.len());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    }
    let report = place.verify();
    assert!(report.ok, "{:?}", report.breaks);
    assert_eq!(report.files.len(), full.len() + 1);
    assert!(
        report
            .files
            .windows(2)
            .all(|two| two[0].last_sequence + 1 == two[1].first_sequence)
    );
    assert!(full[0].ends_with("audit.00000000000000000001.jsonl"));
    // A directory is the same, and so is a log whose last file has just been renamed.
    assert!(verify(place.path().parent().unwrap()).unwrap().ok);
    fs::rename(
        place.path(),
        super::file::Names::of(place.path())
            .unwrap()
            .full(report.files.last().unwrap().first_sequence),
    )
    .unwrap();
    let audit = place.open();
    write(&audit, 0, 1).await;
    audit.close().await;
    let report = place.verify();
    assert!(
        report.ok && report.files.len() == full.len() + 2,
        "{report:?}"
    );

    // Whoever was let read one file may read the next.
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o640)).unwrap();
    let audit = place.open();
    for n in 0..12 {
        audit
            .append(Record::new(Kind::Decision, large(n)))
            .await
            .unwrap();
    }
    audit.close().await;
    assert_eq!(
        fs::metadata(place.path()).unwrap().permissions().mode() & 0o777,
        0o640
    );

    // The oldest may be taken away: the rest says where it begins. One from the middle may not.
    fs::remove_file(&full[0]).unwrap();
    let report = place.verify();
    assert!(report.ok && report.notes.len() == 1, "{report:?}");
    fs::remove_file(&full[2]).unwrap();
    let report = place.verify();
    assert_eq!(report.breaks.len(), 1);
    assert_eq!(
        (
            report.breaks[0].kind,
            &report.breaks[0].file,
            report.breaks[0].line
        ),
        ("missing", &full[3], 1)
    );
    fs::rename(
        &full[3],
        full[3].with_file_name("audit.00000000000000000777.jsonl"),
    )
    .unwrap();
    assert!(
        place
            .verify()
            .breaks
            .iter()
            .any(|found| found.kind == "name")
    );
}

#[tokio::test]
async fn what_a_crash_tore_is_cut_off_and_said() {
    let place = Place::new();
    let audit = place.open();
    write(&audit, 0, 3).await;
    audit.close().await;
    let whole = fs::read(place.path()).unwrap();
    let last = whole[..whole.len() - 1]
        .iter()
        .rposition(|b| *b == b'\n')
        .unwrap()
        + 1;
    // At every byte of the last record, and of the first, where nothing is whole.
    let first = whole.iter().position(|b| *b == b'\n').unwrap();
    for end in (last + 1..whole.len()).chain(1..first) {
        fs::write(place.path(), &whole[..end]).unwrap();
        assert_eq!(place.verify().breaks[0].kind, "torn");
        place.open().close().await;
        let kept = if end > last { last } else { 0 };
        let lines = place.lines();
        let started = &lines[if kept == 0 { 0 } else { 4 }];
        assert_eq!(started["event"], "started");
        assert_eq!(started["repaired"]["cut_bytes"], end - kept);
        let sha256 = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&whole[kept..end]));
        assert_eq!(started["repaired"]["cut_sha256"], sha256);
        assert!(place.verify().ok);
    }
}

/// The file has its length, and zeros for what was not on the disk yet.
#[tokio::test]
async fn zeros_that_a_power_cut_left_are_cut_off_however_many() {
    let place = Place::new();
    let audit = place.open();
    write(&audit, 0, 3).await;
    audit.close().await;
    let whole = fs::read(place.path()).unwrap();
    for (torn, zeros) in [
        (0, 1),
        (0, 5 * super::LINE_BYTES_MAX),
        (20, 65_536),
        (20, 3 * super::LINE_BYTES_MAX + 7),
    ] {
        let left = [&whole[..torn], &vec![0; zeros]].concat();
        fs::write(place.path(), [&whole[..], &left].concat()).unwrap();
        assert!(!place.verify().ok);
        place.open().close().await;
        let started = &place.lines()[5];
        assert_eq!(started["event"], "started");
        assert_eq!(started["repaired"]["cut_bytes"], left.len());
        let sha256 = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&left));
        assert_eq!(started["repaired"]["cut_sha256"], sha256);
        assert!(place.verify().ok);
    }
    // Nothing but zeros: no record has come to the disk.
    fs::write(place.path(), vec![0; 2 * super::LINE_BYTES_MAX]).unwrap();
    place.open().close().await;
    assert_eq!(place.lines()[0]["sequence"], 1);
    assert!(place.verify().ok);
}

/// Every way to tamper, and how it is named.
#[tokio::test]
async fn tampering_is_named() {
    let place = Place::new();
    let audit = place.open();
    write(&audit, 0, 8).await;
    audit.close().await;
    let whole = fs::read_to_string(place.path()).unwrap();
    let lines: Vec<String> = whole.lines().map(str::to_owned).collect();
    let put = |lines: &[String]| {
        lines
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    let with = |change: &dyn Fn(&mut Vec<String>)| {
        let mut changed = lines.clone();
        change(&mut changed);
        put(&changed)
    };
    let edited = lines[4].replace("dec_3", "dec_9");
    // Edited, and its own hash made anew: the next line shows it.
    let forged = {
        let body = &edited[..edited.len() - 75];
        let hash = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(body));
        format!("{body},\"hash\":\"{hash}\"}}")
    };
    let other_prev = lines[0].replace(&"0".repeat(64), &"1".repeat(64));
    for (what, text, expected) in [
        ("nothing", whole.clone(), vec![]),
        (
            "edited",
            with(&|l| l[4].clone_from(&edited)),
            vec![(5, "changed")],
        ),
        (
            "edited and hashed",
            with(&|l| l[4].clone_from(&forged)),
            vec![(6, "chain")],
        ),
        (
            "deleted",
            with(&|l| drop(l.remove(4))),
            vec![(5, "missing")],
        ),
        (
            "several deleted",
            with(&|l| drop(l.drain(2..5))),
            vec![(3, "missing")],
        ),
        (
            "swapped",
            with(&|l| l.swap(4, 5)),
            vec![(5, "missing"), (6, "order"), (7, "missing")],
        ),
        (
            "twice",
            with(&|l| l.insert(5, lines[4].clone())),
            vec![(6, "order")],
        ),
        (
            "put in",
            with(&|l| l.insert(5, "{\"kind\":\"decision\"}".into())),
            vec![(6, "no_record")],
        ),
        (
            "empty line",
            with(&|l| l.insert(5, "".into())),
            vec![(6, "no_record")],
        ),
        (
            "cut in a line",
            whole[..whole.len() - 40].to_owned(),
            vec![(10, "torn")],
        ),
        (
            "without its last line end",
            whole[..whole.len() - 1].to_owned(),
            vec![(10, "torn")],
        ),
        (
            "first line",
            with(&|l| l[0].clone_from(&other_prev)),
            vec![(1, "changed")],
        ),
        (
            "spaces",
            whole.replacen("\"kind\"", " \"kind\"", 1),
            vec![(1, "no_record")],
        ),
        (
            "line ends",
            whole.replace('\n', "\r\n"),
            (1..=10).map(|line| (line, "no_record")).collect(),
        ),
        (
            "a long line",
            with(&|l| l.insert(5, "x".repeat(super::LINE_BYTES_MAX + 1))),
            vec![(6, "no_record")],
        ),
    ] {
        fs::write(place.path(), text).unwrap();
        let report = place.verify();
        let found: Vec<(u64, &str)> = report
            .breaks
            .iter()
            .map(|found| (found.line, found.kind))
            .collect();
        assert_eq!(found, expected, "{what}: {report:?}");
        assert_eq!(report.ok, expected.is_empty());
    }
    fs::write(place.path(), put(&lines[3..])).unwrap();
    assert!(place.verify().notes[0].contains("begins with record 4"));
    // The list ends, the count does not.
    fs::write(place.path(), "x\n".repeat(1000)).unwrap();
    let report = place.verify();
    assert_eq!((report.breaks.len(), report.break_count), (100, 1000));
    let nowhere = verify(&place.dir.path().join("none.jsonl")).unwrap_err();
    assert_eq!(nowhere.kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn a_broken_place_is_refused_by_name() {
    let mut place = Place::new();
    let audit = place.open();
    let refusal = place.refusal();
    assert!(
        refusal.contains("another gateway") && refusal.contains("audit.jsonl"),
        "{refusal}"
    );
    write(&audit, 0, 2).await;
    audit.close().await;

    let whole = fs::read_to_string(place.path()).unwrap();
    fs::write(place.path(), whole.replace("stopped", "Stopped")).unwrap();
    let refusal = place.refusal();
    assert!(
        refusal.contains("audit.jsonl: line 4: ") && refusal.contains("audit verify"),
        "{refusal}"
    );
    fs::write(place.path(), format!("{whole}hello\n")).unwrap();
    assert!(
        place
            .refusal()
            .contains("line 5: its last line is no record")
    );
    // One whose hash is right all the same: it has no key.
    let mut last = super::chain::Head::genesis();
    last.sequence = u64::MAX - 1;
    let mut line = Vec::new();
    last.seal("system", &[b",\"event\":\"stopped\""], &mut line);
    fs::write(place.path(), &line).unwrap();
    assert!(place.refusal().contains("behind which there are none"));
    fs::write(place.path(), "x".repeat(super::LINE_BYTES_MAX + 1)).unwrap();
    assert!(place.refusal().contains("longer than any record"));
    fs::write(place.path(), &whole).unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o620)).unwrap();
    assert!(place.refusal().contains("others may write it"));
    fs::remove_file(place.path()).unwrap();
    std::os::unix::fs::symlink("/dev/null", place.path()).unwrap();
    assert!(place.refusal().contains("not a regular file"));
    fs::remove_file(place.path()).unwrap();

    for (path, why) in [
        (place.dir.path().join("logs"), "not a regular file"),
        (
            place.dir.path().join("logs/audit.jsonl.lock/audit.jsonl"),
            "directory",
        ),
        (PathBuf::from("/dev/null"), "not a regular file"),
        (
            PathBuf::from("/proc/none/audit.jsonl"),
            "cannot make its directory",
        ),
        (PathBuf::from("/"), "names no file"),
    ] {
        place.settings.path.clone_from(&path);
        let refusal = place.refusal();
        assert!(
            refusal.starts_with(&format!("audit.path: {}: ", path.display()))
                && refusal.contains(why),
            "{refusal}"
        );
    }
}

/// Puts a directory where the file was, so that nobody, the superuser neither, can write there.
fn block(place: &Place) {
    fs::rename(place.path(), place.path().with_extension("kept")).unwrap();
    fs::create_dir(place.path()).unwrap();
}

fn unblock(place: &Place) {
    fs::remove_dir(place.path()).unwrap();
    fs::rename(place.path().with_extension("kept"), place.path()).unwrap();
}

#[tokio::test]
async fn a_log_that_cannot_be_written_denies_or_counts_and_then_says_so() {
    for on_failure in [OnAuditFailure::Deny, OnAuditFailure::Continue] {
        let mut place = Place::new();
        place.settings.on_failure = on_failure;
        let denies = on_failure == OnAuditFailure::Deny;
        let audit = place.open();
        write(&audit, 0, 2).await;
        block(&place);
        for n in 2..5 {
            assert_eq!(audit.append(record(n)).await.is_err(), denies);
            audit.note(record(n)).await;
        }
        let health = audit.health();
        assert!(
            health
                .failing
                .as_ref()
                .unwrap()
                .contains("not a regular file")
        );
        assert_eq!(health.denies, denies);
        assert_eq!((health.records, health.lost + health.refused), (2, 6));
        assert_eq!(health.refused, if denies { 3 } else { 0 });
        unblock(&place);
        // It comes back by itself; a gateway that is not ready is not asked.
        while audit.health().failing.is_some() {
            tokio::task::yield_now().await;
        }
        write(&audit, 5, 1).await;
        audit.close().await;
        assert!(place.verify().ok);
        let lines = place.lines();
        let resumed = &lines[3];
        assert_eq!(
            (&resumed["event"], &resumed["unwritten"]),
            (&json!("resumed"), &json!(6))
        );
        assert!(
            resumed["reason"]
                .as_str()
                .unwrap()
                .contains("not a regular file")
        );
        assert_eq!(lines[4]["n"], 5);
    }
}
