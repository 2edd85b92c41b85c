//! A start that does not find what the gateway before has written.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Place, write};
use crate::audit::{Report, verify_in_order};

impl Place {
    fn memory(&self) -> PathBuf {
        self.path().with_file_name("audit.jsonl.head")
    }

    /// A life of the gateway that ends as it is told to: `count` records from `from` on.
    async fn live(&self, from: u64, count: u64) {
        let audit = self.open();
        write(&audit, from, count).await;
        audit.close().await;
    }

    /// The same, of one that is killed: there is what there was while it lived.
    async fn live_and_die(&self, from: u64, count: u64) {
        let audit = self.open();
        write(&audit, from, count).await;
        let (dir, kept) = (self.path().parent().unwrap(), self.dir.path().join("kept"));
        fs::create_dir(&kept).unwrap();
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            fs::copy(entry.path(), kept.join(entry.file_name())).unwrap();
        }
        audit.close().await;
        fs::remove_dir_all(dir).unwrap();
        fs::rename(kept, dir).unwrap();
    }

    /// Moves the file that is written into a directory of its own.
    fn take(&self, to: &str) -> PathBuf {
        let to = self.dir.path().join(to);
        fs::create_dir_all(&to).unwrap();
        let to = to.join("audit.jsonl");
        fs::rename(self.path(), &to).unwrap();
        to
    }

    /// And the full ones.
    fn take_all(&self, to: &str) -> Vec<PathBuf> {
        let full = self.full();
        let active = self.take(to);
        let mut taken: Vec<_> = full
            .iter()
            .map(|path| active.with_file_name(path.file_name().unwrap()))
            .collect();
        for (path, to) in full.iter().zip(&taken) {
            fs::rename(path, to).unwrap();
        }
        taken.push(active);
        taken
    }
}

fn in_order(taken: &[PathBuf], more: &[&Path]) -> Report {
    let more = more.iter().map(|path| path.to_path_buf());
    let all: Vec<_> = taken.iter().cloned().chain(more).collect();
    verify_in_order(&all).unwrap()
}

fn kinds(report: &Report) -> Vec<&str> {
    report.breaks.iter().map(|found| found.kind).collect()
}

/// The sequences of the records in these files.
fn sequences(report: &Report) -> Vec<(u64, u64)> {
    let files = report.files.iter();
    files
        .map(|file| (file.first_sequence, file.last_sequence))
        .collect()
}

#[tokio::test]
async fn a_log_that_was_taken_away_goes_on() {
    for was_empty in [false, true] {
        let mut place = Place::new();
        place.settings.max_file_bytes = 1000;
        place.live(0, 20).await;
        let taken = place.take_all("first");
        assert!(taken.len() > 2 && place.full().is_empty());
        let reason = match was_empty {
            // `create` of logrotate.
            true => {
                fs::write(place.path(), "").unwrap();
                "the file was empty"
            }
            false => "the file was not there",
        };
        let audit = place.open();
        let first = &place.lines()[0];
        assert_eq!(
            (&first["sequence"], &first["event"], &first["reason"]),
            (&json!(23), &json!("started"), &json!(reason))
        );
        assert!(first["had_at_least"].is_null(), "{first}");
        write(&audit, 20, 20).await;
        audit.close().await;
        // No name is there twice.
        let mut names: Vec<_> = taken.iter().chain(&place.full()).cloned().collect();
        let count = names.len();
        names.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
        names.dedup_by_key(|path| path.file_name().map(ToOwned::to_owned));
        assert!(names.len() == count && !place.full().is_empty());
        // Alone each holds, and so do both together.
        let alone = place.verify();
        assert!(alone.ok && alone.notes.len() == 1, "{alone:?}");
        let more = place.full();
        let mut more: Vec<&Path> = more.iter().map(PathBuf::as_path).collect();
        more.push(place.path());
        let both = in_order(&taken, &more);
        assert!(both.ok && both.notes.is_empty(), "{both:?}");
    }
}

/// The numbers in them would be there twice.
#[tokio::test]
async fn full_files_that_stay_are_not_gone_on_from_alone() {
    let mut place = Place::new();
    place.settings.max_file_bytes = 1000;
    place.live(0, 20).await;
    let full = place.full();
    let taken = place.take("first");
    place.live(20, 1).await;
    let mut all = full.clone();
    all.push(taken.clone());
    let report = in_order(&all, &[place.path()]);
    assert!(report.ok && report.notes.is_empty(), "{report:?}");
    // Without what was taken: that it lacks something is not hidden.
    let report = place.verify();
    assert_eq!(kinds(&report), ["missing"], "{report:?}");
    // Killed: of the file behind the full ones the first record is known.
    for (life, was_empty) in [(1, false), (2, true)] {
        place.live_and_die(20 * life, 20).await;
        let newest = place.full().pop().unwrap();
        place.take(&format!("killed-{life}"));
        if was_empty {
            fs::write(place.path(), "").unwrap();
        }
        place.live(20 * life + 20, 1).await;
        let first = &place.lines()[0];
        assert_eq!(first["sequence"], life * 1_000_000_000_000 + 1);
        let report = in_order(&[newest], &[]);
        assert_eq!(first["had_at_least"], report.files[0].last_sequence + 1);
    }
}

