//! Who writes, and when: whoever has the record, or the thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt as _;
use serde_json::{Map, Value, json};

use super::{Place, block, record, unblock, write};
use crate::audit::writer::Fate;
use crate::audit::{Audit, HUNG_AFTER, Health, Kind, Record, Unavailable, Unwritten};
use crate::config::{Fsync, OnAuditFailure};

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

/// The next start would take it for a kill, and nobody knew why.
#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_closed_in_time_says_so() {
    let place = Place::new();
    let audit = place.open();
    let works = hang(&audit);
    let (log, _here) = crate::telemetry::logged::Log::begin();
    audit.close().await;
    let log = log.taken();
    assert!(
        log.contains("ERROR") && log.contains("not be closed in time"),
        "{log}"
    );
    drop(works);
}

/// In the numbers as in the log.
#[tokio::test]
async fn what_was_posted_and_could_not_be_written_is_lost() {
    let place = Place::new();
    let audit = place.open();
    write(&audit, 1, 1).await;
    block(&place);
    audit.post(record(2));
    while audit.health().failing.is_none() {
        tokio::task::yield_now().await;
    }
    audit.note(record(3)).await;
    assert_eq!(audit.health().lost, 2);
    unblock(&place);
    audit.close().await;
    assert_eq!(resumed(&place)[0]["unwritten"], 2);
}

/// It was never the writer's, which has to say it all the same: in the numbers as in the log.
#[tokio::test]
async fn what_found_no_room_is_in_the_log_as_lost() {
    for fails in [false, true] {
        let mut place = Place::new();
        // All in one.
        place.settings.max_file_bytes = 1 << 30;
        let audit = place.open();
        let works = hang(&audit);
        while audit.health().lost < 2 {
            audit.post(record(1));
        }
        // Waits for room, and then no more.
        tokio::time::pause();
        audit.note(record(2)).await;
        tokio::time::resume();
        assert_eq!(audit.health().lost, 3);
        // Whose caller hangs up, too.
        assert!(audit.note(record(3)).now_or_never().is_none(), "it waits");
        assert_eq!(audit.health().lost, 4);
        if fails {
            block(&place);
        }
        drop(works);
        if fails {
            // All of it: nothing is written in the middle of what comes then.
            while audit.health().failing.is_none() || !audit.0.as_ref().unwrap().is_idle() {
                tokio::task::yield_now().await;
            }
            unblock(&place);
        }
        audit.close().await;
        let (health, said) = (audit.health(), resumed(&place));
        assert!(fails || health.lost == 4, "{health:?}");
        let last = said.last().unwrap();
        assert_eq!(last["unwritten"], health.lost, "{health:?}");
        let reason = "more waited to be written than there is room for";
        assert!(fails || last["reason"] == reason, "{last}");
        assert!(place.verify().ok);
    }
}

