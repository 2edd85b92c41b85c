//! What a record is about, and records of an instance that is no more.

use super::*;
use crate::glue::blocking::Blocking;

type StoreCell = crate::glue::storage::Cell<Blocking<Store>>;

#[test]
fn what_a_call_logs_is_about_it() {
    let (one, other) = (Open::new(), Open::new());
    // SAFETY: the instances live.
    let cell = |of: &Open| unsafe { &*of.table.self_.cast::<StoreCell>() };
    let say = |of: &Open| {
        let host = cell(of).instance.with(|store| store.0 .0.clone());
        host.unwrap().log(Level::Info, "t", "said", &[]);
    };
    cell(&one).instance.host.about(9, || {
        say(&one);
        cell(&other).instance.host.about(7, || say(&other));
        // Numbers of ops are each host's own.
        say(&other);
        say(&one);
    });
    say(&one);
    let ops = |of: &Open| -> Vec<abi::Op> {
        let told = of.host.fake.lock().unwrap();
        told.logs.iter().map(|(op, _)| *op).collect()
    };
    assert_eq!(ops(&one), [9, 9, 0]);
    assert_eq!(ops(&other), [7, 0]);
}

#[test]
fn logs_after_the_end_go_nowhere() {
    let store = Open::new();
    // SAFETY: the instance lives.
    let cell = unsafe { &*store.table.self_.cast::<StoreCell>() };
    let host = cell.instance.with(|store| store.0 .0.clone()).unwrap();
    host.log(Level::Info, "t", "before", &[]);
    // SAFETY: once; Drop is skipped below.
    unsafe { store.table.destroy.unwrap()(store.table.self_) };
    host.log(Level::Info, "t", "after", &[]);
    assert_eq!(
        store.host.fake.lock().unwrap().logs,
        [(0, "before".to_owned())]
    );
    std::mem::forget(store);
}

#[test]
fn logs_after_a_refused_create_go_nowhere() {
    let host = PastHost::new();
    host.create(
        crate::glue::blocking_storage_factory::<Store>().create,
        b"refuse and keep",
    )
    .unwrap_err();
    let kept = KEPT.lock().unwrap().take().unwrap();
    assert!(!kept.log_enabled(Level::Info, "t"));
    assert!(
        !kept.service.log(Level::Info, "t", "after", &[]),
        "somebody else has to take it"
    );
    assert_eq!(host.fake.lock().unwrap().logs, [(0, "before".to_owned())]);
}
