//! What the disk says when it is asked whether it has what was written.

use serde_json::json;

use super::{Place, record, write};
use crate::audit::Unavailable;

/// The system says it once: whoever does not listen has lost records, and calls the log healthy.
#[tokio::test]
async fn a_full_file_that_the_disk_does_not_have_is_a_failure() {
    let mut place = Place::new();
    // Each record is one too many.
    place.settings.max_file_bytes = 1;
    let audit = place.open();
    write(&audit, 0, 1).await;
    // It takes what is written, and no disk ever has it.
    let (_kept, pipe) = std::io::pipe().unwrap();
    {
        let mut turn = audit.0.as_ref().unwrap().desk.wait();
        let file = std::os::fd::OwnedFd::from(pipe).into();
        turn.as_mut().unwrap().write_into(file);
    }
    assert_eq!(audit.append(record(1)).await, Err(Unavailable));
    let health = audit.health();
    assert_eq!((health.rotations, health.failures), (1, 1), "{health:?}");
    assert!(health.failing.is_some() && health.denies, "{health:?}");
    while audit.health().failing.is_some() {
        tokio::task::yield_now().await;
    }
    let resumed = &place.lines()[0];
    assert_eq!(
        (&resumed["event"], &resumed["unwritten"]),
        (&json!("resumed"), &json!(1))
    );
    let reason = resumed["reason"].as_str().unwrap();
    assert!(reason.contains("Invalid argument"), "{reason}");
    write(&audit, 2, 1).await;
    audit.close().await;
    assert!(place.verify().ok && audit.health().failures == 1);
}
