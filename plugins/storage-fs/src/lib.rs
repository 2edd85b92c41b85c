//! The bundled storage plugin: skills and blobs in a directory.
//!
//! An instance serves a writable store (`root`), or the operator's own directories of skills (`read_only_skills`), or both.
//!
//! # The writable store
//!
//! ```text
//! root/                                mode 0700: other users of the host do not reach in, whatever the modes below are
//!   lock                               flock of the one process that uses the store; holds its id for the refusal's text
//!   format                             version of this layout; another one is refused, never guessed at
//!   tmp/<random>/                      what is being built or taken away; nobody reads it, every start empties it
//!   tenants/<tenant>/                  a tenant's things and no one else's; the name is encoded so that two never share one
//!     skills/<name>/<version>/         appears by one rename, never changes after that
//!       meta.json                      what a listing needs, the manifest, each file's digest; sealed with a check sum
//!       files/...                      the skill as its author wrote it, ready to be mounted: 0755 and 0644, because a sandbox
//!                                      whose user is nobody else's reads it through a bind mount; held against the digests
//!                                      before it is given out
//!     blobs/<2 letters>/<id>/          two letters of the id (1,024 directories), so that no directory holds every blob
//!       data                           the content, ready to be mounted
//!       chunks                         32 bytes of SHA-256 for each MiB, so that a range is verified without reading the rest;
//!                                      not there when one chunk is all: the digest of the whole is in meta.json
//!       meta.json                      size, digest, type, owner, end of life; sealed with a check sum
//!   expires/<minute>/<tenant>/<id>     empty markers of blobs with an end, so that a sweep looks only at what is due
//! ```
//!
//! Publishing is two steps of which neither can be left out: build in `tmp/` and fsync every file and directory
//! ([`ground::Staging::synced`]); rename without replacing and fsync the directory that it appeared in
//! ([`ground::Durable::publish`]). A kill or a power cut at any point leaves a whole thing or none.
//!
//! What would leave less than `reserve_bytes` or `reserve_inodes` free on the file system is refused, at the beginning and
//! while it is written; each file and directory counts with a block beside its content. What is there is read and deleted as
//! ever. A blob that would take its tenant's over `tenant_blob_bytes` is refused too, and a skill that would take them over
//! `tenant_skill_bytes`.
//!
//! # The read-only shelf
//!
//! `<dir>/<any>/skill.toml` or `<dir>/<name>/<version>/skill.toml`, or `<dir>/skill.toml` for a directory that is one
//! skill; read once at the start. A skill that is not valid is left
//! out and named in the log with file, line and column; one that cannot be read is counted in the health as well. A directory's
//! name of which something was left out is nobody's to publish under.
#![forbid(unsafe_code)]

mod beneath;
mod blobs;
mod clock;
mod config;
mod fault;
mod floor;
mod ground;
mod handles;
mod names;
mod seal;
mod skills;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{
    BlobCreate, BlobStat, Content, CreateRequest, Error, Health, PutSkill, Skill, SkillPage,
    SkillQuery,
};
use skillgate_plugin_sdk::{Host, abi};

use blobs::Blobs;
use config::{CONFIG_SCHEMA, Config};
use fault::{Fault, Result};
use floor::Floor;
use ground::Ground;
use skills::Skills;

pub use blobs::Sweeps;
pub use clock::Clock;
pub use floor::{Free, Space};

skillgate_plugin_sdk::export_plugin! {
    id: "org.skillgate.storage-fs",
    version: env!("CARGO_PKG_VERSION"),
    vendor: "skillgate",
    description: env!("CARGO_PKG_DESCRIPTION"),
    license: "Apache-2.0",
    config_schema: CONFIG_SCHEMA,
    blocking storage: crate::StorageFs,
}

/// The plugin's instance. What each part is for is told at the top of this crate.
pub struct StorageFs {
    skills: Skills,
    writable: Option<Writable>,
}

struct Writable {
    ground: Arc<Ground>,
    blobs: Blobs,
    /// Why the disk has not taken something, and how many things had appeared by then: it knows more of its room than it says,
    /// such as a quota's.
    refused: Mutex<Option<(String, u64)>>,
}

impl Writable {
    /// As long as nothing has appeared since.
    fn refused(&self) -> Option<String> {
        let now = self.ground.publications();
        let refused = self.lock_refused();
        let (why, then) = refused.as_ref()?;
        (*then == now).then(|| why.clone())
    }