/// A disk that hangs is no failure for a while: what has begun by then is on record, however much of it.
#[tokio::test]
async fn nothing_begins_whose_end_would_find_no_room() {
    for on_failure in [OnAuditFailure::Deny, OnAuditFailure::Continue] {
        let mut place = Place::new();
        place.settings.on_failure = on_failure;
        let audit = place.open();
        let works = hang(&audit);
        let mut posted = 0;
        let mut post = |count: u64| {
            (0..count).for_each(|_| audit.post(record(1)));
            posted += count;
        };
        let denies = on_failure == OnAuditFailure::Deny;
        while audit.can_post() && audit.health().lost == 0 {
            post(1);
        }
        assert_eq!(
            (audit.can_post(), audit.health().lost == 0),
            (!denies, denies)
        );
        if denies {
            // As many as there are tunnels, many times.
            post(10_000);
            assert_eq!(audit.health().lost, 0);
        }
        drop(works);
        audit.close().await;
        let health = audit.health();
        assert!(
            health.records + health.lost >= posted,
            "{posted}: {health:?}"
        );
        assert_eq!(health.lost == 0, denies);
    }
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

/// As a disk that hangs: nobody gets a turn until what is given back is dropped.
fn hang(audit: &Audit) -> mpsc::Sender<()> {
    let desk = audit.0.as_ref().unwrap().desk.clone();
    let (works, ends) = mpsc::channel::<()>();
    let (begun, began) = mpsc::channel();
    std::thread::spawn(move || {
        let _turn = desk.wait();
        begun.send(()).unwrap();
        assert!(ends.recv().is_err());
    });
    began.recv().unwrap();
    works
}

fn numbers(place: &Place) -> Vec<u64> {
    let lines = place.lines();
    lines.iter().filter_map(|line| line["n"].as_u64()).collect()
}

fn resumed(place: &Place) -> Vec<Value> {
    let mut lines = place.lines();
    lines.retain(|line| line["event"] == "resumed");
    lines
}

#[tokio::test]
async fn the_decision_of_a_refused_call_is_not_written_later() {
    for on_failure in [OnAuditFailure::Deny, OnAuditFailure::Continue] {
        let mut place = Place::new();
        place.settings.on_failure = on_failure;
        let denies = on_failure == OnAuditFailure::Deny;
        let audit = place.open();
        write(&audit, 1, 1).await;
        let works = hang(&audit);
        // Time passes by itself while everybody waits.
        tokio::time::pause();
        assert_eq!(audit.append(record(2)).await.is_err(), denies);
        // A run has ended, and what only reads has gone on, whether they are recorded or not.
        let mut ended = Map::new();
        ended.insert("n".to_owned(), 3.into());
        let ended = Record::new(Kind::Run, ended);
        assert_eq!(audit.append(ended).await.is_err(), denies);
        audit.note(record(4)).await;
        tokio::time::resume();
        drop(works);
        audit.close().await;

        let report = place.verify();
        assert!(report.ok, "{report:?}");
        let (written, said) = (numbers(&place), resumed(&place));
        if denies {
            assert_eq!((written.as_slice(), said.len()), (&[1, 3, 4][..], 1));
            assert_eq!(said[0]["unwritten"], 1);
            assert_eq!(said[0]["reason"], "writing took longer than 10 s");
            assert!(said[0]["late"].is_null(), "{}", said[0]);
        } else {
            assert_eq!((written.as_slice(), said.len()), (&[1, 2, 3, 4][..], 0));
        }
        let health = audit.health();
        let refused = if denies { 2 } else { 0 };
        assert_eq!((health.refused, health.lost), (refused, 3 - refused));
    }
}

/// Who asks whether it is ready learns it, and not only who is refused.
#[tokio::test]
async fn a_disk_that_hangs_is_a_failure() {
    for on_failure in [OnAuditFailure::Deny, OnAuditFailure::Continue] {
        let mut place = Place::new();
        place.settings.on_failure = on_failure;
        let denies = on_failure == OnAuditFailure::Deny;
        let audit = place.open();
        write(&audit, 1, 1).await;
        let later = || Instant::now() + HUNG_AFTER * 2;
        assert_eq!(audit.health_at(later()).failing, None, "nobody waits");
        let works = hang(&audit);
        tokio::time::pause();
        assert_eq!(audit.append(record(2)).await.is_err(), denies);
        tokio::time::resume();
        let health = audit.health_at(later());
        let reason = health.failing.as_deref();
        assert_eq!(reason, Some("writing takes longer than 2 s"));
        assert_eq!((health.denies, health.failures), (denies, 0));
        drop(works);
        while audit.health_at(later()).failing.is_some() {
            tokio::task::yield_now().await;
        }
        write(&audit, 3, 1).await;
        audit.close().await;
        assert!(place.verify().ok);
    }
}

/// The caller that writes itself waits in no queue, and may be the only one.
#[tokio::test]
async fn a_disk_that_hangs_under_whoever_writes_is_a_failure() {
    static HANGS: AtomicBool = AtomicBool::new(false);
    static WRITES: AtomicBool = AtomicBool::new(false);
    fn clock() -> SystemTime {
        while HANGS.load(Ordering::SeqCst) {
            WRITES.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        UNIX_EPOCH
    }
    let place = Place::new();
    let audit = Audit::open_at(&place.settings, clock).unwrap();
    write(&audit, 1, 1).await;
    HANGS.store(true, Ordering::SeqCst);
    let writes = std::thread::spawn({
        let audit = audit.clone();
        move || futures_util::FutureExt::now_or_never(audit.append(record(2)))
    });
    while !WRITES.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    let now = Instant::now();
    assert!(audit.0.as_ref().unwrap().is_idle(), "nobody else waits");
    assert_eq!(audit.health_at(now).failing, None, "not for long yet");
    let health = audit.health_at(now + HUNG_AFTER * 2);
    HANGS.store(false, Ordering::SeqCst);
    let reason = health.failing.as_deref();
    assert_eq!(reason, Some("writing takes longer than 2 s"));
    assert_eq!((health.denies, health.failures), (true, 0));
    // At once: it has written itself.
    assert_eq!(writes.join().unwrap(), Some(Ok(())));
    assert_eq!(audit.health_at(now + HUNG_AFTER * 2).failing, None);
    audit.close().await;
    assert!(place.verify().ok);
    assert_eq!(numbers(&place), [1, 2]);
}

/// Whether who has a record writes it, or the thread does.
#[tokio::test]
async fn a_write_that_panics_has_failed_and_the_next_one_is_written() {
    static PANICS: AtomicBool = AtomicBool::new(false);
    fn clock() -> SystemTime {
        assert!(!PANICS.load(Ordering::SeqCst), "by the test");
        UNIX_EPOCH
    }
    for fsync in [Fsync::Never, Fsync::Always] {
        let mut place = Place::new();
        place.settings.fsync = fsync;
        let audit = Audit::open_at(&place.settings, clock).unwrap();
        write(&audit, 1, 1).await;
        PANICS.store(true, Ordering::SeqCst);
        assert_eq!(audit.append(record(2)).await, Err(Unavailable));
        let failing = audit.health_at(Instant::now()).failing;
        assert!(failing.is_some_and(|why| why.contains("panicked")));
        PANICS.store(false, Ordering::SeqCst);
        write(&audit, 3, 1).await;
        assert_eq!(audit.health_at(Instant::now()).failing, None);
        audit.close().await;
        assert!(place.verify().ok);
        assert_eq!(numbers(&place), [1, 3]);
        let [resumed] = resumed(&place).try_into().unwrap();
        assert_eq!(resumed["unwritten"], 1, "{resumed}");
    }
}

/// Whoever begins to wait says since when before it takes its room: to be read the other way round, else a record that comes
/// between the two looks as if it had waited since the last one.
#[test]
fn whether_anybody_waits_is_looked_at_before_since_when() {
    let place = Place::new();
    let audit = place.open();
    let progress = audit.0.as_ref().unwrap().state.progress.lock().unwrap();
    let (says, said) = mpsc::channel();
    let asked = audit.clone();
    std::thread::spawn(move || says.send(asked.can_post()));
    assert_eq!(said.recv_timeout(Duration::from_secs(10)), Ok(true));
    drop(progress);
}

/// The thread sleeps, and who has written is the only one who knows.
#[tokio::test]
async fn one_write_that_failed_is_tried_again_though_nobody_asks() {
    for fsync in [Fsync::Never, Fsync::Interval(Duration::from_secs(3600))] {
        let mut place = Place::new();
        place.settings.fsync = fsync;
        let audit = place.open();
        audit.post(record(1));
        while audit.health().records == 0 {
            tokio::task::yield_now().await;
        }
        block(&place);
        assert_eq!(audit.append(record(2)).await, Err(Unavailable));
        unblock(&place);
        let until = Instant::now() + Duration::from_secs(30);
        while audit.health().failing.is_some() {
            assert!(Instant::now() < until, "{fsync:?}: it is never tried");
            tokio::task::yield_now().await;
        }
        audit.close().await;
        assert!(place.verify().ok);
        assert_eq!(resumed(&place)[0]["unwritten"], 1);
    }
}

/// Who only goes away is not refused.
#[tokio::test]
async fn the_record_of_a_caller_that_has_left_is_written() {
    let place = Place::new();
    let audit = place.open();
    let works = hang(&audit);
    let left = tokio::time::timeout(Duration::ZERO, audit.append(record(1))).await;
    assert!(left.is_err(), "it waits");
    drop(works);
    audit.close().await;
    assert_eq!((numbers(&place), resumed(&place)), (vec![1], vec![]));
}

/// And counted, where it cannot be: there is nobody else who could.
#[tokio::test]
async fn the_record_of_a_caller_that_has_left_is_lost_once() {
    let mut place = Place::new();
    place.settings.on_failure = OnAuditFailure::Continue;
    let audit = place.open();
    let works = hang(&audit);
    assert!(audit.note(record(1)).now_or_never().is_none(), "it waits");
    assert!(audit.append(record(2)).now_or_never().is_none());
    // One whose caller has counted it, after 10 s.
    tokio::time::pause();
    audit.note(record(3)).await;
    tokio::time::resume();
    assert_eq!(audit.health().lost, 1);
    block(&place);
    drop(works);
    while audit.health().failing.is_none() || !audit.0.as_ref().unwrap().is_idle() {
        tokio::task::yield_now().await;
    }
    unblock(&place);
    audit.close().await;
    assert_eq!(audit.health().lost, 3);
    assert_eq!(
        (numbers(&place), &resumed(&place)[0]["unwritten"]),
        (vec![], &json!(3))
    );
}

#[tokio::test]
async fn a_decision_that_was_being_written_is_named() {
    static HANGS: AtomicBool = AtomicBool::new(false);
    static WRITES: AtomicBool = AtomicBool::new(false);
    /// It is asked for the time when the records that are written are chosen.
    fn clock() -> SystemTime {
        while HANGS.load(Ordering::SeqCst) {
            WRITES.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        UNIX_EPOCH
    }
    let mut place = Place::new();
    // Then the thread writes.
    place.settings.fsync = Fsync::Always;
    let audit = Audit::open_at(&place.settings, clock).unwrap();
    HANGS.store(true, Ordering::SeqCst);
    tokio::time::pause();
    let refused = tokio::spawn({
        let audit = audit.clone();
        async move { audit.append(record(1)).await }
    });
    while !WRITES.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    assert_eq!(refused.await.unwrap(), Err(Unavailable));
    tokio::time::resume();
    HANGS.store(false, Ordering::SeqCst);
    audit.close().await;

    let report = place.verify();
    assert!(report.ok, "{report:?}");
    let (lines, said) = (place.lines(), resumed(&place));
    assert_eq!(
        (&lines[1]["n"], &lines[1]["sequence"]),
        (&json!(1), &json!(2))
    );
    assert_eq!((&lines[2], said.len()), (&said[0], 1));
    assert_eq!(
        (&said[0]["late"], &said[0]["unwritten"]),
        (&json!([2]), &json!(0))
    );
}

#[test]
fn one_of_the_writer_and_the_caller_comes_first() {
    let fate = Fate::new(Unwritten::Void);
    assert!(!fate.give_up(), "it is in no file");
    assert!(!fate.take(), "and comes into none");
    let fate = Fate::new(Unwritten::Void);
    assert!(fate.take() && fate.end());
    assert!(fate.give_up(), "it is in the file");
    let fate = Fate::new(Unwritten::Void);
    assert!(fate.take() && !fate.give_up());
    assert!(!fate.end(), "its caller has gone");
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
