//! Blobs of two tenants that are written, and read, at the same time: each is its own.

use skillgate_plugin_host::{BlobReader, BlobWriter};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{BlobCreate, BlobStat, Result};

use super::blobs::store;
use super::{OTHER, TENANT, blob_of, digest, refused};
use crate::bench::{Bench, Done, Stop, Store, demand, failed_at};

/// Blobs at the same time.
const BLOBS: usize = 4;
/// The first has so many parts, and each after it one more: so one ends while others go on.
const PARTS: usize = 2;
/// No round number: of a store's own chunks none ends where a part does.
const PART_BYTES: usize = 30_011;
const READ_BYTES: usize = 25_000;
/// In one blob there is room for what is written to all: one that gets that is told by what it has.
const ALL_BYTES_MAX: u64 = 1 << 20;

struct Blob {
    create: BlobCreate,
    data: Vec<u8>,
}

/// Every byte says whose it is, and about where.
fn blob(number: usize) -> Blob {
    let tenant = if number.is_multiple_of(2) {
        TENANT
    } else {
        OTHER
    };
    let bytes = (PARTS + number) * PART_BYTES;
    Blob {
        create: BlobCreate {
            kind: format!("text/x-check-{number}"),
            owner: format!("kit {number}"),
            max_bytes: ALL_BYTES_MAX,
            ..blob_of(tenant)
        },
        data: (0..bytes)
            .map(|at| (number * 64 + at % 61).to_le_bytes()[0])
            .collect(),
    }
}

pub(crate) fn at_once(bench: &Bench) -> Done {
    let store = store(bench)?;
    let mut blobs: Vec<Blob> = (0..BLOBS).map(blob).collect();
    let writers = all_that_fit(blobs.iter().map(|blob| {
        let create = blob.create.clone();
        let step = format!("blob_create for {:?}, beside others", create.tenant);
        store.call(step, |store| async move { store.blob_create(create).await })
    }))?;
    blobs.truncate(writers.len());
    let stats = write(bench, &blobs, writers)?;
    for (blob, stat) in blobs.iter().zip(&stats) {
        is_its_own(&store, blob, stat)?;
    }
    read(&store, &blobs, &stats)
}

/// What a store has room for at the same time; with one alone there is nothing to look at.
fn all_that_fit<T>(opened: impl Iterator<Item = Result<T>>) -> Done<Vec<T>> {
    let mut all = Vec::new();
    for one in opened {
        match one {
            Err(error) if error.code == abi::E_EXHAUSTED && !all.is_empty() => break,
            one => all.push(one?),
        }
    }
    if all.len() < 2 {
        return Err(Stop::Skipped(
            "it has room for one blob at a time (SKG_E_EXHAUSTED)".into(),
        ));
    }
    Ok(all)
}

/// A part of each in turn; who has no more is committed, while the others go on.
fn write(bench: &Bench, blobs: &[Blob], writers: Vec<BlobWriter>) -> Done<Vec<BlobStat>> {
    let mut stats = Vec::new();
    let mut writers: Vec<_> = writers.into_iter().map(Some).collect();
    for round in 0..=PARTS + BLOBS {
        for (blob, slot) in blobs.iter().zip(&mut writers) {
            let part = blob.data.chunks(PART_BYTES).nth(round);
            let (tenant, owner) = (&blob.create.tenant, &blob.create.owner);
            match (part, slot.as_mut()) {
                (Some(part), Some(writer)) => {
                    bench.step(format!(
                        "blob_write for {tenant:?}, {owner:?}, in turns with others"
                    ));
                    bench.wait(writer.write(part.to_vec()))?;
                }
                (None, Some(_)) => {
                    bench.step(format!(
                        "blob_commit for {tenant:?}, {owner:?}, beside others"
                    ));
                    if let Some(writer) = slot.take() {
                        stats.push(bench.wait(writer.commit())?);
                    }
                }
                (_, None) => {}
            }
        }
    }
    Ok(stats)
}

fn is_its_own(store: &Store<'_>, blob: &Blob, committed: &BlobStat) -> Done {
    let BlobCreate {
        tenant,
        kind,
        owner,
        ..
    } = &blob.create;
    let known = store.stat(tenant, &committed.id).map_err(|error| {
        let seen = format!("a blob of {tenant:?} that was written beside others is not there for {tenant:?}: {error}");
        failed_at("blob_stat", seen)
    })?;
    let (bytes, sha256) = (blob.data.len(), digest(&blob.data));
    for (function, stat) in [("blob_commit", committed), ("blob_stat", &known)] {
        let same = stat.sha256.eq_ignore_ascii_case(&sha256);
        let whole = stat.size_bytes == bytes as u64 && same;
        if !whole || stat.kind != *kind || stat.owner != *owner {
            let seen = format!(
                "{bytes} bytes with the digest {sha256}, of the kind {kind} and of {owner:?}, were written in turns with others, and {function} says {stat:?}"
            );
            return Err(failed_at(function, seen));
        }
    }
    let theirs = if tenant == TENANT { OTHER } else { TENANT };
    refused(
        "blob_stat",
        "another tenant's blob that was written beside one's own",
        abi::E_NOT_FOUND,
        store.stat(theirs, &committed.id),
    )
}

/// A reader, and where the next bytes are.
struct Open<'a> {
    number: usize,
    data: &'a [u8],
    reader: BlobReader,
}

/// All in turns, and the first one twice: a place is a reader's, and not its blob's.
fn read(store: &Store<'_>, blobs: &[Blob], stats: &[BlobStat]) -> Done {
    let all = blobs.iter().zip(stats).enumerate();
    let places = all
        .clone()
        .map(|of| (of, 0))
        .chain(all.take(1).map(|of| (of, PART_BYTES)));
    let mut open = all_that_fit(places.map(|((number, (blob, stat)), from)| {
        let step = format!("blob_open of blob {number} from {from}, beside others");
        let reader = store.call(step, |store| async move {
            let tenant = &blob.create.tenant;
            store.blob_open(tenant, &stat.id, from as u64, 0).await
        })?;
        let data = &blob.data[from..];
        Ok(Open {
            number,
            data,
            reader,
        })
    }))?;
    while !open.is_empty() {
        let mut going_on = Vec::new();
        for mut one in open {
            if !next_is_its_own(store.bench, &mut one)? {
                going_on.push(one);
            }
        }
        open = going_on;
    }
    Ok(())
}

/// Reads on; whether that was the end.
fn next_is_its_own(bench: &Bench, open: &mut Open<'_>) -> Done<bool> {
    let number = open.number;
    bench.step(format!("blob_read of blob {number}, in turns with others"));
    let (piece, end) = bench.wait(open.reader.read(READ_BYTES))?;
    let wanted = open.data.get(..piece.len()).unwrap_or_default();
    if piece != wanted {
        let seen = format!(
            "a reader of blob {number}, read in turns with those of others, gives {} bytes that are not its next ones",
            piece.len()
        );
        return Err(failed_at("blob_read", seen));
    }
    open.data = &open.data[piece.len()..];
    demand(!end || open.data.is_empty(), || {
        format!(
            "blob {number} has ended, and {} bytes were not read",
            open.data.len()
        )
    })?;
    Ok(end)
}
