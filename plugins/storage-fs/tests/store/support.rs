//! Stores to test, things to put into them, and what they should look like afterwards.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sha2::{Digest, Sha256};
use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{
    BlobCreate, BlobStat, Content, CreateRequest, Error, PutSkill, Skill,
};
use skillgate_plugin_sdk::{Host, abi};
use skillgate_storage_fs::{Free, Space, StorageFs, Sweeps, World};

/// A place of its own for a test's store, its log records, and its clock.
pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) logs: Arc<Mutex<Vec<String>>>,
    /// There is one more.
    logged: Arc<Condvar>,
    pub(crate) now_ms: Arc<AtomicU64>,
    /// What the file system says is free.
    pub(crate) free_bytes: Arc<AtomicU64>,
    pub(crate) free_inodes: Arc<AtomicU64>,
    /// How often it was asked.
    pub(crate) looks: Arc<AtomicU64>,
    /// A test's store sweeps at its start alone, unless the test says otherwise.
    pub(crate) sweeps: Sweeps,
}

/// Waiting beyond this is a failure, also on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A login's 1024 are as many as one store may have open; here many stores are beside each other.
fn allow_all_files() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, all).unwrap();
}

fn with(logs: &[String], part: &str) -> usize {
    logs.iter().filter(|line| line.contains(part)).count()
}

impl Bench {
    pub(crate) fn new() -> Bench {
        allow_all_files();
        Bench {
            dir: tempfile::tempdir().unwrap(),
            logs: Arc::default(),
            logged: Arc::default(),
            now_ms: Arc::new(AtomicU64::new(1_800_000_000_000)),
            free_bytes: Arc::new(AtomicU64::new(u64::MAX)),
            free_inodes: Arc::new(AtomicU64::new(u64::MAX)),
            looks: Arc::default(),
            sweeps: Sweeps {
                after: Duration::ZERO,
                every: Duration::from_secs(3600),
            },
        }
    }

