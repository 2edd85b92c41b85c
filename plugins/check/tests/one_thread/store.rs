//! A store of blobs that answers later: whatever is asked of it goes to ONE thread, which answers everything. That thread
//! stands for a connection to an object store elsewhere; here the bucket is in its memory. No call waits for another, none
//! has a thread to itself, and none takes a lock.

#![forbid(unsafe_code)]
mod worker;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use skillgate_plugin_sdk::model::{
    BlobCreate, BlobStat, Content, CreateRequest, Error, Health, PutSkill, Result, Skill,
    SkillPage, SkillQuery, SkillRef,
};
use skillgate_plugin_sdk::{BlobBuffer, BlobData, Host, Reply, Storage, abi};

use worker::{Post, Worker};

skillgate_plugin_sdk::export_plugin! {
    id: "org.skillgate.one-thread-store",
    version: env!("CARGO_PKG_VERSION"),
    vendor: "skillgate",
    description: "blobs, all of them served by one thread",
    license: "Apache-2.0",
    config_schema: r#"{"type":"object","additionalProperties":false}"#,
    // Without a last comma, which is as good.
    storage: crate::Store
}

/// Writers, and readers, that are open at once.
const HANDLES_MAX: usize = 1024;
/// Before a number: asked for by so many at once, each is answered.
const TOGETHER: &str = "together:";

// === the calls ===

struct Store(Worker<Bucket>);

fn no_skills<T: 'static>(reply: Reply<T>) {
    reply.fail(Error::new(abi::E_UNIMPLEMENTED, "it keeps blobs alone"));
}

impl Storage for Store {
    fn create(_: Host, _: CreateRequest) -> Result<Self> {
        Worker::start("bucket").map(Store)
    }
    fn caps(&self) -> u32 {
        abi::ST_BLOBS | abi::ST_VOLATILE
    }
    fn health(&self, reply: Reply<Health>) {
        self.0.ask(move |bucket| reply.ok(bucket.health()));
    }
    /// It has none.
    fn skill_list(&self, _: SkillQuery, reply: Reply<SkillPage>) {
        self.0.ask(move |_| reply.ok(SkillPage::default()));
    }
    fn skill_get(&self, _: SkillRef, reply: Reply<Skill>) {
        no_skills(reply);
    }
    fn skill_read(&self, _: SkillRef, _: String, reply: Reply<Content>) {
        no_skills(reply);
    }
    fn skill_tree(&self, _: SkillRef, reply: Reply<Content>) {
        no_skills(reply);
    }
    fn skill_put(&self, _: PutSkill, reply: Reply<Skill>) {
        no_skills(reply);
    }
    fn blob_create(&self, create: BlobCreate, reply: Reply<u64>) {
        self.0
            .ask(move |bucket| reply.finish(bucket.create(create)));
    }
    fn blob_write(&self, writer: u64, data: BlobData) {
        self.0.ask(move |bucket| {
            let written = bucket.write(writer, data.bytes());
            data.finish(written);
        });
    }
    fn blob_commit(&self, writer: u64, reply: Reply<BlobStat>) {
        self.0
            .ask(move |bucket| reply.finish(bucket.commit(writer)));
    }
    fn blob_abort(&self, writer: u64) {
        self.0
            .ask(move |bucket| drop(bucket.writers.remove(&writer)));
    }
    fn blob_stat(&self, tenant: String, id: String, reply: Reply<BlobStat>) {
        if let Some(count) = id.strip_prefix(TOGETHER).and_then(|n| n.parse().ok()) {
            let post = self.0.post();
            return self.0.ask(move |bucket| bucket.meet(count, reply, post));
        }
        self.0.ask(move |bucket| {
            reply.finish(bucket.find(&tenant, &id).map(|blob| blob.stat.clone()))
        });
    }
    fn blob_open(
        &self,
        tenant: String,
        id: String,
        offset: u64,
        len: u64,
        reply: Reply<(u64, BlobStat)>,
    ) {
        self.0
            .ask(move |bucket| reply.finish(bucket.open(&tenant, &id, offset, len)));
    }
    fn blob_read(&self, reader: u64, mut buffer: BlobBuffer) {
        self.0.ask(move |bucket| {
            let read = bucket.read(reader, buffer.room());
            buffer.finish(read);
        });
    }
    fn blob_close(&self, reader: u64) {
        self.0
            .ask(move |bucket| drop(bucket.readers.remove(&reader)));
    }
    fn blob_delete(&self, tenant: String, id: String, reply: Reply<()>) {
        self.0.ask(move |bucket| {
            let found = bucket.find(&tenant, &id).map(drop);
            reply.finish(found.map(|()| drop(bucket.kept.remove(&id))));
        });
    }
}

// === the thread's own ===

struct Blob {
    tenant: String,
    stat: BlobStat,
    data: Vec<u8>,
    expires_unix_ms: Option<u64>,
}

struct Writer {
    create: BlobCreate,
    data: Vec<u8>,
    failed: bool,
}

struct Reader {
    blob: Arc<Blob>,
    at: usize,
    end: usize,
}

