//! Who writes, and when: whoever has the record, or the thread.

use serde_json::{Value, json};

use super::{Place, record, write};
use crate::audit::{Audit, Health};
use crate::config::Fsync;

#[tokio::test]
async fn who_cannot_wait_posts() {
    let place = Place::new();
    let audit = place.open();
    audit.post(record(1));
    audit.close().await;
    assert_eq!(place.lines()[1]["n"], 1);
    audit.post(record(2));
    assert_eq!(audit.health().lost, 1);
    let off = Audit::off();
    off.post(record(1));
    off.append(record(1)).await.unwrap();
    assert_eq!(off.health(), Health::default());
}

#[tokio::test]
async fn a_turn_that_does_not_come_is_left_to_the_thread() {
    let place = Place::new();
    let audit = place.open();
    let desk = &audit.0.as_ref().unwrap().desk;
    let turn = desk.wait();
    assert_eq!(
        desk.write_at_once(&record(1).encode()),
        None,
        "not for ever"
    );
    let waiting = tokio::spawn({
        let audit = audit.clone();
        async move { audit.append(record(1)).await }
    });
    drop(turn);
    waiting.await.unwrap().unwrap();
    audit.append(record(2)).await.unwrap();
    audit.close().await;
    let report = place.verify();
    assert!(report.ok, "{report:?}");
    let written: Vec<Value> = place.lines().iter().map(|line| line["n"].clone()).collect();
    assert_eq!(written, [json!(null), json!(1), json!(2), json!(null)]);
}

#[tokio::test]
async fn what_it_costs() {
    for fsync in [Fsync::Never, Fsync::Always] {
        let mut place = Place::new();
        place.settings.fsync = fsync;
        let audit = place.open();
        let began = std::time::Instant::now();
        write(&audit, 0, 200).await;
        println!(
            "{fsync:?}: {} µs a record, one after the other",
            began.elapsed().as_micros() / 200
        );
        audit.close().await;
        assert!(place.verify().ok);
    }
}
