//! Blobs: bytes in, the same bytes out.

use std::collections::HashSet;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{BlobCreate, Result};

use super::tree::others_read;
use super::{OTHER, TENANT, blob_of, digest, refused, strict_umask};
use crate::bench::{Bench, Done, Store, demand, failed_at};

/// A store's chunks and buffers tend to end at these.
const EDGES: [usize; 9] = [
    0,
    1,
    4095,
    4096,
    (1 << 16) + 1,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (3 << 20) + 7,
];
/// With --full.
const LARGE_BYTES: u64 = 4 << 30;
/// It is written in parts of this size.
const PART_BYTES: usize = 8 << 20;
/// How long that may take to write, and to read.
const LARGE_LIMIT: Duration = Duration::from_secs(600);
/// Writers that are made and given up.
const GIVEN_UP: usize = 1500;
/// Readers that are made and closed.
const CLOSED: usize = 1500;
/// How late the end of those may be.
const ABORT_LIMIT: Duration = Duration::from_secs(3);
const ABORT_PAUSE: Duration = Duration::from_millis(5);
/// The shortest life that a blob can be given, and one that is not over while the kit looks.
const SHORT_TTL_S: u64 = 1;
const LONG_TTL_S: u64 = 3600;
/// How much longer the blob may be there: clocks are coarse. It is no time for a sweep to come by.
const TTL_LATE_MAX: Duration = Duration::from_secs(10);
const TTL_PAUSE: Duration = Duration::from_millis(20);
/// Of an id behind "blob:": at least 128 random bits. Of the 65 characters that it may have, one has about 6 of them at most.
const ID_BYTES_MIN: usize = 22;
/// As the host bounds it.
const ID_BYTES_MAX: usize = 128;

const EXPIRED: &str = "a blob whose ttl_s has passed";

/// Bytes without a pattern that a mistake could hit by chance.
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out.truncate(len);
    out
}

pub(super) fn store(bench: &Bench) -> Done<Store<'_>> {
    let store = bench.storage()?;
    store.needs(abi::ST_BLOBS, "blobs")?;
    Ok(store)
}

pub(crate) fn sizes(bench: &Bench) -> Done {
    let store = store(bench)?;
    for size in EDGES {
        let data = bytes(size);
        // In uneven parts.
        let parts: Vec<&[u8]> = data.chunks(700_001).collect();
        let stat = store.blob(TENANT, &parts)?;
        demand(stat.size_bytes == size as u64, || {
            format!("a blob of {size} bytes is said to have {}", stat.size_bytes)
        })?;
        let read = store.range(TENANT, &stat.id, 0, 0)?;
        demand(read == data, || {
            format!(
                "a blob of {size} bytes is read as {} other bytes",
                read.len()
            )
        })?;
    }
    Ok(())
}

pub(crate) fn large(bench: &Bench) -> Done {
    let store = store(bench)?;
    bench.step("a blob of 4 GiB of zeroes and a last byte");
    let zeroes = vec![0; PART_BYTES];
    let instance = std::sync::Arc::clone(&store.instance);
    let stat = bench.wait_within(LARGE_LIMIT, async {
        let mut writer = instance.blob_create(blob_of(TENANT)).await?;
        for _ in 0..LARGE_BYTES / PART_BYTES as u64 {
            writer.write(zeroes.clone()).await?;
        }
        writer.write(vec![1]).await?;
        writer.commit().await
    })?;
    demand(stat.size_bytes == LARGE_BYTES + 1, || {
        format!("it is said to have {} bytes", stat.size_bytes)
    })?;
    let end = store.range(TENANT, &stat.id, LARGE_BYTES - 1, 0)?;
    demand(end == [0, 1], || format!("its last two bytes are {end:?}"))?;
    bench.step("reading 4 GiB");
    let id = stat.id.clone();
    let (size, read) = bench.wait_within(LARGE_LIMIT, async {
        let mut reader = instance.blob_open(TENANT, &id, 0, 0).await?;
        let (mut size, mut hash) = (0_u64, Sha256::new());
        loop {
            let (data, end) = reader.read(1 << 20).await?;
            size += data.len() as u64;
            hash.update(&data);
            if end {
                return Ok((size, hex::encode(hash.finalize())));
            }
        }
    })?;
    let whole = size == stat.size_bytes && read.eq_ignore_ascii_case(&stat.sha256);
    demand(whole, || {
        format!(
            "{size} bytes with the digest {read} are read; it is said to be {}",
            stat.sha256
        )
    })?;
    store.call("blob_delete", |store| async move {
        store.blob_delete(TENANT, &id).await
    })?;
    Ok(())
}

