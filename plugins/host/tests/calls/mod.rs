//! Calls into plugins: good answers, broken ones, panics, and callers who leave.

mod blobs;

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::ISOLATION;
use crate::support::{self, Gateway, config, example_c, probe, run, sdk_plugin};
use skillgate_plugin_host::model::{
    BlobCreate, Content, Mount, PutSkill, RunRequest, RunResult, RunSkill, SkillQuery, Source,
};
use skillgate_plugin_host::{Isolation, Plugin, SandboxInstance, StorageInstance};
use skillgate_plugin_sdk::abi;

fn load(path: &std::path::Path) -> Plugin {
    support::open(path, ISOLATION)
}

async fn store() -> Arc<StorageInstance> {
    load(&sdk_plugin()).storage(config("{}")).await.unwrap()
}

async fn echo() -> Arc<SandboxInstance> {
    load(&sdk_plugin()).sandbox(config("{}")).await.unwrap()
}

/// The C plugin, whose file is gone again when this returns: the code does not need it.
async fn c_plugin(options: &[&str]) -> Arc<SandboxInstance> {
    let dir = tempfile::tempdir().unwrap();
    load(&probe(dir.path(), "probe", options))
        .sandbox(config("{}"))
        .await
        .unwrap()
}

fn output(result: &RunResult) -> &str {
    std::str::from_utf8(&result.output_json).unwrap()
}

/// Waits for something that happens on another thread; the timeout is only there to fail.
async fn until(what: &str, mut ready: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !ready().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap_or_else(|_| panic!("{what} does not happen"));
}

// === storage, through the SDK ===

#[tokio::test]
async fn skills_cross_in_both_directions() {
    let store = store().await;
    assert_eq!(
        store.caps(),
        abi::ST_SKILLS | abi::ST_BLOBS | abi::ST_BLOB_FD
    );
    let query = SkillQuery {
        limit: 3,
        tenant: "acme".into(),
        ..SkillQuery::default()
    };
    let page = store.skill_list(query).await.unwrap();
    assert!(page.more);
    let names: Vec<_> = page.skills.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["acme.s0", "acme.s1", "acme.s2"]);
    assert_eq!(page.skills[0].description, "äää");

    let skill = store.skill_get("acme", "x", "").await.unwrap();
    assert!(skill.read_only);
    assert_eq!(
        (
            skill.version.as_str(),
            skill.publisher.as_str(),
            skill.files.len()
        ),
        ("", "acme", 2)
    );
    assert_eq!(
        (skill.files[0].path.as_str(), skill.files[0].size_bytes),
        ("SKILL.md", 3)
    );
    assert_eq!(skill.files[1].path, "");

    let files = vec![("a".to_owned(), vec![0, 255]), ("b".to_owned(), vec![])];
    let put = PutSkill {
        name: "new".into(),
        manifest_json: b"{}".to_vec(),
        files,
        ..PutSkill::default()
    };
    let skill = store.skill_put(put).await.unwrap();
    let sizes: Vec<_> = skill
        .files
        .iter()
        .map(|f| (f.path.as_str(), f.size_bytes))
        .collect();
    assert_eq!(
        (skill.name.as_str(), sizes),
        ("new", vec![("a", 2), ("b", 0)])
    );
}

#[tokio::test]
async fn errors_keep_their_meaning_and_the_next_call_works() {
    let store = store().await;
    let error = store.skill_get("acme", "missing", "").await.unwrap_err();
    assert_eq!(
        (error.code, error.retryable, error.retry_after_ms),
        (abi::E_NOT_FOUND, true, 7)
    );
    assert_eq!(error.message, "no skill missing of acme");
    let error = store.skill_get("acme", "panic", "").await.unwrap_err();
    assert_eq!(error.code, abi::E_PANIC);
    assert_eq!(
        error.message,
        "the plugin panicked: skill_get panics, as asked"
    );
    let error = store.blob_fd("acme", "blob:1").await.unwrap_err();
    assert_eq!(error.code, abi::E_UNIMPLEMENTED);
    store.skill_get("acme", "x", "").await.unwrap();
}

