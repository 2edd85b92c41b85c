//! Records of an instance that is no more.

use super::*;
use crate::glue::blocking::Blocking;

type StoreCell = crate::glue::storage::Cell<Blocking<Store>>;

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
    assert_eq!(store.host.fake.lock().unwrap().logs, ["before"]);
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
    assert_eq!(host.fake.lock().unwrap().logs, ["before"]);
}