pub(crate) fn ranges(bench: &Bench) -> Done {
    let store = store(bench)?;
    let data = bytes((2 << 20) + 100);
    let size = data.len() as u64;
    let stat = store.blob(TENANT, &[&data])?;
    let mib = 1 << 20;
    let cases = [
        (0, 1),
        (1, 0),
        (mib - 1, 2),
        (mib, mib),
        (size - 1, 1),
        (size - 1, 0),
        (size - 10, 100),
        (size, 0),
        (5, 3 * mib),
        // Whose end no 64 bits hold.
        (1, u64::MAX),
    ];
    for (offset, len) in cases {
        let read = store.range(TENANT, &stat.id, offset, len)?;
        let end = if len == 0 {
            size
        } else {
            size.min(offset.saturating_add(len))
        };
        let (from, to) = (usize::try_from(offset), usize::try_from(end));
        let wanted = data
            .get(from.unwrap_or(0)..to.unwrap_or(0))
            .unwrap_or_default();
        demand(read == wanted, || {
            format!(
                "{len} bytes from {offset} are read as {} bytes that are not these {}",
                read.len(),
                wanted.len()
            )
        })?;
    }
    for (offset, len) in [(size + 1, 0), (u64::MAX, 0), (u64::MAX, u64::MAX)] {
        let beyond = store.range(TENANT, &stat.id, offset, len);
        refused(
            "blob_open",
            "an offset beyond the end",
            abi::E_OUT_OF_RANGE,
            beyond,
        )?;
    }
    Ok(())
}

pub(crate) fn max_bytes(bench: &Bench) -> Done {
    let store = store(bench)?;
    let create = BlobCreate {
        max_bytes: 1000,
        ..blob_of(TENANT)
    };
    let over: Result<()> = store.call(
        "a blob of 1001 bytes of which 1000 are allowed",
        |store| async move {
            let mut writer = store.blob_create(create).await?;
            writer.write(bytes(600)).await?;
            writer.write(bytes(401)).await
        },
    );
    refused(
        "blob_write",
        "a write beyond max_bytes",
        abi::E_OUT_OF_RANGE,
        over,
    )?;
    let create = BlobCreate {
        max_bytes: 1000,
        ..blob_of(TENANT)
    };
    let stat = store.call("a blob of exactly max_bytes", |store| async move {
        let mut writer = store.blob_create(create).await?;
        writer.write(bytes(1000)).await?;
        writer.commit().await
    })?;
    demand(stat.size_bytes == 1000, || {
        format!("it has {} bytes", stat.size_bytes)
    })
}

pub(crate) fn abort(bench: &Bench) -> Done {
    let store = store(bench)?;
    store.call("a writer that is given up", |store| async move {
        let mut writer = store.blob_create(blob_of(TENANT)).await?;
        writer.write(bytes(100)).await
        // Dropped: blob_abort.
    })?;
    // Many of them: a store that keeps what was given up runs full.
    for i in 0..GIVEN_UP {
        let until = Instant::now() + ABORT_LIMIT;
        while let Err(error) = store
            .call(format!("writer {i} that is given up"), |store| async move {
                store.blob_create(blob_of(TENANT)).await.map(drop)
            })
        {
            // blob_abort is called by another thread, which may be late.
            if error.code != abi::E_EXHAUSTED || Instant::now() > until {
                let seen =
                    format!("after {i} writers that were given up there is no other: {error}");
                return Err(failed_at("blob_abort", seen));
            }
            std::thread::sleep(ABORT_PAUSE);
        }
    }
    store.blob(TENANT, &[b"still works"])?;
    Ok(())
}

