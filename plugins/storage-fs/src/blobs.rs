//! Blobs: large data of a tenant, written once as a stream, read in ranges, every byte checked on its way out.
//!
//! A blob is a directory: `data`; `meta.json`, sealed, with the SHA-256 of the whole; and, when it is larger than one chunk,
//! `chunks` with 32 bytes of SHA-256 for every [`CHUNK_BYTES`], so that a range is verified without reading the rest.

mod census;
mod expiry;
mod quota;
mod reader;
mod writer;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use skillgate_plugin_sdk::model::{BlobCreate, BlobStat};

use crate::beneath;
use crate::clock::{Clock, SET_FROM_MS};
use crate::fault::{Fault, Result};
use crate::floor::Size;
use crate::ground::{Ground, Published};
use crate::handles::Handles;
use crate::names::{BlobName, TenantDir};
use crate::seal::{self, META_FILE};

use census::Census;
use expiry::Sweeper;
use quota::Quota;
use reader::{KeptChunks, Reader, Verified, damaged};
use writer::Writer;

pub use expiry::Sweeps;

/// What one digest in `chunks` is about, and the most that a reader holds in memory.
pub(crate) const CHUNK_BYTES: usize = 1024 * 1024;

/// Blobs being read at once. Each holds one descriptor or two.
const MAX_READERS: usize = 1024;

/// A blob of which nothing is known: its directory and three files, the marker of its end, and the directories above both, which
/// may not be there.
const SIZE_BEFORE: Size = Size {
    bytes: 0,
    inodes: 12,
};

const DATA_FILE: &str = "data";
const CHUNKS_FILE: &str = "chunks";
const DIGEST_BYTES: usize = 32;

/// `meta.json` of a blob.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct BlobMeta {
    tenant: String,
    id: String,
    kind: String,
    owner: String,
    /// The run that made it, or empty.
    run_id: String,
    size_bytes: u64,
    sha256: String,
    created_unix_ms: u64,
    /// 0: never.
    expires_unix_ms: u64,
}

impl BlobMeta {
    fn stat(&self) -> BlobStat {
        BlobStat {
            id: self.id.clone(),
            kind: self.kind.clone(),
            size_bytes: self.size_bytes,
            sha256: self.sha256.clone(),
            owner: self.owner.clone(),
            created_unix_ms: self.created_unix_ms,
        }
    }

    fn is_expired(&self, now_unix_ms: u64) -> bool {
        self.expires_unix_ms != 0 && self.expires_unix_ms <= now_unix_ms
    }
}

/// The blobs of all tenants of a store.
pub(crate) struct Blobs {
    ground: Arc<Ground>,
    clock: Clock,
    writers: Handles<Writer>,
    readers: Handles<Reader>,
    kept: Arc<KeptChunks>,
    verified: Verified,
    sweeper: Sweeper,
    census: Census,
    quota: Option<Arc<Quota>>,
}

/// Where a blob of a tenant is: the directory above it, and the whole path.
struct Place {
    parent: String,
    path: String,
}

fn place(tenant: &TenantDir, name: &BlobName) -> Place {
    let parent = format!("tenants/{}/blobs/{}", tenant.as_str(), name.prefix());
    let path = format!("{parent}/{}", name.as_str());
    Place { parent, path }
}

/// One answer for what is not there, not well-formed, expired, or somebody else's.
fn no_blob() -> Fault {
    Fault::NotFound("there is no such blob".to_owned())
}

impl Blobs {
    /// Blobs being written at once. Each holds two descriptors or three.
    pub(crate) const MAX_WRITERS: usize = 1024;

    /// `tenant_bytes`: what the blobs of one tenant may take, and 0 for any amount.
    pub(crate) fn new(
        ground: Arc<Ground>,
        clock: Clock,
        sweeps: Sweeps,
        tenant_bytes: u64,
    ) -> Result<Blobs> {
        let sweeper = Sweeper::start(Arc::clone(&ground), Arc::clone(&clock), sweeps)?;
        let quota = Quota::new(Arc::clone(&ground), Arc::clone(&clock), tenant_bytes);
        Ok(Blobs {
            quota,
            ground,
            clock,
            writers: Handles::new("the blob's writer is not open", Self::MAX_WRITERS),
            readers: Handles::new("the blob's reader is not open", MAX_READERS),
            kept: Arc::default(),
            verified: Verified::default(),
            sweeper,
            census: Census::default(),
        })
    }

    pub(crate) fn create(&self, create: &BlobCreate) -> Result<u64> {
        let tenant = TenantDir::new(&create.tenant)?;
        if create.ttl_s != 0 {
            // Before anything is sent for nothing.
            self.set_time()?;
        }
        self.writers.check_room(&tenant)?;
        let quota = self.quota.as_ref();
        let part = quota
            .map(|quota| quota.begin(&tenant, create.ttl_s != 0))
            .transpose()?;
        let staging = self.ground.stage(SIZE_BEFORE)?;
        let writer = Writer::new(staging, tenant.clone(), create, part)?;
        self.writers.insert(&tenant, writer)
    }

    pub(crate) fn write(&self, writer: u64, data: &[u8]) -> Result<()> {
        self.writers.with(writer, |writer| writer.write(data))
    }

