//! Blobs that do not stay. That one has expired is decided at every look by its `meta.json`; what is here only frees the disk.
//!
//! A blob with an end leaves an empty file `expires/<minute>/<tenant>/<name>`, durable before the blob is visible. A sweep
//! reads the minutes that have passed and nothing else: a start over 100,000 blobs costs the same as over none.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, unlinkat};
use rustix::io::Errno;
use skillgate_plugin_sdk::Level;

use super::place;
use crate::beneath;
use crate::fault::{Fault, Result};
use crate::ground::{Ground, TARGET};
use crate::names::{BlobName, TenantDir};

const EXPIRES: &str = "expires";
const MINUTE_MS: u64 = 60_000;

/// What one sweep removes at most, so that the call that it is part of ends soon; the next one goes on.
const MAX_SWEPT: usize = 10_000;

/// The first minute that begins after the blob has expired.
fn minute_after(expires_unix_ms: u64) -> u64 {
    expires_unix_ms / MINUTE_MS + 1
}

/// A marker that is taken away again unless its blob has been published.
#[derive(Debug)]
pub(super) struct Marker {
    dir: OwnedFd,
    name: String,
    kept: bool,
}

impl Marker {
    pub(super) fn set(
        ground: &Ground,
        expires_unix_ms: u64,
        tenant: &TenantDir,
        name: &BlobName,
    ) -> Result<Marker> {
        let path = format!(
            "{EXPIRES}/{}/{}",
            minute_after(expires_unix_ms),
            tenant.as_str()
        );
        let dir = ground.ensure_dir(&path)?;
        drop(beneath::create_file(&dir, name.as_str())?);
        let marker = Marker {
            dir,
            name: name.as_str().to_owned(),
            kept: false,
        };
        ground.sync_shared(&marker.dir, &path)?;
        Ok(marker)
    }

    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        if !self.kept {
            // A marker without a blob does no harm: the sweep removes it when its time has come.
            let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// When the last sweep was.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    /// Milliseconds since 1970; 0: not yet.
    last_unix_ms: AtomicU64,
}

impl Expiry {
    pub(super) fn sweep_when_due(&self, ground: &Ground, now_unix_ms: u64) {
        let last = self.last_unix_ms.load(Ordering::Relaxed);
        // A clock that was set back makes it due as well.
        let due = last == 0 || now_unix_ms.abs_diff(last) >= MINUTE_MS;
        let mine = due
            && self
                .last_unix_ms
                .compare_exchange(
                    last,
                    now_unix_ms.max(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if !mine {
            return;
        }
        let mut removed = 0;
        let result = sweep(ground, now_unix_ms, &mut removed);
        if removed > 0 {
            let count = removed.to_string();
            ground.host().log(
                Level::Info,
                TARGET,
                "removed expired blobs",
                &[("count", &count)],
            );
        }
        if let Err(fault) = result {
            ground.warn("could not remove all expired blobs", &fault);
        }
    }
}

fn sweep(ground: &Ground, now_unix_ms: u64, removed: &mut usize) -> Result<()> {
    let Some(all) = open_if_there(ground, EXPIRES)? else {
        return Ok(());
    };
    for (minute, _) in beneath::entries(&all, EXPIRES)? {
        let over = minute
            .parse::<u64>()
            .is_ok_and(|m| m.saturating_mul(MINUTE_MS) <= now_unix_ms);
        if !over {
            continue;
        }
        let path = format!("{EXPIRES}/{minute}");
        let Some(tenants) = open_if_there(ground, &path)? else {
            continue;
        };
        for (tenant, kind) in beneath::entries(&tenants, &path)? {
            if let (FileType::Directory, Some(tenant)) = (kind, TenantDir::from_entry(&tenant)) {
                sweep_tenant(ground, &path, &tenant, removed)?;
            }
            if *removed >= MAX_SWEPT {
                return Ok(());
            }
        }
        ground.remove_empty_dir(EXPIRES, &minute)?;
    }
    Ok(())
}

fn sweep_tenant(
    ground: &Ground,
    minute: &str,
    tenant: &TenantDir,
    removed: &mut usize,
) -> Result<()> {
    let path = format!("{minute}/{}", tenant.as_str());
    let Some(markers) = open_if_there(ground, &path)? else {
        return Ok(());
    };
    let mut done = Vec::new();
    let mut parents = BTreeSet::new();
    for (entry, _) in beneath::entries(&markers, &path)? {
        if *removed + done.len() >= MAX_SWEPT {
            break;
        }
        if let Some(name) = BlobName::parse(&format!("blob:{entry}")) {
            let place = place(tenant, &name);
            if ground.retire(&place.parent, name.as_str(), false)? {
                parents.insert(place.parent);
            }
            done.push(entry);
        }
    }
    // The blobs are gone for good before their markers are: otherwise a power cut could bring back one that no sweep
    // would find.
    for parent in &parents {
        ground.settle(parent)?;
    }
    for entry in &done {
        match unlinkat(&markers, entry, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(Fault::os("remove", &format!("{path}/{entry}"))(errno)),
        }
    }
    *removed += done.len();
    ground.remove_empty_dir(minute, tenant.as_str())
}

fn open_if_there(ground: &Ground, path: &str) -> Result<Option<OwnedFd>> {
    match beneath::open_dir(ground.root(), path) {
        Ok(dir) => Ok(Some(dir)),
        Err(fault) if fault.is_missing() => Ok(None),
        Err(fault) => Err(fault),
    }
}
