//! Calls of a store from several threads at once: what each was told is there is there.

use std::future::Future;
use std::sync::Arc;

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{BlobStat, Error, PutSkill, Result};

use super::blobs::store;
use super::{TENANT, blob_of, digest, skill};
use crate::bench::{Bench, Done, Stop, failed, failed_at};

/// Calls at once: more than a store has threads or connections.
const AT_ONCE: usize = 16;
/// Times that they meet: what two do to one list is a matter of microseconds.
const ROUNDS: usize = 8;
/// Likewise of skills, of which each is several files.
const SKILL_ROUNDS: usize = 4;
/// No store keeps so much of a blob beside it.
const BLOB_BYTES: usize = 700;

/// Makes calls that nobody waits for before all are made, and gives how each has ended.
fn all<T, F>(bench: &Bench, calls: impl Iterator<Item = F>) -> Done<Vec<Result<T>>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let tasks: Vec<_> = calls.map(|call| bench.spawn(call)).collect();
    let ends = tasks.into_iter().map(|task| {
        let end = bench.wait(async { Ok(task.await) })?;
        end.map_err(|error| failed(error.to_string()))
    });
    ends.collect()
}

/// What was taken; no room (SKG_E_EXHAUSTED), and what is to be tried again as a whole (SKG_E_ABORTED), is none of it.
fn taken<T>(function: &'static str, ends: Vec<Result<T>>) -> Done<Vec<T>> {
    let mut taken = Vec::new();
    for end in ends {
        match end {
            Ok(one) => taken.push(one),
            Err(error) if matches!(error.code, abi::E_EXHAUSTED | abi::E_ABORTED) => {}
            Err(error) => {
                let seen = format!(
                    "{AT_ONCE} calls of {function} at once, and one of them ends with {error}"
                );
                return Err(failed_at(function, seen));
            }
        }
    }
    Ok(taken)
}

/// Of a store that took nothing there is nothing to look for.
fn some_of<T>(made: &[T], what: &str) -> Done {
    if made.is_empty() {
        return Err(Stop::Skipped(format!(
            "none of its {what} was taken (SKG_E_EXHAUSTED or SKG_E_ABORTED)"
        )));
    }
    Ok(())
}

/// A blob that nobody else has.
fn content(number: usize) -> Vec<u8> {
    let word = format!("blob {number} of those that are committed at once\n");
    word.bytes().cycle().take(BLOB_BYTES + number).collect()
}

pub(crate) fn blobs(bench: &Bench) -> Done {
    let store = store(bench)?;
    let mut made: Vec<(BlobStat, Vec<u8>)> = Vec::new();
    for round in 0..ROUNDS {
        let instance = || Arc::clone(&store.instance);
        bench.step(format!("blob_create, {AT_ONCE} at once, round {round}"));
        let create = (0..AT_ONCE).map(|_| {
            let store = instance();
            async move { store.blob_create(blob_of(TENANT)).await }
        });
        let writers = taken("blob_create", all(bench, create)?)?;
        let data = |at| content(round * AT_ONCE + at);
        bench.step(format!("blob_write, {AT_ONCE} at once, round {round}"));
        let write = writers.into_iter().enumerate().map(|(at, mut writer)| {
            let data = data(at);
            async move {
                writer.write(data.clone()).await?;
                Ok((writer, data))
            }
        });
        let written = taken("blob_write", all(bench, write)?)?;
        bench.step(format!("blob_commit, {AT_ONCE} at once, round {round}"));
        let commit = written.into_iter().map(|(writer, data)| async move {
            let stat = writer.commit().await?;
            Ok((stat, data))
        });
        made.extend(taken("blob_commit", all(bench, commit)?)?);
    }
    some_of(&made, "blobs")?;
    let (mut lost, count) = (Vec::new(), made.len());
    for some in made.chunks(AT_ONCE) {
        bench.step(format!("blob_stat and blob_read, {AT_ONCE} at once"));
        let look = some.iter().map(|(stat, data)| {
            let (store, stat, data) = (Arc::clone(&store.instance), stat.clone(), data.clone());
            async move { Ok((stat.id.clone(), is_there(&store, &stat, &data).await)) }
        });
        for (id, wrong) in all(bench, look)?.into_iter().flatten() {
            lost.extend(wrong.err().map(|error| format!("{id}: {error}")));
        }
    }
    told("blob_commit", "blobs were committed", count, &lost)
}

/// What of this blob is not as it was written.
async fn is_there(
    store: &skillgate_plugin_host::StorageInstance,
    stat: &BlobStat,
    data: &[u8],
) -> Result<()> {
    let other = |what| Err(Error::new(abi::E_CORRUPT, what));
    let known = store.blob_stat(TENANT, &stat.id).await?;
    let same = known.sha256.eq_ignore_ascii_case(&digest(data));
    if !same || known.size_bytes != data.len() as u64 {
        return other("blob_stat tells of another blob");
    }
    let mut reader = store.blob_open(TENANT, &stat.id, 0, 0).await?;
    let mut read = Vec::new();
    loop {
        let (piece, end) = reader.read(super::CHUNK_BYTES).await?;
        let stuck = piece.is_empty() && !end;
        read.extend(piece);
        if end && read == data {
            return Ok(());
        }
        if end || stuck || read.len() > data.len() {
            return other("blob_read gives other bytes");
        }
    }
}

pub(crate) fn skills(bench: &Bench) -> Done {
    let store = bench.storage()?;
    store.needs_publishing()?;
    let mut made: Vec<PutSkill> = Vec::new();
    for round in 0..SKILL_ROUNDS {
        bench.step(format!(
            "skill_put of {AT_ONCE} names at once, round {round}"
        ));
        let publish = (0..AT_ONCE).map(|at| {
            let store = Arc::clone(&store.instance);
            let name = format!("check.at-once-{round}-{at}");
            let put = skill(TENANT, &name, "1.0.0", name.as_bytes());
            async move {
                store.skill_put(put.clone()).await?;
                Ok(put)
            }
        });
        made.extend(taken("skill_put", all(bench, publish)?)?);
    }
    some_of(&made, "skills")?;
    let (mut lost, count) = (Vec::new(), made.len());
    for some in made.chunks(AT_ONCE) {
        bench.step(format!("skill_get of {AT_ONCE} names at once"));
        let look = some.iter().map(|put| {
            let (store, put) = (Arc::clone(&store.instance), put.clone());
            async move {
                let got = store.skill_get(TENANT, &put.name, "1.0.0").await;
                Ok((put, got))
            }
        });
        for (put, got) in all(bench, look)?.into_iter().flatten() {
            match got {
                Ok(got) if got.name == put.name && got.tree_sha256 == put.tree_sha256 => {}
                Ok(got) => lost.push(format!("{}: skill_get gives {}", put.name, got.name)),
                Err(error) => lost.push(format!("{}: {error}", put.name)),
            }
        }
    }
    told("skill_put", "skills were published", count, &lost)
}

fn told(function: &'static str, what: &str, count: usize, lost: &[String]) -> Done {
    let Some(first) = lost.first() else {
        return Ok(());
    };
    let seen = format!(
        "{count} {what} by {AT_ONCE} callers at once, each with SKG_OK, and {} of them are not there, or not as they were: {first}",
        lost.len()
    );
    Err(failed_at(function, seen))
}
