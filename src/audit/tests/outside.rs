//! What others do with the files while the gateway writes them.

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