#[tokio::test]
async fn content_by_value_and_by_descriptor() {
    let store = store().await;
    match store.skill_read("t", "n", "v", "hello").await.unwrap() {
        Content::Data(data) => assert_eq!(data, b"hello"),
        other => panic!("{other:?}"),
    }
    match store.skill_read("t", "n", "v", "").await.unwrap() {
        Content::Data(data) => assert!(data.is_empty()),
        other => panic!("{other:?}"),
    }
    match store.skill_read("t", "n", "v", "file").await.unwrap() {
        Content::File(fd, 5) => {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut std::fs::File::from(fd), &mut text).unwrap();
            assert!(!text.is_empty());
        }
        other => panic!("{other:?}"),
    }
    match store.skill_tree("t", "n", "v").await.unwrap() {
        Content::Dir(fd) => assert!(std::fs::File::from(fd).metadata().unwrap().is_dir()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn many_calls_at_once() {
    let store = store().await;
    let calls = (0..256).map(|i| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            store
                .skill_get("t", &format!("s{i}"), "")
                .await
                .unwrap()
                .name
        })
    });
    let calls: Vec<_> = calls.collect();
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap(), format!("s{i}"));
    }
}

#[tokio::test]
async fn a_refused_instance_says_why() {
    let plugin = load(&sdk_plugin());
    let error = plugin.sandbox(config("refuse")).await.unwrap_err();
    assert_eq!(error.code, abi::E_PRECONDITION);
    assert!(
        error.message.contains("org.skillgate.test") && error.message.ends_with("asked to refuse"),
        "{error}"
    );
    assert!(error.detail_json.contains("missing"));
    let error = plugin.storage(config("panic")).await.unwrap_err();
    assert_eq!(error.code, abi::E_PANIC);
    assert!(
        error.message.ends_with("create panics, as asked"),
        "{error}"
    );
    let dir = tempfile::tempdir().unwrap();
    let plugin = load(&probe(dir.path(), "refusing", &[]));
    assert!(
        plugin
            .sandbox(config("refuse"))
            .await
            .unwrap_err()
            .message
            .ends_with("told to")
    );
    assert_eq!(
        plugin.sandbox(config("null")).await.unwrap_err().code,
        abi::E_PROTOCOL
    );
    assert_eq!(
        plugin.storage(config("{}")).await.unwrap_err().code,
        abi::E_UNIMPLEMENTED
    );
}

#[tokio::test]
async fn a_plugin_can_open_the_file_that_was_checked() {
    let dir = tempfile::tempdir().unwrap();
    let file = probe(dir.path(), "myself", &[]);
    let plugin = load(&file);
    // What it opens is the checked copy: the file may be gone.
    std::fs::remove_file(file).unwrap();
    plugin.sandbox(config("myself")).await.unwrap();
}

// === runs, through the SDK ===