    /// What came of a step of storing something.
    fn hear<T>(&self, outcome: &Result<T>) {
        if let Err(fault) = outcome
            && fault.is_of_the_disk()
        {
            *self.lock_refused() = Some((fault.to_string(), self.ground.publications()));
        }
    }

    fn lock_refused(&self) -> MutexGuard<'_, Option<(String, u64)>> {
        // A panic while it was held leaves a text or none.
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for StorageFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StorageFs")
    }
}

/// What a store finds around it, as parameters: tests say it.
pub struct World {
    /// What time it is.
    pub clock: Clock,
    /// What is free.
    pub space: Space,
    /// When expired blobs are looked for.
    pub sweeps: Sweeps,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}

impl StorageFs {
    /// [`Storage::create`] in a world of one's own.
    pub fn within(host: Host, request: &CreateRequest, world: World) -> Result<Self, Error> {
        Ok(Self::open(host, request, world)?)
    }

    fn open(host: Host, request: &CreateRequest, world: World) -> Result<Self> {
        let config = Config::parse(&request.config_json)?;
        let writable = match &config.root {
            None => None,
            Some(root) => {
                let floor = Floor::new(config.reserve, world.space);
                let ground = Arc::new(Ground::open(root, config.fsync, floor, host.clone())?);
                let blobs = Blobs::new(
                    Arc::clone(&ground),
                    world.clock,
                    world.sweeps,
                    config.tenant_blob_bytes,
                )?;
                Some(Writable {
                    ground,
                    blobs,
                    refused: Mutex::default(),
                })
            }
        };
        let ground = writable
            .as_ref()
            .map(|writable| Arc::clone(&writable.ground));
        let skills = Skills::open(
            ground,
            &config.read_only_skills,
            config.tenant_skill_bytes,
            &host,
        )?;
        Ok(StorageFs { skills, writable })
    }

    fn writable(&self) -> Result<&Writable> {
        self.writable.as_ref().ok_or(Fault::Unimplemented(
            "this store keeps no blobs: it has no `root`",
        ))
    }

    fn blobs(&self) -> Result<&Blobs> {
        Ok(&self.writable()?.blobs)
    }
}

impl Storage for StorageFs {
    fn create(host: Host, request: CreateRequest) -> Result<Self, Error> {
        let world = World {
            clock: clock::system(),
            space: floor::of_the_file_system(),
            sweeps: Sweeps::default(),
        };
        Ok(Self::open(host, &request, world)?)
    }

    fn caps(&self) -> u32 {
        match self.writable {
            Some(_) => abi::ST_SKILLS | abi::ST_SKILLS_WRITE | abi::ST_BLOBS | abi::ST_BLOB_FD,
            None => abi::ST_SKILLS,
        }
    }

