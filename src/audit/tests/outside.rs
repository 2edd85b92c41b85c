//! What others do with the files while the gateway writes them.

use std::fs;

use serde_json::{Value, json};

use super::{Place, write};
use crate::audit::chain::Head;
use crate::audit::verify::check_waiting;
use crate::audit::{Report, check, find, verify, verify_in_order};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_rotates_while_it_is_read_is_whole() {
    let mut place = Place::new();
    place.settings.max_file_bytes = 1000;
    let audit = place.open();
    write(&audit, 0, 1).await;
    // The one that is written has another name when it is read.
    let found = find(place.path()).unwrap();
    write(&audit, 1, 20).await;
    let report = check(&found).unwrap();
    assert!(report.ok && audit.health().rotations > 1, "{report:?}");
    assert_eq!((found[0].len(), report.files[0].first_sequence), (1, 1));

    let writes = tokio::spawn({
        let audit = audit.clone();
        async move { write(&audit, 21, 1000).await }
    });
    let dir = place.path().parent().unwrap();
    for path in [place.path(), dir].into_iter().cycle().take(20) {
        let report = verify(path).unwrap();
        assert!(report.ok, "{report:?}");
        let mut files: Vec<_> = report.files.iter().map(|file| &file.path).collect();
        files.dedup();
        assert_eq!(files.len(), report.files.len(), "{files:?}");
    }
    writes.await.unwrap();
    audit.close().await;
    assert!(place.verify().ok);
}

/// Else a log that is written all the time would be called broken now and then.
#[tokio::test]
async fn the_end_of_a_record_that_is_being_written_is_waited_for() {
    let place = Place::new();
    let audit = place.open();
    write(&audit, 0, 3).await;
    audit.close().await;
    let whole = fs::read(place.path()).unwrap();
    let last = place.lines()[4].to_string().len();
    let torn = whole.len() - last / 2;
    // What there is of it at first, and what the writer does before it is read again.
    let read = |waits: &mut dyn FnMut(usize)| {
        fs::write(place.path(), &whole[..torn]).unwrap();
        let found = find(place.path()).unwrap();
        let mut waited = 0;
        let report = check_waiting(&found, || {
            waited += 1;
            waits(waited);
        });
        (report.unwrap(), waited)
    };
    let put = |bytes: &[u8]| fs::write(place.path(), bytes).unwrap();

    let (report, waited) = read(&mut |wait| match wait {
        1 => put(&whole[..torn + 5]),
        3 => put(&whole),
        _ => {}
    });
    assert!(report.ok, "{report:?}");
    assert_eq!((report.files[0].last_sequence, waited), (5, 3));
    // A write that has failed takes back what there was of it.
    let end = whole[..torn].iter().rposition(|byte| *byte == b'\n');
    let (report, waited) = read(&mut |_| put(&whole[..=end.unwrap()]));
    assert!(report.ok, "{report:?}");
    assert_eq!((report.files[0].last_sequence, waited), (4, 1));
    // Nobody writes it any more.
    let (report, waited) = read(&mut |_| ());
    let breaks: Vec<_> = report.breaks.iter().map(|found| found.kind).collect();
    assert_eq!((breaks.as_slice(), waited), (["torn"].as_slice(), 20));
    // Nor one that is full.
    put(&whole[..torn]);
    let full = place
        .path()
        .with_file_name("audit.00000000000000000001.jsonl");
    fs::rename(place.path(), full).unwrap();
    put(b"");
    let found = find(place.path()).unwrap();
    let report = check_waiting(&found, || panic!("it is waited for")).unwrap();
    assert_eq!(report.breaks[0].kind, "torn");
}

/// As `logrotate` does with `copytruncate`, or a shell with `>`.
#[tokio::test]
async fn a_file_that_is_cut_is_written_from_its_end() {
    let mut place = Place::new();
    place.settings.max_file_bytes = 2000;
    let audit = place.open();
    write(&audit, 0, 2).await;
    let (before, copy) = (
        fs::read(place.path()).unwrap(),
        place.dir.path().join("copy"),
    );
    let file = fs::OpenOptions::new().write(true).open(place.path());
    file.unwrap().set_len(0).unwrap();
    write(&audit, 2, 2).await;
    let text = fs::read(place.path()).unwrap();
    assert!(!text.contains(&0));
    let first = &place.lines()[0];
    assert_eq!(
        (&first["event"], &first["sequence"], &first["reason"]),
        (&json!("resumed"), &json!(4), &json!("the file was cut"))
    );
    // What was in it is lost, and no hash shows it: the log itself does.
    let breaks = |report: &Report| -> Vec<_> {
        let places = report.breaks.iter();
        places.map(|found| (found.line, found.kind)).collect()
    };
    let report = place.verify();
    assert_eq!(breaks(&report), [(1, "cut")], "{report:?}");
    assert!(!report.ok && report.notes.is_empty(), "{report:?}");
    // Whoever has a copy of it lacks nothing.
    fs::write(&copy, &before).unwrap();
    let both = [copy, place.path().to_owned()];
    let report = verify_in_order(&both).unwrap();
    assert!(report.ok && report.notes.is_empty(), "{report:?}");
    assert_eq!((report.files.len(), report.files[0].records), (2, 3));
    // And it rotates as ever.
    write(&audit, 4, 20).await;
    audit.close().await;
    assert!(audit.health().rotations > 0);
    let report = place.verify();
    assert_eq!(breaks(&report), [(1, "cut")], "{report:?}");
    // It is taken away with the full file that begins so; what is left begins with a record like others.
    fs::remove_file(&place.full()[0]).unwrap();
    let report = place.verify();
    assert!(report.ok && report.notes.len() == 1, "{report:?}");
    assert!(report.notes[0].contains("the ones before are not here"));
}

