//! A plugin that was built when contract 1.0 was new, kept as the file it was then (`fixtures/contract-1.0`): this host and
//! every later one loads it, asks it everything and understands its answers. The same source built with today's header must
//! do as well.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ISOLATION;
use crate::support::{self, Gateway, compile, config};
use skillgate_plugin_host::model::{
    BlobCreate, Content, Limits, Mount, PutSkill, RunRequest, RunSkill, SkillQuery, Source,
};
use skillgate_plugin_host::{Plugin, inspect};
use skillgate_plugin_sdk::abi;

const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/contract-1.0/plugin.x86_64.so"
);
/// It is never built again: a new file would prove nothing about plugins that exist.
const FIXTURE_SHA256: &str = "68184e52bf0b05aeb5fcb52bddc2859f28dacbf2421a07fef550e417854dd249";

/// The plugins that must behave alike.
fn plugins() -> Vec<Plugin> {
    let dir = tempfile::tempdir().unwrap();
    let source = "tests/fixtures/contract-1.0/plugin.c";
    let options = ["-Wpedantic", "-D_POSIX_C_SOURCE=200809L"];
    let mut files = vec![compile(source, dir.path(), "plugin", &options)];
    if cfg!(target_arch = "x86_64") {
        files.push(PathBuf::from(FIXTURE));
    } else {
        eprintln!("skipped: the kept file is for x86_64, and this is another machine");
    }
    let open = |file: &PathBuf| support::open(file, ISOLATION);
    files.iter().map(open).collect()
}

#[test]
fn the_kept_file_is_the_one_of_then() {
    let found = inspect(Path::new(FIXTURE)).unwrap();
    assert_eq!(
        found.sha256, FIXTURE_SHA256,
        "{FIXTURE} is not the file that was built with contract 1.0: restore it"
    );
    let note = found.note.unwrap();
    assert_eq!(
        (note.abi_major, note.abi_minor, note.min_host_minor),
        (1, 0, 0)
    );
    // It loads wherever the gateway does.
    assert_eq!(found.needed, ["libc.so.6"]);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(found.refusals, [""; 0]);
    }
}