    fn health(&self) -> Result<Health, Error> {
        let (skills, unread) = (self.skills.count(), self.skills.unread());
        let gone = self.skills.gone();
        let removed = || {
            format!(
                "{gone} directories of skills have been removed since the start: put them back, and start anew"
            )
        };
        let missing = || {
            format!("{unread} skills could not be read at the start, and are missing: see the log")
        };
        let Some(writable) = &self.writable else {
            let (state, message) = match (gone, unread) {
                (0, 0) => (abi::HEALTH_OK, format!("{skills} skills on the shelf")),
                (0, _) => (abi::HEALTH_DEGRADED, missing()),
                _ => (abi::HEALTH_DEGRADED, removed()),
            };
            return Ok(Health {
                state,
                message,
                metrics_json: format!(r#"{{"skills":{skills},"skills_unread":{unread}}}"#),
                ..Health::default()
            });
        };
        let Writable { ground, blobs, .. } = writable;
        let refused = writable.refused();
        let (writers, readers) = (blobs.open_writers(), blobs.open_readers());
        let stuck = blobs.stuck();
        let bytes = blobs
            .bytes()
            .map_or_else(String::new, |n| format!(r#","blob_bytes":{n}"#));
        let room = ground.room();
        let free = [
            ("free_bytes", room.free.bytes),
            ("free_inodes", room.free.inodes),
        ];
        let free: String = free
            .into_iter()
            .filter_map(|(name, n)| Some(format!(r#","{name}":{}"#, n?)))
            .collect();
        let damaged = self.skills.damaged();
        let writes_refused = u8::from(refused.is_some());
        let refused = refused.map(|why| {
            format!(
                "the disk did not take what was to be stored, and nothing was stored since: {why}"
            )
        });
        let lacking = [
            room.low,
            (gone > 0).then(removed),
            (unread > 0).then(missing),
            (damaged > 0).then(|| {
                format!("{damaged} skills or files of them are not what was published: see the log")
            }),
            (stuck > 0).then(|| {
                format!("{stuck} or more of what has expired could not be removed: see the log")
            }),
            // Last, since it stays until somebody stores something, when the disk has long been mended.
            refused,
        ];
        let (state, message) = match (ground.broken(), lacking.into_iter().flatten().next()) {
            (Some(why), _) => (abi::HEALTH_DOWN, why.to_owned()),
            (None, Some(why)) => (abi::HEALTH_DEGRADED, why),
            (None, None) => (abi::HEALTH_OK, format!("{skills} skills")),
        };
        Ok(Health {
            state,
            in_flight: clamp(writers + readers),
            capacity: clamp(Blobs::MAX_WRITERS.saturating_sub(writers)),
            message,
            metrics_json: format!(
                r#"{{"skills":{skills},"skills_unread":{unread},"skills_damaged":{damaged},"open_writers":{writers},"open_readers":{readers},"expired_stuck":{stuck},"writes_refused":{writes_refused}{bytes}{free}}}"#
            ),
            report_json: String::new(),
        })
    }

    fn skill_list(&self, query: &SkillQuery) -> Result<SkillPage, Error> {
        Ok(self.skills.list(query)?)
    }

    fn skill_get(&self, tenant: &str, name: &str, version: &str) -> Result<Skill, Error> {
        Ok(self.skills.get(tenant, name, version)?)
    }

    fn skill_read(
        &self,
        tenant: &str,
        name: &str,
        version: &str,
        path: &str,
    ) -> Result<Content, Error> {
        Ok(self.skills.read(tenant, name, version, path)?)
    }

    fn skill_tree(&self, tenant: &str, name: &str, version: &str) -> Result<Content, Error> {
        Ok(self.skills.tree(tenant, name, version)?)
    }

    fn skill_put(&self, put: &PutSkill) -> Result<Skill, Error> {
        let outcome = self.skills.put(put);
        if let Some(writable) = &self.writable {
            writable.hear(&outcome);
        }
        Ok(outcome?)
    }

    fn blob_create(&self, create: &BlobCreate) -> Result<u64, Error> {
        let writable = self.writable()?;
        let outcome = writable.blobs.create(create);
        writable.hear(&outcome);
        Ok(outcome?)
    }

    fn blob_write(&self, writer: u64, data: &[u8]) -> Result<(), Error> {
        let writable = self.writable()?;
        let outcome = writable.blobs.write(writer, data);
        writable.hear(&outcome);
        Ok(outcome?)
    }

    fn blob_commit(&self, writer: u64) -> Result<BlobStat, Error> {
        let writable = self.writable()?;
        let outcome = writable.blobs.commit(writer);
        writable.hear(&outcome);
        Ok(outcome?)
    }

    fn blob_abort(&self, writer: u64) {
        if let Ok(blobs) = self.blobs() {
            blobs.abort(writer);
        }
    }

    fn blob_stat(&self, tenant: &str, id: &str) -> Result<BlobStat, Error> {
        Ok(self.blobs()?.stat(tenant, id)?)
    }

    fn blob_open(
        &self,
        tenant: &str,
        id: &str,
        offset: u64,
        len: u64,
    ) -> Result<(u64, BlobStat), Error> {
        Ok(self.blobs()?.open(tenant, id, offset, len)?)
    }

    fn blob_read(&self, reader: u64, buf: &mut [u8]) -> Result<(usize, bool), Error> {
        Ok(self.blobs()?.read(reader, buf)?)
    }

    fn blob_close(&self, reader: u64) {
        if let Ok(blobs) = self.blobs() {
            blobs.close(reader);
        }
    }

    fn blob_fd(&self, tenant: &str, id: &str) -> Result<(OwnedFd, BlobStat), Error> {
        Ok(self.blobs()?.fd(tenant, id)?)
    }

    fn blob_delete(&self, tenant: &str, id: &str) -> Result<(), Error> {
        Ok(self.blobs()?.delete(tenant, id)?)
    }
}

fn clamp(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