pub(crate) fn close(bench: &Bench) -> Done {
    let store = store(bench)?;
    let id = &store.blob(TENANT, &[b"read again and again"])?.id;
    // A store that keeps what was closed runs full.
    for i in 0..CLOSED {
        let until = Instant::now() + ABORT_LIMIT;
        while let Err(error) = store
            .call(format!("reader {i} that is closed"), |store| async move {
                store.blob_open(TENANT, id, 0, 0).await.map(drop)
            })
        {
            // blob_close is called by another thread, which may be late.
            if error.code != abi::E_EXHAUSTED || Instant::now() > until {
                let seen = format!("after {i} readers that were closed there is no other: {error}");
                return Err(failed_at("blob_close", seen));
            }
            std::thread::sleep(ABORT_PAUSE);
        }
    }
    let read = store.range(TENANT, id, 0, 0)?;
    demand(read == b"read again and again", || {
        format!("after {CLOSED} readers that were closed it is read as {read:?}")
    })
}

pub(crate) fn delete(bench: &Bench) -> Done {
    let store = store(bench)?;
    let stat = store.blob(TENANT, &[b"soon gone"])?;
    let id = stat.id.clone();
    let delete = |tenant: &'static str, id: String| {
        store.call(format!("blob_delete for {tenant}"), |store| async move {
            store.blob_delete(tenant, &id).await
        })
    };
    refused(
        "blob_delete",
        "another tenant's blob",
        abi::E_NOT_FOUND,
        delete(OTHER, id.clone()),
    )?;
    store.stat(TENANT, &id)?;
    delete(TENANT, id.clone())?;
    refused(
        "blob_stat",
        "a deleted blob",
        abi::E_NOT_FOUND,
        store.stat(TENANT, &id),
    )?;
    refused(
        "blob_open",
        "a deleted blob",
        abi::E_NOT_FOUND,
        store.range(TENANT, &id, 0, 0),
    )?;
    refused(
        "blob_delete",
        "a deleted blob",
        abi::E_NOT_FOUND,
        delete(TENANT, id),
    )
}

pub(crate) fn ttl(bench: &Bench) -> Done {
    let store = store(bench)?;
    let blob = |ttl_s| {
        let create = BlobCreate {
            ttl_s,
            ..blob_of(TENANT)
        };
        store.call(
            format!("a blob that lives for {ttl_s} s (0: for ever)"),
            |store| async move {
                let mut writer = store.blob_create(create).await?;
                writer.write("mortal").await?;
                writer.commit().await
            },
        )
    };
    let stay = [blob(0)?, blob(LONG_TTL_S)?];
    let id = blob(SHORT_TTL_S)?.id;
    let until = Instant::now() + Duration::from_secs(SHORT_TTL_S) + TTL_LATE_MAX;
    loop {
        match store.stat(TENANT, &id) {
            Ok(_) if Instant::now() < until => std::thread::sleep(TTL_PAUSE),
            ended => break refused("blob_stat", EXPIRED, abi::E_NOT_FOUND, ended)?,
        }
    }
    refused(
        "blob_open",
        EXPIRED,
        abi::E_NOT_FOUND,
        store.range(TENANT, &id, 0, 0),
    )?;
    let deleted = store.call("blob_delete of what has expired", |store| async move {
        store.blob_delete(TENANT, &id).await
    });
    refused("blob_delete", EXPIRED, abi::E_NOT_FOUND, deleted)?;
    for stat in stay {
        let read = store.range(TENANT, &stat.id, 0, 0)?;
        demand(read == b"mortal", || {
            format!("a blob that lives on is read as {} bytes", read.len())
        })?;
    }
    Ok(())
}

pub(crate) fn delete_while_open(bench: &Bench) -> Done {
    let store = store(bench)?;
    let data = bytes((2 << 20) + 5);
    let stat = store.blob(TENANT, &[&data])?;
    let id = stat.id.clone();
    let read: Result<Vec<u8>> = store.call(
        "reading a blob that is deleted meanwhile",
        |store| async move {
            let mut reader = store.blob_open(TENANT, &id, 0, 0).await?;
            let (mut all, mut end) = reader.read(1000).await?;
            store.blob_delete(TENANT, &id).await?;
            while !end {
                let (more, last) = reader.read(1 << 18).await?;
                all.extend(more);
                end = last;
            }
            Ok(all)
        },
    );
    match read {
        Ok(read) => demand(read == data, || {
            format!(
                "an open reader of a deleted blob gives {} other bytes",
                read.len()
            )
        }),
        // It may end; it may not lie.
        Err(error) => refused(
            "blob_read",
            "a deleted blob",
            abi::E_NOT_FOUND,
            Err::<(), _>(error),
        ),
    }
}