#[tokio::test]
async fn a_run_and_its_services() {
    let sandbox = echo().await;
    assert_eq!(sandbox.caps().max_concurrent, 9);
    let result = sandbox.run(run("echo"), Gateway::new()).await.unwrap();
    assert!(result.completed);
    assert_eq!(output(&result), r#"{"a":1}"#);

    let gateway = Gateway::new();
    let result = sandbox.run(run("blob"), gateway.clone()).await.unwrap();
    assert_eq!(
        (output(&result), result.output_blobs.as_slice()),
        ("ello", &["blob:new0".to_owned()][..])
    );
    assert_eq!(gateway.blobs.lock().unwrap()[0].1, b"hello");

    let gateway = Arc::new(Gateway {
        enough: true,
        ..Gateway::default()
    });
    let result = sandbox.run(run("output"), gateway.clone()).await.unwrap();
    let (said, kept) = (output(&result), gateway.output.lock().unwrap().clone());
    assert_eq!(kept[0], (abi::STDOUT, b"one".to_vec()));
    match ISOLATION {
        Isolation::Gateway => {
            assert_eq!(said, "false,false");
            assert_eq!(kept[1..], [(abi::STDERR, b"two".to_vec())]);
        }
        // It hears of it a little later, and from then on sends nothing more.
        Isolation::Process => {
            assert!(
                ["true,true", "true,false", "false,false"].contains(&said),
                "{said}"
            );
            assert!(kept.len() <= 2);
        }
    }

    let gateway = Gateway::new();
    let result = sandbox.run(run("gate"), gateway.clone()).await.unwrap();
    assert_eq!(output(&result), "served");
    let listener = gateway.listeners.lock().unwrap().pop().unwrap();
    std::net::TcpListener::from(listener).local_addr().unwrap();
}

#[tokio::test]
async fn a_plugins_own_threads_may_wait_for_the_host() {
    let gateway = Gateway::new();
    gateway
        .blobs
        .lock()
        .unwrap()
        .push(("blob:1".into(), b"12345".to_vec()));
    let result = echo().await.run(run("own thread"), gateway).await.unwrap();
    assert_eq!(output(&result), "Ok(5)");
}

#[tokio::test]
async fn secrets_only_as_named() {
    let sandbox = echo().await;
    let ask = |name: &str| RunRequest {
        code: name.into(),
        secrets: vec!["TOKEN".into(), "LONG".into()],
        limits: skillgate_plugin_host::model::Limits {
            output_bytes: 100_000,
            ..Default::default()
        },
        ..run("secret")
    };
    assert_eq!(
        output(&sandbox.run(ask("TOKEN"), Gateway::new()).await.unwrap()),
        "the secret TOKEN"
    );
    assert_eq!(
        output(&sandbox.run(ask("LONG"), Gateway::new()).await.unwrap()),
        "x".repeat(10_000)
    );
    let refused = sandbox.run(ask("OTHER"), Gateway::new()).await.unwrap();
    assert_eq!(output(&refused), abi::E_PERMISSION.to_string());
}

#[tokio::test]
async fn mounts_by_descriptor_are_the_plugins_own_during_the_run() {
    let dir = std::fs::File::open("/").unwrap();
    let number = dir.as_raw_fd();
    let mount = |target: &str, source| Mount {
        target: target.into(),
        read_only: true,
        source,
        sha256: String::new(),
        size_bytes: 0,
    };
    let mounts = vec![
        mount("/skills/a", Source::Fd(dir.into())),
        mount("/blobs/b", Source::Blob("blob:b".into())),
    ];
    let result = echo()
        .await
        .run(
            RunRequest {
                mounts,
                ..run("mounts")
            },
            Gateway::new(),
        )
        .await
        .unwrap();
    assert_eq!(
        output(&result),
        "/skills/a=true,/blobs/b=true",
        "descriptor {number}"
    );
}

#[tokio::test]
async fn a_panic_is_one_error() {
    let sandbox = echo().await;
    let error = sandbox.run(run("panic"), Gateway::new()).await.unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (abi::E_PANIC, "the plugin panicked: run panics, as asked")
    );
    sandbox.run(run("echo"), Gateway::new()).await.unwrap();
    assert_eq!(
        sandbox.counts().all(),
        [("run", "ok", 1), ("run", "panic", 1)]
    );
}

#[tokio::test]
async fn dropping_a_run_cancels_it_and_keeps_it_until_it_has_ended() {
    let sandbox = echo().await;
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let gateway = Arc::new(Gateway {
        told: Some(told),
        ..Gateway::default()
    });
    let running = tokio::spawn({
        let (sandbox, gateway) = (Arc::clone(&sandbox), Arc::clone(&gateway));
        async move { sandbox.run(run("wait"), gateway).await }
    });
    assert_eq!(heard.recv().await.unwrap(), "started");
    running.abort();
    // The run goes on until the plugin ends it, with its services: it says so itself.
    assert_eq!(heard.recv().await.unwrap(), "ended");
    assert_eq!(sandbox.health().await.unwrap().message, "run_wait");
    let counts = sandbox.counts();
    tokio::time::timeout(Duration::from_secs(30), sandbox.shutdown())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(Arc::strong_count(&gateway), 1, "nothing of the run is left");
    let runs: Vec<_> = counts
        .all()
        .into_iter()
        .filter(|call| call.0 == "run")
        .collect();
    assert_eq!(runs.len(), 1, "one call, one end: {runs:?}");
}

// === what a plugin in C can get wrong ===

#[tokio::test]
async fn answers_inline_and_from_a_thread() {
    let sandbox = c_plugin(&[]).await;
    assert_eq!(
        output(&sandbox.run(run("echo"), Gateway::new()).await.unwrap()),
        r#"{"a":1}"#
    );
    assert_eq!(
        output(&sandbox.run(run("thread"), Gateway::new()).await.unwrap()),
        "from a thread"
    );
}

