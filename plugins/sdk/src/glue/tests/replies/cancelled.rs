//! Answers that nobody wants any more.

use super::*;

#[test]
fn who_wants_to_know_is_told_once_that_nobody_wants_the_answer() {
    let shop = Shop::new();
    shop.get(1, "watch");
    shop.get(2, "watch");
    shop.cancel(2);
    shop.cancel(2);
    shop.cancel(99);
    assert_eq!(shop.desk.count(|desk| &desk.cancelled), 1);
    shop.host.fake.lock().unwrap().cancelled = true;
    assert!(shop.desk.gets.lock().unwrap()[1].cancelled());
    // Cancelled before the plugin had said what to call.
    shop.get(3, "watch");
    assert_eq!(shop.desk.count(|desk| &desk.cancelled), 2);
    // Answered before the cancellation comes.
    let replies = std::mem::take(&mut *shop.desk.gets.lock().unwrap());
    for reply in replies {
        reply.ok(Skill::default());
    }
    shop.cancel(1);
    assert_eq!(shop.desk.count(|desk| &desk.cancelled), 2);
    assert_eq!(shop.ends().len(), 3);
    shop.destroy();
}

#[test]
fn what_is_told_may_answer() {
    let shop = Shop::new();
    shop.get(1, "answer when cancelled");
    assert_eq!(shop.ends(), []);
    shop.cancel(1);
    assert_eq!(shop.the_end(), (abi::E_CANCELLED, "gone".into()));
    shop.destroy();
}

#[test]
fn an_answer_and_a_cancellation_at_once_are_one_end() {
    const CALLS: u64 = 300;
    let shop = Shop::new();
    for op in 1..=CALLS {
        shop.get(op, "watch");
        let reply = shop.desk.get();
        std::thread::scope(|scope| {
            scope.spawn(|| shop.cancel(op));
            scope.spawn(move || reply.ok(Skill::default()));
        });
    }
    let ends = shop.ends();
    let good = ends
        .iter()
        .zip(1..)
        .all(|(end, op)| *end == (op, abi::OK, String::new()));
    assert!(good && ends.len() as u64 == CALLS, "{ends:?}");
    let left = Arc::strong_count(&shop.desk);
    assert_eq!(
        left, 2,
        "the plugin's and the test's: nothing is left to be called"
    );
    shop.drain(CALLS + 1);
    shop.hook().ok(());
    assert_eq!(shop.host.ended().1, abi::OK, "nothing is in flight");
    shop.destroy();
}

#[test]
fn a_drain_that_is_cancelled_ends_although_the_plugin_panics_at_that() {
    let shop = Shop::new();
    shop.drain(1);
    let hook = shop.hook();
    hook.on_cancel(|| panic!("not now"));
    shop.cancel(1);
    assert_eq!(shop.the_end().0, abi::E_CANCELLED);
    hook.ok(());
    assert_eq!(shop.ends().len(), 1);
    shop.destroy();
}

#[test]
fn a_call_is_answered_although_what_waits_for_its_cancel_panics_when_it_goes() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("when it goes");
        }
    }
    let shop = Shop::new();
    shop.get(1, "watch");
    let reply = shop.desk.get();
    for _ in 0..2 {
        let bomb = Bomb;
        reply.on_cancel(move || drop(bomb));
    }
    reply.ok(Skill::default());
    let ends = shop.ends();
    assert_eq!((ends.len(), ends[0].0, ends[0].1), (1, 1, abi::OK));
    shop.destroy();
}
