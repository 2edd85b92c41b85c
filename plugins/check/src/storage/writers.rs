//! Writers of blobs, in C: the gateway's own side asks nothing of one that has ended.

use skillgate_plugin_sdk::abi;

use crate::bench::{Bench, CALL_LIMIT, Done, Stop, failed_at};
use crate::contract::{destroy, make};
use crate::raw::{Called, HostShape, Kind, RawInstance, RawPlugin, Room, Shape, Values};

/// More than the writers of the kit's plain calls may take.
const TOO_MUCH: usize = (16 << 20) + 1;

pub(crate) fn end(bench: &Bench) -> Done {
    let plugin = bench.load()?;
    let plugin = RawPlugin::new(&plugin, &bench.dir)?;
    let (kind, host, shape) = (Kind::Storage, HostShape::Now, Shape::Whole);
    let store = make(bench, &plugin, kind, "a", host, shape)?;
    let (_, flags) = store.caps(shape)?;
    if flags & abi::ST_BLOBS == 0 {
        destroy(bench, &store)?;
        return Err(Stop::Skipped("caps says that it has no blobs".into()));
    }
    let committed = writer(bench, &store)?;
    fine(&store, &store.blob_write(committed, hello()?))?;
    bench.step("blob_commit");
    fine(&store, &store.blob_commit(committed))?;
    gone(bench, &store, committed, "was committed")?;

    // Whether what has failed can be committed is the store's affair.
    let failed = writer(bench, &store)?;
    let data = Room::of(&vec![7; TOO_MUCH])?;
    bench.step("blob_write beyond max_bytes");
    store.end(&store.blob_write(failed, data), CALL_LIMIT)?;
    bench.step("blob_commit after a write that has failed");
    store.end(&store.blob_commit(failed), CALL_LIMIT)?;
    gone(
        bench,
        &store,
        failed,
        "was committed after a write had failed",
    )?;

    let aborted = writer(bench, &store)?;
    bench.step("blob_abort");
    store.let_go(aborted, 0);
    gone(bench, &store, aborted, "was given up")?;
    gone(bench, &store, u64::MAX, "there has never been")?;
    destroy(bench, &store)
}

fn hello() -> std::io::Result<Room> {
    Room::of(b"hello")
}

fn writer(bench: &Bench, store: &RawInstance) -> Done<u64> {
    bench.step("blob_create");
    let called = store.blob_create(Values::Plain, Shape::Whole)?;
    fine(store, &called)
}

/// It has to succeed; gives the handle in the answer.
fn fine(store: &RawInstance, called: &Called) -> Done<u64> {
    let end = store.end(called, CALL_LIMIT)?;
    if end.status == abi::OK {
        return Ok(end.handle);
    }
    let (name, code, why) = (called.name, end.status, end.message);
    Err(failed_at(name, format!("{name} ends with {code}: {why}")))
}

fn gone(bench: &Bench, store: &RawInstance, writer: u64, how: &str) -> Done {
    bench.step(format!("blob_write of a writer that {how}"));
    let write = store.end(&store.blob_write(writer, hello()?), CALL_LIMIT)?;
    if write.status != abi::E_STALE {
        let seen = format!(
            "blob_write of a writer that {how} ends with {} instead of SKG_E_STALE",
            write.status
        );
        return Err(failed_at("blob_write", seen));
    }
    bench.step(format!("blob_commit of a writer that {how}"));
    let commit = store.end(&store.blob_commit(writer), CALL_LIMIT)?;
    if commit.status == abi::OK {
        let seen = format!("blob_commit of a writer that {how} makes a blob");
        return Err(failed_at("blob_commit", seen));
    }
    Ok(())
}