#[tokio::test]
async fn the_example_in_c() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = load(&example_c(dir.path()))
        .sandbox(config("{}"))
        .await
        .unwrap();
    assert_eq!(sandbox.caps().egress, abi::EGRESS_CAN_DENY);
    assert_eq!(
        output(&sandbox.run(run("any"), Gateway::new()).await.unwrap()),
        r#"{"a":1}"#
    );
    assert_eq!(sandbox.health().await.unwrap().state, abi::HEALTH_OK);
    sandbox.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_second_and_an_invented_completion_do_no_harm() {
    let sandbox = c_plugin(&[]).await;
    assert_eq!(
        output(&sandbox.run(run("twice"), Gateway::new()).await.unwrap()),
        "first"
    );
    assert_eq!(
        output(&sandbox.run(run("invented"), Gateway::new()).await.unwrap()),
        "refused"
    );
    assert_eq!(
        output(
            &sandbox
                .run(run("services after the end"), Gateway::new())
                .await
                .unwrap()
        ),
        "done"
    );
    assert_eq!(
        output(&sandbox.run(run("echo"), Gateway::new()).await.unwrap()),
        r#"{"a":1}"#
    );
}

#[tokio::test]
async fn a_late_completion_after_the_caller_left() {
    let sandbox = c_plugin(&[]).await;
    let gateway = Gateway::new();
    {
        let running = sandbox.run(run("when cancelled"), gateway.clone());
        tokio::select! { biased; r = running => panic!("{r:?}"), () = std::future::ready(()) => {} }
    }
    // Cancelled, and completed by the plugin some time: then the run's services are gone.
    until("the late completion", async || {
        Arc::strong_count(&gateway) == 1
    })
    .await;
    assert_eq!(
        output(&sandbox.run(run("echo"), Gateway::new()).await.unwrap()),
        r#"{"a":1}"#
    );
}

#[tokio::test]
async fn refusals() {
    let sandbox = c_plugin(&[]).await;
    let error = sandbox
        .run(run("refuse"), Gateway::new())
        .await
        .unwrap_err();
    assert_eq!((error.code, error.not_executed), (abi::E_EXHAUSTED, true));
    assert!(error.message.contains("org.skillgate.probe"), "{error}");
    assert_eq!(
        output(
            &sandbox
                .run(run("refuse and complete"), Gateway::new())
                .await
                .unwrap()
        ),
        "kept"
    );
    let error = sandbox.run(run("error"), Gateway::new()).await.unwrap_err();
    assert_eq!(
        (
            error.code,
            error.retryable,
            error.not_executed,
            error.retry_after_ms
        ),
        (abi::E_UNAVAILABLE, true, true, 250)
    );
    assert_eq!(error.message, "no machine \u{fffd} free");
}

#[tokio::test]
async fn malformed_answers_are_errors() {
    let sandbox = c_plugin(&[]).await;
    for (function, expected) in [
        ("not utf-8", "summary: not UTF-8 at byte 0"),
        ("huge", "summary: 1152921504606846976 bytes, more than"),
        ("null with length", "summary: null with length 5"),
        (
            "too much output",
            "output_json: 8192 bytes, more than the 4096",
        ),
        ("no result", "result: is null"),
        ("no size", "struct_size is 0"),
    ] {
        let error = sandbox
            .run(run(function), Gateway::new())
            .await
            .unwrap_err();
        assert_eq!(error.code, abi::E_PROTOCOL, "{function}");
        assert!(error.message.contains(expected), "{function}: {error}");
    }
}

