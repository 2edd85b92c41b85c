//! What the header asks of a store, asked of the example in C (`plugins/example-c/store.c`), from the outside.

mod blobs;
mod limits;
mod skills;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::ISOLATION;
use crate::support::{self, compile, config};
use skillgate_plugin_host::StorageInstance;
use skillgate_plugin_host::model::{BlobCreate, Content, PutSkill, Result, SkillQuery};

/// The example, built as strictly as a vendor's compiler can be asked to, with `options`: once for all tests, where cargo
/// keeps what tests make.
fn built_with(options: &[&str]) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let options = [
        &["-Wpedantic", "-pthread"],
        options,
        sanitizers::asked_for(),
    ]
    .concat();
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let file = built.entry(options.join(" ")).or_insert_with_key(|key| {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let made = compile("../example-c/store.c", dir.path(), "store", &options);
        // Another test process may be doing the same: the last one stays, and each is whole.
        let name = format!("example-store-{}.so", &hex_digest(key.as_bytes())[..16]);
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::rename(made, &file).unwrap();
        file
    });
    file.clone()
}

async fn store_built_with(options: &[&str]) -> Arc<StorageInstance> {
    support::open(&built_with(options), ISOLATION)
        .storage(config("{}"))
        .await
        .unwrap()
}

async fn store() -> Arc<StorageInstance> {
    store_built_with(&[]).await
}

/// Lets go of a store and waits until it has given everything back.
async fn end(store: Arc<StorageInstance>) {
    store.shutdown().await.unwrap();
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.unwrap_err().code
}

fn hex_digest(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    hex::encode(Sha256::digest(bytes))
}