#[tokio::test]
async fn what_it_says_of_itself() {
    for plugin in plugins() {
        let info = plugin.info();
        assert_eq!(
            (
                info.id.as_str(),
                info.version.as_str(),
                info.vendor.as_str()
            ),
            ("org.skillgate.fixture-1-0", "1.0.0", "skillgate")
        );
        assert_eq!(
            (info.description.as_str(), info.license.as_str()),
            ("says back what it is asked", "Apache-2.0")
        );
        assert_eq!(
            (info.config_schema_json.as_str(), info.build_info.as_str()),
            (r#"{"type":"object"}"#, "as it was built for contract 1.0")
        );
        assert!(info.blocking && !info.singleton);

        let store = plugin.storage(config("{\"a\":1}")).await.unwrap();
        let health = store.health().await.unwrap();
        assert_eq!(
            (health.state, health.in_flight, health.capacity),
            (abi::HEALTH_DEGRADED, 3, 4)
        );
        assert_eq!(
            health.message,
            "skg_host abi_major=1 name=skillgate skg_create_request instance_id=test state_dir=/nowhere \
             config_json={\"a\":1} "
        );
        assert_eq!(
            (health.metrics_json.as_str(), health.report_json.as_str()),
            (r#"{"n":5}"#, r#"[{"layer":"x"}]"#)
        );
        store.shutdown().await.unwrap();

        let refused = plugin.sandbox(config("refuse")).await.unwrap_err();
        assert_eq!(
            (refused.code, refused.retryable, refused.not_executed),
            (abi::E_PRECONDITION, true, true)
        );
        assert_eq!(refused.retry_after_ms, 7);
        assert!(refused.message.ends_with("asked to refuse"), "{refused}");
        assert_eq!(refused.detail_json, r#"{"detail":1}"#);
    }
}

#[tokio::test]
async fn its_skills() {
    for plugin in plugins() {
        let store = plugin.storage(config("{}")).await.unwrap();
        assert_eq!(
            store.caps(),
            abi::ST_SKILLS | abi::ST_BLOBS | abi::ST_BLOB_FD
        );
        let mut query = SkillQuery {
            limit: 3,
            tenant: "acme".into(),
            namespace: "n".into(),
            ..SkillQuery::default()
        };
        query.after.namespace = "an".into();
        query.after.name = "aname".into();
        query.after.version = "1.0.0".into();
        let page = store.skill_list(query).await.unwrap();
        let names: Vec<_> = page.skills.iter().map(|s| s.name.as_str()).collect();
        assert_eq!((names, page.more), (vec!["first", "second"], true));
        assert_eq!(
            page.skills[1].description,
            "skg_list_request limit=3 tenant=acme namespace_=n after.namespace_=an after.name=aname after.version=1.0.0 "
        );

        let skill = store.skill_get("acme", "x", "2.0.0").await.unwrap();
        assert_eq!(skill.description, "tenant=acme name=x version=2.0.0 ");
        let texts = [
            &skill.name,
            &skill.version,
            &skill.namespace,
            &skill.kind,
            &skill.tree_sha256,
            &skill.publisher,
        ];
        assert_eq!(
            texts,
            ["name", "version", "namespace", "kind", "tree", "publisher"]
        );
        assert!(skill.read_only);
        assert_eq!(skill.manifest_json, b"{}");
        let files: Vec<_> = skill
            .files
            .iter()
            .map(|f| (f.path.as_str(), f.sha256.as_str(), f.size_bytes))
            .collect();
        assert_eq!(
            files,
            [("a", "digest a", 1), ("b/c", "digest b", 1_u64 << 40)]
        );

        let error = store.skill_get("acme", "", "").await.unwrap_err();
        assert_eq!(
            (error.code, error.retryable, error.not_executed),
            (abi::E_NOT_FOUND, true, false)
        );
        assert_eq!(
            (error.message.as_str(), error.detail_json.as_str()),
            ("no name", "{}")
        );
        assert_eq!(error.retry_after_ms, 9);

        let put = PutSkill {
            tenant: "t".into(),
            name: "n".into(),
            version: "v".into(),
            namespace: "ns".into(),
            kind: "k".into(),
            description: "d".into(),
            publisher: "p".into(),
            tree_sha256: "s".into(),
            manifest_json: b"{1}".to_vec(),
            files: vec![("a".into(), b"1".to_vec()), ("b/c".into(), b"22".to_vec())],
        };
        assert_eq!(
            store.skill_put(put).await.unwrap().description,
            "skg_put_skill tenant=t name=n version=v namespace_=ns kind=k description=d publisher=p tree_sha256=s \
             manifest_json={1} path=a data=1 path=b/c data=22 "
        );
        match store.skill_read("t", "n", "v", "p/q").await.unwrap() {
            Content::Data(data) => assert_eq!(data, b"tenant=t name=n version=v path=p/q "),
            other => panic!("{other:?}"),
        }
        match store.skill_read("t", "n", "v", "file").await.unwrap() {
            Content::File(fd, _) => assert!(is_file(fd)),
            other => panic!("{other:?}"),
        }
        match store.skill_tree("t", "n", "v").await.unwrap() {
            Content::Dir(fd) => assert!(!is_file(fd)),
            other => panic!("{other:?}"),
        }
        store.shutdown().await.unwrap();
    }
}

fn is_file(fd: OwnedFd) -> bool {
    std::fs::File::from(fd).metadata().unwrap().is_file()
}

#[tokio::test]
async fn its_blobs() {
    for plugin in plugins() {
        let store = plugin.storage(config("{}")).await.unwrap();
        let create = BlobCreate {
            tenant: "t".into(),
            kind: "k".into(),
            owner: "o".into(),
            run_id: "r".into(),
            max_bytes: 99,
            ttl_s: 98,
        };
        let mut writer = store.blob_create(create).await.unwrap();
        writer.write(b"hello ".to_vec()).await.unwrap();
        writer.write(b"world".to_vec()).await.unwrap();
        let stat = writer.commit().await.unwrap();
        assert_eq!(
            stat.kind,
            "skg_blob_create_request tenant=t kind=k owner=o run_id=r max_bytes=99 ttl_s=98 "
        );
        assert_eq!(
            (stat.id.as_str(), stat.sha256.as_str(), stat.owner.as_str()),
            ("blob:one", "digest", "owner")
        );
        assert_eq!(
            (stat.size_bytes, stat.created_unix_ms),
            (11, 1_234_567_890_123)
        );
        let known = store.blob_stat("acme", "blob:x").await.unwrap();
        assert_eq!(
            (known.owner.as_str(), known.id.as_str()),
            ("acme", "blob:x")
        );
        let mut reader = store.blob_open("acme", "blob:y", 1, 7).await.unwrap();
        assert_eq!(reader.stat().id, "blob:y");
        assert_eq!(reader.read(5).await.unwrap(), (b"ello ".to_vec(), false));
        assert_eq!(reader.read(50).await.unwrap(), (b"wo".to_vec(), true));
        drop(reader);
        let (fd, stat) = store.blob_fd("acme", "blob:z").await.unwrap();
        assert!(is_file(fd) && stat.id == "blob:z");
        let error = store.blob_delete("acme", "blob:z").await.unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (abi::E_PERMISSION, "tenant=acme id=blob:z ")
        );
        store.shutdown().await.unwrap();
    }
}

fn request() -> RunRequest {
    RunRequest {
        run_id: "run_1".into(),
        tenant: "t".into(),
        language: "python".into(),
        code: "code".into(),
        skill: "s".into(),
        function: "f".into(),
        args_json: b"{\"a\":1}".to_vec(),
        skills: vec![RunSkill {
            name: "n".into(),
            version: "v".into(),
            entrypoint: "e".into(),
            function: "g".into(),
        }],
        mounts: vec![
            Mount {
                target: "/skills/n".into(),
                read_only: true,
                source: Source::Fd(std::fs::File::open("/").unwrap().into()),
                sha256: "d".into(),
                size_bytes: 5,
            },
            Mount {
                target: "/blobs/b".into(),
                read_only: true,
                source: Source::Blob("blob:in".into()),
                sha256: "e".into(),
                size_bytes: 6,
            },
            Mount {
                target: "/x".into(),
                read_only: false,
                source: Source::Path("/p".into()),
                sha256: String::new(),
                size_bytes: 0,
            },
        ],
        env: vec![("K".into(), "V".into())],
        secrets: vec!["ONE".into()],
        limits: Limits {
            max_pids: 1,
            wall_ms: 60_000,
            cpu_ms: 3,
            memory_bytes: 4,
            disk_bytes: 5,
            disk_inodes: 6,
            output_bytes: 7,
        },
        network: abi::NET_GATE,
        fresh: true,
        traceparent: "trace".into(),
    }
}

const RUN_SAID: &str = "skg_run_request flags=1 run_id=run_1 tenant=t language=python code=code skill=s function=f \
    args_json={\"a\":1} skg_run_skill name=n version=v entrypoint=e function=g skg_mount source_kind=2 read_only=1 fd=open \
    target=/skills/n path= blob_id= sha256=d size_bytes=5 skg_mount source_kind=4 read_only=1 fd=none target=/blobs/b path= \
    blob_id=blob:in sha256=e size_bytes=6 skg_mount source_kind=1 read_only=0 fd=none target=/x path=/p blob_id= sha256= \
    size_bytes=0 key=K value=V skg_limits max_pids=1 wall_ms=60000 cpu_ms=3 memory_bytes=4 disk_bytes=5 disk_inodes=6 \
    output_bytes=7 skg_gate mode=1 url= token= ca_pem= rules=0 traceparent=trace cancelled=0 extension=0 stdout=0 stderr=0 \
    nowhere=-3 secret=the secret ONE unknown_secret=-7 blob_fd=-12 blob=npu write=0 gate_serve=1 ";

#[tokio::test]
async fn its_runs() {
    for plugin in plugins() {
        let sandbox = plugin.sandbox(config("{}")).await.unwrap();
        let caps = sandbox.caps();
        assert_eq!(
            (caps.egress, caps.max_concurrent, caps.isolation),
            (
                abi::EGRESS_CAN_DENY | abi::EGRESS_GATE_LISTENER,
                11,
                abi::ISO_MICROVM
            )
        );
        assert_eq!(
            (caps.max_memory_bytes, caps.max_timeout_ms, caps.enforces),
            (1 << 33, 12, abi::LIMIT_WALL | abi::LIMIT_DISK)
        );
        let gateway = Gateway::new();
        gateway
            .blobs
            .lock()
            .unwrap()
            .push(("blob:in".into(), b"input".to_vec()));
        let result = sandbox.run(request(), Arc::clone(&gateway) as _).await;
        let result = result.unwrap();
        assert_eq!(result.error_message, RUN_SAID);
        assert!(!result.completed && result.output_spilled);
        let texts = (
            result.output_json.as_slice(),
            result.summary.as_str(),
            result.error_type.as_str(),
        );
        assert_eq!(texts, (&b"[1]"[..], "summary", "FixtureError"));
        let numbers = [
            result.create_us,
            result.exec_us,
            result.cpu_us,
            result.peak_memory_bytes,
        ];
        assert_eq!(
            (result.exit_code, result.signal, numbers),
            (21, 22, [23, 24, 25, 26])
        );
        assert_eq!(result.output_blobs, ["blob:new1"]);
        assert_eq!(
            gateway.blobs.lock().unwrap()[1],
            ("blob:new1".to_owned(), b"made".to_vec())
        );
        assert_eq!(
            *gateway.output.lock().unwrap(),
            [
                (abi::STDOUT, b"out".to_vec()),
                (abi::STDERR, b"err".to_vec())
            ]
        );
        assert_eq!(gateway.listeners.lock().unwrap().len(), 1);
        sandbox.shutdown().await.unwrap();
    }
}
