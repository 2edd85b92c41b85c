//! The buffers of a blob's calls, which are the plugin's until the op completes and no longer.

use skillgate_plugin_sdk::abi;

use crate::bench::{Bench, CALL_LIMIT, Done, LISTEN, Stop, demand, failed_at};
use crate::contract::{destroy, each_kind, make, no_wrongs};
use crate::raw::{Called, End, HostShape, Kind, RawInstance, Room, Shape, Values, keep};

const BLOB_BYTES: usize = 5000;
/// Of what is written, so many bytes at once, and then the rest.
const PIECES: [usize; 2] = [1, 7];
/// So much is asked for at once, of so much of the blob's end: a plugin may be far away.
const READS: [(usize, usize); 3] = [(1, 20), (7, 70), (4096, BLOB_BYTES)];

fn good(instance: &RawInstance, called: &Called) -> Done<End> {
    let end = instance.end(called, CALL_LIMIT)?;
    if end.status == abi::OK {
        return Ok(end);
    }
    let (name, code, why) = (called.name, end.status, &end.message);
    Err(failed_at(name, format!("{name} ends with {code}: {why}")))
}

pub(crate) fn buffers(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        if kind != Kind::Storage {
            return Ok(());
        }
        let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
        let (_, has) = instance.caps(Shape::Whole)?;
        if has & abi::ST_BLOBS == 0 {
            destroy(bench, &instance)?;
            return Err(Stop::Skipped("caps says that it has no blobs".into()));
        }
        let content: Vec<u8> = (0..=250).cycle().take(BLOB_BYTES).collect();
        let id = written(bench, &instance, &content)?;
        for (cap, bytes) in READS {
            read(bench, &instance, id, cap, &content, bytes)?;
        }
        no_wrongs(&instance.host.listen(LISTEN))?;
        destroy(bench, &instance)
    })
}

fn written(bench: &Bench, instance: &RawInstance, content: &[u8]) -> Done<&'static str> {
    bench.step("blob_create");
    let writer = good(
        instance,
        &instance.blob_create(Values::Plain, Shape::Whole)?,
    )?
    .handle;
    let mut rest = content;
    for bytes in PIECES.into_iter().chain([BLOB_BYTES]) {
        let (piece, more) = rest.split_at(bytes.min(rest.len()));
        rest = more;
        bench.step(format!(
            "blob_write of {} bytes; those of the one before cannot be read any more",
            piece.len()
        ));
        good(instance, &instance.blob_write(writer, Room::of(piece)?))?;
    }
    bench.step("blob_commit; what was written cannot be read any more");
    let id = good(instance, &instance.blob_commit(writer))?.id;
    Ok(keep(id.into()))
}

/// The last `bytes` of the blob.
fn read(
    bench: &Bench,
    instance: &RawInstance,
    id: &'static str,
    cap: usize,
    content: &[u8],
    bytes: usize,
) -> Done {
    let wanted = &content[content.len() - bytes..];
    let offset = (content.len() - bytes) as u64;
    bench.step(format!("blob_open at {offset}"));
    let reader = good(instance, &instance.blob_open_at(id, offset))?.handle;
    bench.step(format!(
        "blob_read with room for {cap} bytes, none of which can be touched when it is complete"
    ));
    let mut read = Vec::new();
    loop {
        let end = good(instance, &instance.blob_read(reader, cap)?)?;
        let stuck = end.data.is_empty() && !end.eof;
        read.extend(end.data);
        if end.eof {
            break;
        }
        demand(!stuck && read.len() < wanted.len() + cap, || {
            format!(
                "blob_read with room for {cap} bytes gives {} of {bytes}, and does not come to the end",
                read.len()
            )
        })?;
    }
    demand(read == wanted, || {
        format!(
            "blob_read with room for {cap} bytes gives {} that are not the last {bytes} of the blob",
            read.len()
        )
    })?;
    instance.let_go(0, reader);
    Ok(())
}
