//! What others do with the files while the gateway writes them.

use std::fs;

use serde_json::json;

use super::{Place, write};
use crate::audit::{check, find, verify};

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
        // The last record may be being written just now.
        let mut breaks = report.breaks.iter();
        assert!(breaks.all(|found| found.kind == "torn"), "{report:?}");
        let mut files: Vec<_> = report.files.iter().map(|file| &file.path).collect();
        files.dedup();
        assert_eq!(files.len(), report.files.len(), "{files:?}");
    }
    writes.await.unwrap();
    audit.close().await;
    assert!(place.verify().ok);
}

/// As `logrotate` does with `copytruncate`, or a shell with `>`.
#[tokio::test]
async fn a_file_that_is_cut_is_written_from_its_end() {
    let mut place = Place::new();
    place.settings.max_file_bytes = 2000;
    let audit = place.open();
    write(&audit, 0, 2).await;
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
    let report = place.verify();
    assert!(report.ok, "{report:?}");
    assert_eq!(report.notes.len(), 1, "where it begins: {report:?}");
    // And it rotates as ever.
    write(&audit, 4, 20).await;
    audit.close().await;
    assert!(audit.health().rotations > 0 && place.verify().ok);
}