/// Nobody knows how much the gateway had written before it was killed.
#[tokio::test]
async fn what_follows_an_unknown_end_is_not_taken_for_continuous() {
    let place = Place::new();
    place.live_and_die(0, 3).await;
    let taken = place.take("first");
    place.live_and_die(3, 3).await;
    let lines = place.lines();
    let first = &lines[0];
    assert_eq!(
        (&first["sequence"], &first["prev"], &first["had_at_least"]),
        (
            &json!(1_000_000_000_001_u64),
            &json!("0".repeat(64)),
            &json!(1)
        )
    );
    assert_eq!(first["reason"], "the file was not there");
    // It holds, and says what it lacks.
    let alone = place.verify();
    assert!(alone.ok && alone.notes.len() == 2, "{alone:?}");
    assert!(
        alone.notes[0].contains("begins with record 1000000000001")
            && alone.notes[1].contains("what it had behind record 1 is not known"),
        "{alone:?}"
    );
    let both = in_order(std::slice::from_ref(&taken), &[place.path()]);
    assert_eq!(kinds(&both), ["missing"], "{both:?}");
    assert!(
        both.breaks[0].message.contains("is not known"),
        "{}",
        both.breaks[0].message
    );
    assert_eq!(
        sequences(&both),
        [(1, 4), (1_000_000_000_001, 1_000_000_000_004)]
    );
    // Once more, behind a start that has made its file and no more.
    let second = place.take("second");
    fs::write(place.path(), "").unwrap();
    place.live(6, 1).await;
    assert_eq!(place.lines()[0]["reason"], "the file was empty");
    assert_eq!(place.lines()[0]["sequence"], 2_000_000_000_001_u64);
    let all = in_order(&[taken, second], &[place.path()]);
    assert_eq!(kinds(&all), ["missing", "missing"], "{all:?}");
}

/// A gateway that was killed and finds its file goes on as ever; and a cut end, which no hash shows, is told.
#[tokio::test]
async fn a_file_that_is_there_counts_alone() {
    let place = Place::new();
    place.live_and_die(0, 3).await;
    place.live(3, 3).await;
    let report = place.verify();
    assert!(report.ok && report.notes.is_empty(), "{report:?}");
    assert_eq!(sequences(&report), [(1, 9)]);
    assert!(place.lines().iter().all(|line| line["reason"].is_null()));
    // As a backup that was put back.
    let whole = fs::read_to_string(place.path()).unwrap();
    let kept: Vec<&str> = whole.split_inclusive('\n').take(4).collect();
    fs::write(place.path(), kept.concat()).unwrap();
    place.live(6, 1).await;
    let started = &place.lines()[4];
    assert_eq!(
        (&started["sequence"], &started["had_at_least"]),
        (&json!(5), &json!(9))
    );
    assert_eq!(started["reason"], "the file has fewer records than it had");
    let report = place.verify();
    assert!(report.ok && report.notes.len() == 1, "{report:?}");
    assert!(
        report.notes[0].contains(
            ":5: the log says that it had record 9 before, and its file ended with record 4 here"
        ),
        "{report:?}"
    );
    // Once is enough.
    place.live(7, 1).await;
    assert_eq!(place.verify().notes.len(), 1);
}

#[tokio::test]
async fn what_is_remembered_is_kept_only_while_it_is_true() {
    let place = Place::new();
    let memory =
        || -> Value { serde_json::from_slice(&fs::read(place.memory()).unwrap()).unwrap() };
    let audit = place.open();
    assert_eq!(memory()["is_last"], false);
    audit.close().await;
    let last = &place.lines()[1];
    assert_eq!(
        memory(),
        json!({ "sequence": 2, "hash": last["hash"], "is_last": true })
    );
    let mode = fs::metadata(place.memory()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // It cannot be written: then it is not there, and not what it was.
    let new = place.path().with_file_name("audit.jsonl.head.new");
    fs::create_dir(&new).unwrap();
    let audit = place.open();
    assert!(!place.memory().exists());
    write(&audit, 0, 1).await;
    audit.close().await;
    assert!(place.verify().ok);
    // A file that a crash has left is in nobody's way.
    fs::remove_dir(&new).unwrap();
    fs::write(&new, "x").unwrap();
    place.live(1, 1).await;
    assert!(memory()["is_last"] == true && !new.exists());
}

#[tokio::test]
async fn what_is_damaged_is_nothing() {
    let zeros = "0".repeat(64);
    let with = |sequence: Value, hash: &str| {
        json!({ "sequence": sequence, "hash": hash, "is_last": true }).to_string()
    };
    let damaged = [
        String::new(),
        "{}".into(),
        with(json!(0), &zeros),
        with(json!(u64::MAX), &zeros),
        with(json!(-1), &zeros),
        with(json!(7), &zeros[1..]),
        with(json!(7), &"A".repeat(64)),
    ];
    let place = Place::new();
    let begins_anew = |what: &str| {
        let first = &place.lines()[0];
        assert_eq!(first["sequence"], 1, "{what}");
        assert!(first["reason"].is_null(), "{what}");
        fs::remove_file(place.path()).unwrap();
    };
    place.live(0, 1).await;
    fs::remove_file(place.path()).unwrap();
    for text in damaged {
        fs::write(place.memory(), &text).unwrap();
        place.live(0, 1).await;
        begins_anew(&text);
    }
    // One that others could have written.
    let open = fs::Permissions::from_mode(0o622);
    fs::set_permissions(place.memory(), open).unwrap();
    place.live(0, 1).await;
    begins_anew("others may write it");
    let elsewhere = place.dir.path().join("elsewhere");
    fs::rename(place.memory(), &elsewhere).unwrap();
    symlink(&elsewhere, place.memory()).unwrap();
    place.live(0, 1).await;
    begins_anew("a link");
    assert!(place.memory().symlink_metadata().unwrap().is_file());
}