#[tokio::test]
async fn older_and_newer_structs() {
    let sandbox = c_plugin(&[]).await;
    let result = sandbox
        .run(run("short result"), Gateway::new())
        .await
        .unwrap();
    assert_eq!(
        (
            result.error_type.as_str(),
            result.exit_code,
            result.output_spilled
        ),
        ("", 0, false)
    );
    let skills = ["a", "bcd"]
        .map(|name| RunSkill {
            name: name.into(),
            ..RunSkill::default()
        })
        .to_vec();
    let result = sandbox
        .run(
            RunRequest {
                skills,
                ..run("stride")
            },
            Gateway::new(),
        )
        .await
        .unwrap();
    assert_eq!(result.output_blobs, ["blob:a", "blob:b"]);
    assert_eq!(result.exec_us, 4);
    let empty = RunRequest {
        args_json: Vec::new(),
        ..run("empty")
    };
    let result = sandbox.run(empty, Gateway::new()).await.unwrap();
    assert_eq!(
        (
            result.exec_us,
            result.output_json.len(),
            result.summary.len()
        ),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn a_table_that_ends_early() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = load(&probe(dir.path(), "short", &[]));
    let sandbox = plugin.sandbox(config("short")).await.unwrap();
    sandbox.run(run("echo"), Gateway::new()).await.unwrap();
    assert_eq!(
        sandbox.health().await.unwrap_err().code,
        abi::E_UNIMPLEMENTED
    );
    assert_eq!(
        sandbox.drain().await.unwrap_err().code,
        abi::E_UNIMPLEMENTED
    );
}

#[tokio::test]
async fn a_blocking_plugin_must_have_answered_when_it_returns() {
    let sandbox = c_plugin(&["-DFLAGS=SKG_F_BLOCKING"]).await;
    let error = sandbox
        .run(run("forget"), Gateway::new())
        .await
        .unwrap_err();
    assert_eq!(error.code, abi::E_PROTOCOL);
    assert!(
        error.message.contains("returned without completing"),
        "{error}"
    );
    sandbox.run(run("echo"), Gateway::new()).await.unwrap();
}

#[tokio::test]
async fn the_event_loop_does_not_wait_inside_a_plugin() {
    let inline = c_plugin(&[]).await;
    assert_eq!(
        output(
            &inline
                .run(run("blocking host call"), Gateway::new())
                .await
                .unwrap()
        ),
        "refused"
    );
    let blocking = c_plugin(&["-DFLAGS=SKG_F_BLOCKING"]).await;
    assert_eq!(
        output(
            &blocking
                .run(run("blocking host call"), Gateway::new())
                .await
                .unwrap()
        ),
        "taken"
    );
}

#[tokio::test]
async fn a_plugin_that_does_not_block_asks_for_a_secret_and_a_gate_inside_run() {
    let sandbox = c_plugin(&[]).await;
    for (function, expected) in [("secret", "the secret TOKEN"), ("gate", "served")] {
        let request = RunRequest {
            secrets: vec!["TOKEN".into()],
            ..run(function)
        };
        let running = sandbox.run(request, Gateway::new());
        // The timeout is only there to fail.
        let result = tokio::time::timeout(Duration::from_secs(30), running).await;
        let result = result.unwrap_or_else(|_| panic!("{function} hangs"));
        assert_eq!(output(&result.unwrap()), expected);
    }
}

#[tokio::test]
async fn a_singleton_has_one_instance_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = load(&probe(
        dir.path(),
        "singleton",
        &["-DFLAGS=SKG_F_SINGLETON"],
    ));
    let first = plugin.sandbox(config("{}")).await.unwrap();
    let second = plugin.sandbox(config("{}")).await;
    match ISOLATION {
        Isolation::Gateway => assert_eq!(second.unwrap_err().code, abi::E_ALREADY_EXISTS),
        // Each has its process, which is what it is about.
        Isolation::Process => drop(second.unwrap()),
    }
    // It has no drain(), which is said, and is destroyed all the same.
    assert_eq!(
        first.shutdown().await.unwrap_err().code,
        abi::E_UNIMPLEMENTED
    );
    plugin.sandbox(config("{}")).await.unwrap();
}

#[tokio::test]
async fn a_panic_of_the_gateway_does_not_unwind_into_the_plugin() {
    struct Panics;
    impl skillgate_plugin_host::RunHost for Panics {
        fn output(&self, _: u32, _: &[u8]) -> bool {
            panic!("the gateway's own code panics")
        }
        fn secret(&self, _: &str) -> skillgate_plugin_host::model::Result<Vec<u8>> {
            unreachable!()
        }
        fn blob_fd(&self, _: &str) -> skillgate_plugin_host::model::Result<std::os::fd::OwnedFd> {
            unreachable!()
        }
        fn blob_read(
            &self,
            _: &str,
            _: u64,
            _: &mut [u8],
        ) -> skillgate_plugin_host::model::Result<usize> {
            unreachable!()
        }
        fn blob_create(&self, _: &str) -> skillgate_plugin_host::model::Result<i64> {
            unreachable!()
        }
        fn blob_write(&self, _: i64, _: &[u8]) -> skillgate_plugin_host::model::Result<()> {
            unreachable!()
        }
        fn blob_finish(
            &self,
            _: i64,
            _: bool,
        ) -> skillgate_plugin_host::model::Result<Option<String>> {
            unreachable!()
        }
        fn gate_serve(&self, _: std::os::fd::OwnedFd) -> skillgate_plugin_host::model::Result<()> {
            unreachable!()
        }
    }
    let result = echo()
        .await
        .run(run("output"), Arc::new(Panics))
        .await
        .unwrap();
    match ISOLATION {
        Isolation::Gateway => assert_eq!(output(&result), "false,false"),
        // What was under way already was not refused.
        Isolation::Process => assert!(result.completed),
    }
}