#[derive(Default)]
struct Bucket {
    last: u64,
    kept: HashMap<String, Arc<Blob>>,
    writers: HashMap<u64, Writer>,
    readers: HashMap<u64, Reader>,
    /// Those who wait for others, by a number of their own.
    waiting: HashMap<u64, Reply<BlobStat>>,
}

fn now_unix_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// "blob:" and 128 bits from the system.
fn random_id() -> Result<String> {
    let mut bits = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bits));
    read.map_err(|error| Error::new(abi::E_UNAVAILABLE, error.to_string()))?;
    Ok(format!("blob:{}", hex::encode(bits)))
}

impl Bucket {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn health(&self) -> Health {
        Health {
            state: abi::HEALTH_OK,
            in_flight: u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
            ..Health::default()
        }
    }

    /// Keeps the reply until `count` are here: then each is answered. One whose caller leaves is answered at once.
    fn meet(&mut self, count: usize, reply: Reply<BlobStat>, post: Post<Bucket>) {
        let number = self.number();
        reply.on_cancel(move || {
            post.send(move |bucket| {
                if let Some(reply) = bucket.waiting.remove(&number) {
                    reply.fail(Error::new(abi::E_CANCELLED, "nobody waits any more"));
                }
            });
        });
        self.waiting.insert(number, reply);
        if self.waiting.len() == count {
            for (_, reply) in self.waiting.drain() {
                reply.ok(BlobStat {
                    id: "blob:together".into(),
                    ..BlobStat::default()
                });
            }
        }
    }

    fn find(&mut self, tenant: &str, id: &str) -> Result<Arc<Blob>> {
        let now = now_unix_ms();
        self.kept
            .retain(|_, blob| blob.expires_unix_ms.is_none_or(|end| end > now));
        let found = self.kept.get(id).filter(|blob| blob.tenant == tenant);
        found
            .map(Arc::clone)
            .ok_or_else(|| Error::new(abi::E_NOT_FOUND, "there is no such blob"))
    }

    fn create(&mut self, create: BlobCreate) -> Result<u64> {
        if self.writers.len() >= HANDLES_MAX {
            return Err(Error::new(
                abi::E_EXHAUSTED,
                "too many blobs are being written",
            ));
        }
        let writer = Writer {
            create,
            data: Vec::new(),
            failed: false,
        };
        let number = self.number();
        self.writers.insert(number, writer);
        Ok(number)
    }

    fn write(&mut self, writer: u64, data: &[u8]) -> Result<()> {
        let writer = self.writers.get_mut(&writer);
        let writer = writer.ok_or_else(|| Error::new(abi::E_STALE, "there is no such writer"))?;
        let size = writer.data.len() as u64 + data.len() as u64;
        if size > writer.create.max_bytes {
            writer.failed = true;
            return Err(Error::new(abi::E_OUT_OF_RANGE, "more than max_bytes"));
        }
        writer.data.extend_from_slice(data);
        Ok(())
    }

    fn commit(&mut self, writer: u64) -> Result<BlobStat> {
        let writer = self.writers.remove(&writer);
        let writer = writer.ok_or_else(|| Error::new(abi::E_STALE, "there is no such writer"))?;
        if writer.failed {
            return Err(Error::new(
                abi::E_PRECONDITION,
                "a write to this blob failed",
            ));
        }
        let create = writer.create;
        let created_unix_ms = now_unix_ms();
        let stat = BlobStat {
            id: random_id()?,
            kind: create.kind,
            size_bytes: writer.data.len() as u64,
            sha256: hex::encode(Sha256::digest(&writer.data)),
            owner: create.owner,
            created_unix_ms,
        };
        let end = created_unix_ms.saturating_add(create.ttl_s.saturating_mul(1000));
        let blob = Blob {
            tenant: create.tenant,
            stat: stat.clone(),
            data: writer.data,
            expires_unix_ms: (create.ttl_s != 0).then_some(end),
        };
        self.kept.insert(stat.id.clone(), Arc::new(blob));
        Ok(stat)
    }

    fn open(&mut self, tenant: &str, id: &str, offset: u64, len: u64) -> Result<(u64, BlobStat)> {
        let blob = self.find(tenant, id)?;
        let size = blob.stat.size_bytes;
        if offset > size {
            return Err(Error::new(
                abi::E_OUT_OF_RANGE,
                "the offset is beyond the end",
            ));
        }
        if self.readers.len() >= HANDLES_MAX {
            return Err(Error::new(
                abi::E_EXHAUSTED,
                "too many blobs are being read",
            ));
        }
        let end = if len == 0 {
            size
        } else {
            offset.saturating_add(len).min(size)
        };
        let (number, stat) = (self.number(), blob.stat.clone());
        let reader = Reader {
            blob,
            at: offset as usize,
            end: end as usize,
        };
        self.readers.insert(number, reader);
        Ok((number, stat))
    }

    fn read(&mut self, reader: u64, room: &mut [u8]) -> Result<(usize, bool)> {
        let reader = self.readers.get_mut(&reader);
        let reader = reader.ok_or_else(|| Error::new(abi::E_STALE, "there is no such reader"))?;
        let n = room.len().min(reader.end - reader.at);
        room[..n].copy_from_slice(&reader.blob.data[reader.at..reader.at + n]);
        reader.at += n;
        Ok((n, reader.at == reader.end))
    }
}