    /// In memory where there is room: for tests that make very many files and ask nothing of the disk.
    pub(crate) fn in_memory() -> Bench {
        let shm = Path::new("/dev/shm");
        let roomy = rustix::fs::statvfs(shm)
            .is_ok_and(|vfs| vfs.f_bavail * vfs.f_frsize > 512 * 1024 * 1024);
        match roomy.then(|| tempfile::tempdir_in(shm)) {
            Some(Ok(dir)) => Bench {
                dir,
                ..Bench::new()
            },
            _ => Bench::new(),
        }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// A store that does not wait for the disk: most tests do not cut the power.
    pub(crate) fn store(&self) -> StorageFs {
        self.create(&format!(r#"{{"root": {:?}, "fsync": false}}"#, self.root()))
            .unwrap()
    }

    pub(crate) fn create(&self, config: &str) -> Result<StorageFs, Error> {
        let free = [&self.free_bytes, &self.free_inodes].map(Arc::clone);
        let looks = Arc::clone(&self.looks);
        let space: Space = Arc::new(move |_| {
            looks.fetch_add(1, Ordering::Relaxed);
            let [bytes, inodes] = free.each_ref().map(|n| Some(n.load(Ordering::Relaxed)));
            Ok(Free {
                bytes,
                inodes,
                is_read_only: false,
            })
        });
        self.create_on(config, space)
    }

    /// On a file system with this much free space.
    pub(crate) fn create_on(&self, config: &str, space: Space) -> Result<StorageFs, Error> {
        let (logs, logged) = (Arc::clone(&self.logs), Arc::clone(&self.logged));
        let host = Host::for_tests(move |level, _, message, fields| {
            logs.lock()
                .unwrap()
                .push(format!("{level:?} {message} {fields:?}"));
            logged.notify_all();
        });
        let now = Arc::clone(&self.now_ms);
        let request = CreateRequest {
            config_json: config.as_bytes().to_vec(),
            ..CreateRequest::default()
        };
        let asked = Arc::new(OnceLock::new());
        let ask = Arc::clone(&asked);
        let world = World {
            clock: Arc::new(move || {
                let now = now.load(Ordering::Relaxed);
                ask.get_or_init(|| ());
                now
            }),
            space,
            sweeps: self.sweeps,
        };
        let store = StorageFs::within(host, &request, world)?;
        if store.caps() & abi::ST_BLOBS != 0 {
            // The sweep of the start is one of this time, however late it comes.
            asked.wait();
        }
        Ok(store)
    }

    pub(crate) fn pass_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    pub(crate) fn logged(&self, part: &str) -> bool {
        self.logs
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains(part))
    }

    /// How many records have this in them.
    pub(crate) fn count_logged(&self, part: &str) -> usize {
        with(&self.logs.lock().unwrap(), part)
    }

    /// Waits until there are so many.
    pub(crate) fn wait_until_logged(&self, part: &str, times: usize) {
        let fewer = |logs: &mut Vec<String>| with(logs, part) < times;
        let logs = self.logs.lock().unwrap();
        let waited = self.logged.wait_timeout_while(logs, PATIENCE, fewer);
        let (logs, waited) = waited.unwrap();
        assert!(!waited.timed_out(), "{part}: {logs:?}");
    }

    /// What lies in tmp/.
    pub(crate) fn in_tmp(&self) -> usize {
        count(&self.root().join("tmp"))
    }

    /// The directory of a blob.
    pub(crate) fn blob_dir(&self, tenant: &str, id: &str) -> PathBuf {
        let name = id.strip_prefix("blob:").unwrap();
        self.root()
            .join("tenants")
            .join(tenant)
            .join("blobs")
            .join(&name[..2])
            .join(name)
    }
}

/// `SKILLGATE_TEST_EXHAUSTIVE=1`: every point of a crash and a whole gibibyte, for minutes instead of seconds.
pub(crate) fn exhaustive() -> bool {
    std::env::var_os("SKILLGATE_TEST_EXHAUSTIVE").is_some()
}

pub(crate) fn count(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

pub(crate) fn hex_digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Bytes that look random and are the same every time.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A skill with a few files in a few directories.
pub(crate) fn skill(tenant: &str, name: &str, version: &str, content: &[u8]) -> PutSkill {
    let files = [
        ("SKILL.md", "---\nname: x\n---\n# x\n".as_bytes()),
        ("code/lib/deep.py", b"x = 1\n"),
        ("code/main.py", content),
        ("skill.toml", b"name = \"x\"\n"),
    ];
    put_of(tenant, name, version, &files)
}

pub(crate) fn put_of(tenant: &str, name: &str, version: &str, files: &[(&str, &[u8])]) -> PutSkill {
    let files: Vec<(String, Vec<u8>)> = files
        .iter()
        .map(|(p, d)| ((*p).to_owned(), d.to_vec()))
        .collect();
    PutSkill {
        tenant: tenant.to_owned(),
        name: name.to_owned(),
        version: version.to_owned(),
        namespace: name.split('.').next().unwrap().to_owned(),
        kind: "action".to_owned(),
        description: "does x".to_owned(),
        publisher: "alice".to_owned(),
        tree_sha256: tree_digest(&files),
        manifest_json: format!(r#"{{"name": "{name}", "version": "{version}"}}"#).into_bytes(),
        files,
    }
}

/// The contract's words, not the crate's function.
pub(crate) fn tree_digest(files: &[(String, Vec<u8>)]) -> String {
    let text: String = files
        .iter()
        .map(|(path, data)| format!("{path}\0{}\n", hex_digest(data)))
        .collect();
    hex_digest(text.as_bytes())
}

/// Every file of a stored skill, read through the store; the digest of the whole has to fit.
pub(crate) fn read_skill(store: &StorageFs, tenant: &str, skill: &Skill) -> Vec<(String, Vec<u8>)> {
    let skill = store
        .skill_get(tenant, &skill.name, &skill.version)
        .unwrap();
    let files: Vec<(String, Vec<u8>)> = skill
        .files
        .iter()
        .map(|file| {
            let data = data(
                store
                    .skill_read(tenant, &skill.name, &skill.version, &file.path)
                    .unwrap(),
            );
            assert_eq!(data.len() as u64, file.size_bytes);
            assert_eq!(hex_digest(&data), file.sha256);
            (file.path.clone(), data)
        })
        .collect();
    assert_eq!(tree_digest(&files), skill.tree_sha256);
    files
}

pub(crate) fn data(content: Content) -> Vec<u8> {
    match content {
        Content::Data(data) => data,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn blob_of(tenant: &str) -> BlobCreate {
    BlobCreate {
        tenant: tenant.to_owned(),
        kind: "application/octet-stream".to_owned(),
        owner: "alice".to_owned(),
        run_id: String::new(),
        max_bytes: 1 << 40,
        ttl_s: 0,
    }
}

/// Writes in pieces of a size that divides nothing.
pub(crate) fn store_blob(
    store: &StorageFs,
    create: &BlobCreate,
    content: &[u8],
) -> Result<BlobStat, Error> {
    let writer = store.blob_create(create)?;
    for piece in content.chunks(300_007) {
        if let Err(error) = store.blob_write(writer, piece) {
            store.blob_abort(writer);
            return Err(error);
        }
    }
    store.blob_commit(writer)
}

pub(crate) fn read_range(
    store: &StorageFs,
    tenant: &str,
    id: &str,
    offset: u64,
    len: u64,
) -> Result<Vec<u8>, Error> {
    let (reader, _) = store.blob_open(tenant, id, offset, len)?;
    let mut all = Vec::new();
    let mut buf = vec![0; 100_003];
    let result = loop {
        match store.blob_read(reader, &mut buf) {
            Ok((n, end)) => {
                all.extend_from_slice(&buf[..n]);
                if end {
                    break Ok(all);
                }
            }
            Err(error) => break Err(error),
        }
    };
    store.blob_close(reader);
    result
}

pub(crate) fn read_blob(store: &StorageFs, tenant: &str, id: &str) -> Result<Vec<u8>, Error> {
    read_range(store, tenant, id, 0, 0)
}