    pub(crate) fn commit(&self, writer: u64) -> Result<BlobStat> {
        let (mut staging, tenant, mut meta, part) = self.writers.take(writer)?.finish()?;
        let name = BlobName::random()?;
        meta.id = name.id();
        meta.created_unix_ms = match meta.expires_unix_ms {
            0 => (self.clock)(),
            _ => self.set_time()?,
        };
        if meta.expires_unix_ms != 0 {
            meta.expires_unix_ms = meta.created_unix_ms.saturating_add(meta.expires_unix_ms);
        }
        staging.write(META_FILE, &seal::seal(&meta)?)?;
        let marker = match meta.expires_unix_ms {
            0 => None,
            at => Some(self.sweeper.mark(&self.ground, at, &tenant, &name)?),
        };
        let publish = || {
            let parent = place(&tenant, &name).parent;
            match staging.synced()?.publish(&parent, name.as_str())? {
                Published::Done => Ok(()),
                // 130 random bits do not repeat; if they do, randomness is broken and nothing is overwritten.
                Published::Exists => Err(Fault::Unavailable(
                    "a new blob's random name was taken".to_owned(),
                )),
            }
        };
        match part {
            Some(part) => part.publish(publish)?,
            None => publish()?,
        }
        if let Some(marker) = marker {
            marker.keep();
        }
        Ok(meta.stat())
    }

    /// What time it is, if that can be reckoned with.
    fn set_time(&self) -> Result<u64> {
        let now = (self.clock)();
        if now < SET_FROM_MS {
            return Err(Fault::NotYet(
                "this machine's clock is not set, and a blob with an end is not taken before it is",
            ));
        }
        Ok(now)
    }

    pub(crate) fn abort(&self, writer: u64) {
        // Dropping a writer removes what it has written.
        drop(self.writers.take(writer));
    }

    pub(crate) fn stat(&self, tenant: &str, id: &str) -> Result<BlobStat> {
        self.find(tenant, id).map(|(meta, _)| meta.stat())
    }

    pub(crate) fn open(
        &self,
        tenant: &str,
        id: &str,
        offset: u64,
        len: u64,
    ) -> Result<(u64, BlobStat)> {
        let (meta, place) = self.find(tenant, id)?;
        let tenant = TenantDir::new(tenant)?;
        self.readers.check_room(&tenant)?;
        let stat = meta.stat();
        let reader = Reader::open(&self.ground, &place.path, &stat, offset, len, &self.kept)?;
        Ok((self.readers.insert(&tenant, reader)?, stat))
    }

    pub(crate) fn read(&self, reader: u64, buf: &mut [u8]) -> Result<(usize, bool)> {
        self.readers.with(reader, |reader| reader.read(buf))
    }

    pub(crate) fn close(&self, reader: u64) {
        drop(self.readers.take(reader));
    }

    pub(crate) fn fd(&self, tenant: &str, id: &str) -> Result<(OwnedFd, BlobStat)> {
        let (meta, place) = self.find(tenant, id)?;
        let stat = meta.stat();
        let fd = self.verified.open(&self.ground, &place.path, &stat)?;
        Ok((fd, stat))
    }

    pub(crate) fn delete(&self, tenant: &str, id: &str) -> Result<()> {
        let place = match self.find(tenant, id) {
            Ok((_, place)) => place,
            // It cannot be read, but it can be got rid of.
            Err(Fault::Corrupt(_)) => {
                let name = BlobName::parse(id).ok_or_else(no_blob)?;
                place(&TenantDir::new(tenant)?, &name)
            }
            Err(fault) => return Err(fault),
        };
        let name = place.path.rsplit('/').next().unwrap_or_default();
        if self.ground.retire(&place.parent, name, true)? {
            Ok(())
        } else {
            Err(no_blob())
        }
    }

    /// How much of what has expired could not be removed, the last time.
    pub(crate) fn stuck(&self) -> usize {
        self.sweeper.stuck()
    }

    /// Bytes of content, as far as they have been counted.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.census.bytes(&self.ground, &self.clock)
    }

    pub(crate) fn open_writers(&self) -> usize {
        self.writers.len()
    }

    pub(crate) fn open_readers(&self) -> usize {
        self.readers.len()
    }

    fn find(&self, tenant: &str, id: &str) -> Result<(BlobMeta, Place)> {
        let dir = TenantDir::new(tenant)?;
        let name = BlobName::parse(id).ok_or_else(no_blob)?;
        let place = place(&dir, &name);
        let meta: BlobMeta = match seal::read(self.ground.root(), &place.path) {
            Ok(meta) => meta,
            // The blob is there and its meta.json is not: that is damage, not absence.
            Err(fault) if fault.is_missing() => {
                return match beneath::open_dir(self.ground.root(), &place.path) {
                    Ok(_) => Err(Fault::Corrupt(format!(
                        "{}: {META_FILE} is missing",
                        place.path
                    ))),
                    Err(fault) => Err(fault.or_not_found(|| "there is no such blob".to_owned())),
                };
            }
            Err(fault) => return Err(damaged(&place.path)(fault)),
        };
        if meta.id != id || meta.tenant != tenant {
            return Err(Fault::Corrupt(format!(
                "{}: it is about another blob or tenant",
                place.path
            )));
        }
        if meta.is_expired((self.clock)()) {
            return Err(no_blob());
        }
        Ok((meta, place))
    }
}
