//! What the blobs of one tenant may take together (`tenant_blob_bytes`).
//!
//! What is there is counted by looking: before the first blob that comes after a start, and again before one is refused. So
//! nobody need be told of what expires, is deleted, or is taken away by an operator; between two counts only what is added
//! is added up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use super::{CHUNK_BYTES, DATA_FILE, DIGEST_BYTES};
use crate::beneath;
use crate::clock::Clock;
use crate::fault::{Fault, Result};
use crate::floor::BLOCK_BYTES;
use crate::ground::Ground;
use crate::names::TenantDir;

/// Beside its content: the end of its last block, its directory and its record. They take room and inodes too, and a tenant that
/// stores very many small ones would have all of these without it.
const BESIDE_BYTES: u64 = 3 * BLOCK_BYTES;
/// As long as nothing has been removed by this store, a tenant is counted again after so long: somebody else may have.
const COUNT_EVERY_MS: u64 = 60_000;

/// Of all tenants.
pub(super) struct Quota {
    ground: Arc<Ground>,
    clock: Clock,
    tenant_bytes: u64,
    tenants: Mutex<HashMap<TenantDir, Arc<Tenant>>>,
}

#[derive(Debug, Default)]
struct Tenant {
    used: Mutex<Used>,
    /// Shared by those who publish, and alone for who counts: what is just being published is counted once.
    publishing: RwLock<()>,
}

#[derive(Debug, Default)]
struct Used {
    count: Option<Count>,
    /// Of blobs that are being written.
    open_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    /// What was there, and what has been published since.
    bytes: u64,
    at_ms: u64,
    /// [`Ground::removals`] before it.
    removals: u64,
}

/// What a blob that is being written takes of its tenant's quota. Given back when it is dropped.
pub(super) struct Part {
    quota: Arc<Quota>,
    tenant: Arc<Tenant>,
    dir: TenantDir,
    bytes: u64,
    /// Whether the blob has an end.
    expires: bool,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// A panic while it was held leaves numbers, each of them valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Quota {
    /// `None`: there is none.
    pub(super) fn new(ground: Arc<Ground>, clock: Clock, tenant_bytes: u64) -> Option<Arc<Self>> {
        (tenant_bytes > 0).then(|| {
            Arc::new(Quota {
                ground,
                clock,
                tenant_bytes,
                tenants: Mutex::default(),
            })
        })
    }

    /// For a new blob. `expires`: whether it has an end, as those of a gateway all have, or none.
    pub(super) fn begin(self: &Arc<Self>, dir: &TenantDir, expires: bool) -> Result<Part> {
        let tenant = lock(&self.tenants).entry(dir.clone()).or_default().clone();
        let mut part = Part {
            quota: Arc::clone(self),
            tenant,
            dir: dir.clone(),
            bytes: 0,
            expires,
        };
        part.grow(0)?;
        Ok(part)
    }

    fn count(&self, tenant: &Tenant, dir: &TenantDir) -> Result<()> {
        let _alone = tenant
            .publishing
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let (at_ms, removals) = ((self.clock)(), self.ground.removals());
        let is_new = |count: Count| {
            count.removals == removals && at_ms.abs_diff(count.at_ms) < COUNT_EVERY_MS
        };
        if lock(&tenant.used).count.is_some_and(is_new) {
            return Ok(());
        }
        let bytes = bytes_of(&self.ground, dir)?;
        lock(&tenant.used).count = Some(Count {
            bytes,
            at_ms,
            removals,
        });
        Ok(())
    }
}

impl Part {
    /// The blob is going to have so many bytes.
    pub(super) fn grow(&mut self, size_bytes: u64) -> Result<()> {
        let adding = takes(size_bytes).saturating_sub(self.bytes);
        if adding == 0 || self.take(adding) {
            return Ok(());
        }
        self.quota.count(&self.tenant, &self.dir)?;
        if self.take(adding) {
            return Ok(());
        }
        Err(Fault::BlobsOfTenant {
            why: format!(
                "the blobs of this tenant would take more than the {} bytes that they may (tenant_blob_bytes): store less, \
                 or ask the operator for room",
                self.quota.tenant_bytes
            ),
            expire: self.expires,
        })
    }

    fn take(&mut self, adding: u64) -> bool {
        let mut used = lock(&self.tenant.used);
        let Some(count) = used.count else {
            return false;
        };
        let all = count.bytes.saturating_add(used.open_bytes);
        if all.saturating_add(adding) > self.quota.tenant_bytes {
            return false;
        }
        used.open_bytes += adding;
        self.bytes += adding;
        true
    }

    /// The blob becomes visible, and stays.
    pub(super) fn publish<T>(mut self, publish: impl FnOnce() -> Result<T>) -> Result<T> {
        let tenant = Arc::clone(&self.tenant);
        let _shared = tenant
            .publishing
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let published = publish()?;
        let bytes = std::mem::take(&mut self.bytes);
        let mut used = lock(&tenant.used);
        used.open_bytes -= bytes;
        if let Some(count) = &mut used.count {
            count.bytes += bytes;
        }
        Ok(published)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        lock(&self.tenant.used).open_bytes -= self.bytes;
    }
}

/// What a blob of that size counts for: at least what the disk gives for it, where blocks have [`BLOCK_BYTES`].
fn takes(size_bytes: u64) -> u64 {
    let chunks = match size_bytes.div_ceil(CHUNK_BYTES as u64) {
        0 | 1 => 0,
        several => BLOCK_BYTES + several * DIGEST_BYTES as u64,
    };
    size_bytes.saturating_add(BESIDE_BYTES + chunks)
}

/// Bytes of the blobs that a tenant has.
fn bytes_of(ground: &Ground, dir: &TenantDir) -> Result<u64> {
    let all = format!("tenants/{}/blobs", dir.as_str());
    let mut bytes = 0_u64;
    for prefix in directories(ground, &all)? {
        let path = format!("{all}/{prefix}");
        for blob in directories(ground, &path)? {
            let data = format!("{path}/{blob}/{DATA_FILE}");
            match statat(ground.root(), &data, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    let size = u64::try_from(stat.st_size).unwrap_or(0);
                    bytes = bytes.saturating_add(takes(size));
                }
                // It has gone meanwhile.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(Fault::os("stat", &data)(errno)),
            }
        }
    }
    Ok(bytes)
}

fn directories(ground: &Ground, path: &str) -> Result<Vec<String>> {
    match beneath::open_dir(ground.root(), path) {
        Ok(dir) => beneath::directories(dir, path),
        Err(fault) if fault.is_missing() => Ok(Vec::new()),
        Err(fault) => Err(fault),
    }
}