/// No hash shows what was never written.
#[tokio::test]
async fn what_the_log_says_that_it_lacks_is_noted() {
    let place = Place::new();
    let life = |events: &[(&str, Value)]| {
        let mut head = Head::genesis();
        let mut text = Vec::new();
        for (event, more) in events {
            let member = format!(",\"event\":{event:?},{}", &more.to_string()[1..]);
            let member = member.strip_suffix('}').unwrap();
            head.seal("log", &[member.as_bytes()], &mut text);
            head.seal(
                "decision",
                &[b",\"event\":\"resumed\",\"unwritten\":9"],
                &mut text,
            );
        }
        text
    };
    let lacks = |unwritten: u64| json!({ "unwritten": unwritten });
    let text = life(&[
        ("started", lacks(0)),
        ("resumed", lacks(2)),
        ("resumed", lacks(2)),
        ("resumed", lacks(5)),
        ("stopped", lacks(5)),
        (
            "started",
            json!({ "unwritten": 0, "repaired": { "cut_bytes": 17 } }),
        ),
        ("stopped", lacks(1)),
    ]);
    fs::create_dir_all(place.path().parent().unwrap()).unwrap();
    let noted = |text: &[u8]| {
        fs::write(place.path(), text).unwrap();
        let report = place.verify();
        assert!(report.ok, "{report:?}");
        let file = format!("{}:", place.path().display());
        let notes = report.notes.iter();
        notes
            .map(|note| note.replace(&file, ""))
            .collect::<Vec<_>>()
    };
    let said = [
        "3: the log says that it lacks 2 record(s) here",
        "7: the log says that it lacks 3 record(s) here",
        "11: the log says that it ended in the middle of a record here, of which 17 bytes were cut off",
        "13: the log says that it lacks 1 record(s) here",
    ];
    assert_eq!(noted(&text), said);
    // The files before were taken away: what was known then is not known here.
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    assert_eq!(
        noted(&lines[4..9].concat())[1..],
        [
            "1: the log says that it lacks 2 record(s) since the gateway was started",
            "3: the log says that it lacks 3 record(s) here",
        ]
    );
    // As breaks, they are not listed without end.
    let many: Vec<_> = (0..=150).map(|n| ("resumed", lacks(n))).collect();
    let notes = noted(&life(&many));
    assert_eq!(notes.len(), 101);
    assert_eq!(notes[100], "the log says so at 50 more place(s)");
}

#[tokio::test]
async fn a_file_that_is_moved_away_is_followed_by_another() {
    let place = Place::new();
    let audit = place.open();
    write(&audit, 0, 2).await;
    let moved = place
        .path()
        .with_file_name("audit.00000000000000000001.jsonl");
    fs::rename(place.path(), &moved).unwrap();
    write(&audit, 2, 2).await;
    audit.close().await;
    let lines = place.lines();
    assert_eq!(
        (&lines[0]["event"], &lines[0]["sequence"]),
        (&json!("resumed"), &json!(4))
    );
    assert!(place.verify().ok);
}

/// As a backup that was put back, or a second log beside this one.
#[tokio::test]
async fn a_full_file_that_is_there_already_is_left_as_it_is() {
    let mut place = Place::new();
    place.settings.max_file_bytes = 1000;
    let audit = place.open();
    write(&audit, 0, 1).await;
    let theirs = place
        .path()
        .with_file_name("audit.00000000000000000001.jsonl");
    fs::write(&theirs, "theirs").unwrap();
    write(&audit, 1, 20).await;
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    assert_eq!(audit.health().rotations, 0);
    // Nothing is refused and nothing is lost meanwhile: it goes on growing.
    let lines = place.lines();
    let numbers = lines.iter().filter_map(|line| line["n"].as_u64());
    assert_eq!(numbers.collect::<Vec<_>>(), (0..21).collect::<Vec<_>>());
    assert!(fs::metadata(place.path()).unwrap().len() > 2000);
    // Until the name is free.
    fs::remove_file(&theirs).unwrap();
    write(&audit, 21, 20).await;
    audit.close().await;
    assert!(audit.health().rotations > 0 && theirs.exists());
    let report = place.verify();
    assert!(report.ok && report.notes.is_empty(), "{report:?}");
}