pub(crate) fn digests(bench: &Bench) -> Done {
    let store = store(bench)?;
    let mut ids = HashSet::new();
    for size in [0, 1, 100_000, (2 << 20) + 1] {
        let data = bytes(size);
        let committed = store.blob(TENANT, &[&data])?;
        let known = store.stat(TENANT, &committed.id)?;
        for (function, stat) in [("blob_commit", &committed), ("blob_stat", &known)] {
            // Hex digits are capitals or not.
            if !stat.sha256.eq_ignore_ascii_case(&digest(&data)) {
                return Err(failed_at(
                    function,
                    format!(
                        "the sha256 of {size} bytes is said to be {}, and is {}",
                        stat.sha256,
                        digest(&data)
                    ),
                ));
            }
            let whole = stat.kind == "application/octet-stream"
                && stat.owner == "kit"
                && stat.size_bytes == size as u64;
            demand(whole, || format!("{function} says {stat:?}"))?;
        }
        let behind = committed.id.strip_prefix("blob:").map_or(0, str::len);
        demand(
            behind >= ID_BYTES_MIN && committed.id.len() <= ID_BYTES_MAX,
            || {
                format!(
                    "the id {:?} is not \"blob:\" and 128 random bits, in at most {ID_BYTES_MAX} bytes",
                    committed.id
                )
            },
        )?;
        demand(ids.insert(committed.id.clone()), || {
            format!("two blobs have the id {}", committed.id)
        })?;
    }
    Ok(())
}

pub(crate) fn descriptors(bench: &Bench) -> Done {
    strict_umask();
    let store = store(bench)?;
    store.needs(abi::ST_BLOB_FD, "descriptors of blobs")?;
    let data = bytes(100_000);
    let stat = store.blob(TENANT, &[&data])?;
    let (fd, said) = store.call("blob_fd", |store| {
        let id = stat.id.clone();
        async move { store.blob_fd(TENANT, &id).await }
    })?;
    demand(said.size_bytes == stat.size_bytes, || {
        format!("blob_fd says {said:?}")
    })?;
    let file = std::fs::File::from(fd);
    let mut read = vec![0; data.len()];
    file.read_exact_at(&mut read, 0)
        .map_err(|error| failed_at("blob_fd", format!("the descriptor cannot be read: {error}")))?;
    demand(read == data, || "the descriptor gives other bytes".into())?;
    // One that has no name is copied, not mounted.
    let metadata = file
        .metadata()
        .map_err(|error| failed_at("blob_fd", error.to_string()))?;
    if metadata.nlink() > 0 {
        others_read(Path::new("the blob's file"), &metadata)
            .map_err(|error| failed_at("blob_fd", error.to_string()))?;
    }
    demand(file.write_at(b"x", 0).is_err(), || {
        "the descriptor can be written to".into()
    })?;
    let id = stat.id;
    let theirs = store.call("blob_fd for another tenant", |store| async move {
        store.blob_fd(OTHER, &id).await
    });
    refused("blob_fd", "another tenant's blob", abi::E_NOT_FOUND, theirs)
}

pub(crate) fn tenants(bench: &Bench) -> Done {
    let store = store(bench)?;
    let stat = store.blob(TENANT, &[b"mine alone"])?;
    let code = abi::E_NOT_FOUND;
    refused(
        "blob_stat",
        "another tenant's blob",
        code,
        store.stat(OTHER, &stat.id),
    )?;
    refused(
        "blob_open",
        "another tenant's blob",
        code,
        store.range(OTHER, &stat.id, 0, 0),
    )?;
    for id in [
        "blob:",
        "blob:../../x",
        "",
        "blob:aaaaaaaaaaaaaaaaaaaaaaaaaa",
    ] {
        refused(
            "blob_stat",
            &format!("the id {id:?}"),
            code,
            store.stat(TENANT, id),
        )
        .or_else(|stop| {
            // What is no id at all may be refused as such.
            match store.stat(TENANT, id) {
                Err(error) if error.code == abi::E_INVALID_ARGUMENT => Ok(()),
                _ => Err(stop),
            }
        })?;
    }
    Ok(())
}