/// Bytes that repeat nowhere.
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A skill as the gateway would publish it.
fn skill_of(tenant: &str, name: &str, version: &str, files: &[(&str, &[u8])]) -> PutSkill {
    let line = |(path, data): &(&str, &[u8])| format!("{path}\0{}\n", hex_digest(data));
    let tree: String = files.iter().map(line).collect();
    PutSkill {
        tenant: tenant.into(),
        name: name.into(),
        version: version.into(),
        namespace: name.split('.').next().unwrap().into(),
        kind: "action".into(),
        description: "does ä".into(),
        publisher: "alice".into(),
        tree_sha256: hex_digest(tree.as_bytes()),
        manifest_json: format!(r#"{{"name":"{name}"}}"#).into_bytes(),
        files: files
            .iter()
            .map(|(path, data)| ((*path).to_owned(), data.to_vec()))
            .collect(),
    }
}

fn small(tenant: &str, name: &str, version: &str) -> PutSkill {
    skill_of(
        tenant,
        name,
        version,
        &[("SKILL.md", b"# x\n"), ("skill.toml", b"")],
    )
}

fn data(content: Content) -> Vec<u8> {
    match content {
        Content::Data(data) => data,
        other => panic!("{other:?}"),
    }
}

/// `name@version` of each skill from a place on, asked for `limit` at a time.
async fn listed(
    store: &StorageInstance,
    tenant: &str,
    namespace: &str,
    after: (&str, &str, &str),
    limit: u32,
) -> Vec<String> {
    let mut query = SkillQuery {
        limit,
        tenant: tenant.into(),
        namespace: namespace.into(),
        ..SkillQuery::default()
    };
    (query.after.namespace, query.after.name, query.after.version) =
        (after.0.into(), after.1.into(), after.2.into());
    let mut found = Vec::new();
    loop {
        let page = store.skill_list(query.clone()).await.unwrap();
        assert!(page.skills.len() <= limit as usize);
        for skill in &page.skills {
            assert!(skill.files.is_empty() && skill.manifest_json.is_empty());
            found.push(format!("{}@{}", skill.name, skill.version));
        }
        if !page.more {
            return found;
        }
        let last = page.skills.last().expect("more after nothing");
        query.after.namespace.clone_from(&last.namespace);
        query.after.name.clone_from(&last.name);
        query.after.version.clone_from(&last.version);
    }
}

fn blob_of(tenant: &str) -> BlobCreate {
    BlobCreate {
        tenant: tenant.into(),
        kind: "text/csv".into(),
        owner: "alice".into(),
        run_id: String::new(),
        max_bytes: 1 << 40,
        ttl_s: 0,
    }
}

/// Writes in pieces of a size that divides nothing; gives the blob's id.
async fn put_blob(store: &StorageInstance, tenant: &str, content: &[u8]) -> Result<String> {
    let mut writer = store.blob_create(blob_of(tenant)).await?;
    for piece in content.chunks(300_007) {
        writer.write(piece.to_vec()).await?;
    }
    Ok(writer.commit().await?.id)
}

/// Waits until no writer and no reader is open: who lets go of one does not wait for its end.
async fn settled(store: &StorageInstance) {
    let waiting = async {
        while store.health().await.unwrap().in_flight > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .expect("writers and readers end");
}

async fn read_blob(
    store: &StorageInstance,
    tenant: &str,
    id: &str,
    offset: u64,
    len: u64,
) -> Result<Vec<u8>> {
    let mut reader = store.blob_open(tenant, id, offset, len).await?;
    let mut all = Vec::new();
    loop {
        let (bytes, end) = reader.read(100_003).await?;
        all.extend_from_slice(&bytes);
        if end {
            return Ok(all);
        }
    }
}

/// The same tests once more, in a process in which every access of the C code is checked, and at whose end nothing may be
/// left of what it took.
mod sanitizers {
    use super::*;
    use std::process::Command;

    /// Set where the tests run again.
    const RUN_AGAIN: &str = "SKILLGATE_TEST_SANITIZERS";

    pub(super) fn asked_for() -> &'static [&'static str] {
        match std::env::var_os(RUN_AGAIN) {
            Some(_) => &[
                "-g",
                "-O2",
                "-fno-omit-frame-pointer",
                "-fsanitize=address,undefined",
                "-fno-sanitize-recover=all",
            ],
            None => &[],
        }
    }

    /// The compiler's own library of this name; the first thing that a process loads that checks every access.
    fn library(name: &str) -> String {
        let output = Command::new("cc")
            .arg(format!("-print-file-name={name}"))
            .output()
            .unwrap_or_else(|error| panic!("a C compiler, cc, is needed: {error}"));
        let path = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        assert!(
            Path::new(&path).is_absolute(),
            "cc has no {name}: this test needs GCC with its sanitizers (Debian: gcc)"
        );
        path
    }

    #[test]
    fn find_nothing() {
        // A plugin's own process is started without an environment, and so without the checks.
        if ISOLATION != skillgate_plugin_host::Isolation::Gateway || !asked_for().is_empty() {
            return;
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["store::", "--skip", "sanitizers::", "--test-threads=2"])
            .env(RUN_AGAIN, "1")
            .env("LD_PRELOAD", library("libasan.so"))
            // The host keeps what belongs to a plugin's code for ever, so that something is left is no failure (exitcode);
            // whose it is is seen below.
            .env("ASAN_OPTIONS", "detect_leaks=1:exitcode=0:abort_on_error=1")
            .env("UBSAN_OPTIONS", "print_stacktrace=1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{errors}");
        assert!(
            said.contains("ok. ") && !said.contains(" 0 passed"),
            "{said}"
        );
        // Of what is left, line #1 says who has asked for the memory: a line of the source, or the descriptor that the
        // plugin was loaded from.
        let of_store = ["example-c/store.c", "/proc/self/fd/"];
        let left = errors.lines().find(|line| {
            line.trim_start().starts_with("#1 ") && of_store.iter().any(|it| line.contains(it))
        });
        assert_eq!(left, None, "the store has left this behind:\n{errors}");
    }
}
