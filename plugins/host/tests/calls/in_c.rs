//! What a plugin in C can get wrong.

use super::*;

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
        (
            "spilled and there",
            "output_spilled is 1, and output_json is not empty",
        ),
        (
            "spilled nowhere",
            "output_spilled is 1, and output_blobs is empty",
        ),
        ("no result", "result: is null"),
        ("no size", "struct_size is 0"),
        (
            "short result",
            "result: struct_size is 40, smaller than the 136 of the first version",
        ),
        (
            "short completion",
            "completion: struct_size is 8, smaller than the 24 of the first version",
        ),
        ("positive status", "the status 5, which is no SKG_E_*"),
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

/// Or every call would be one that it does not offer.
#[tokio::test]
async fn a_table_that_ends_early_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = load(&probe(dir.path(), "short", &[]));
    let error = plugin.sandbox(config("short")).await.unwrap_err();
    let why = "instance: struct_size is 40, smaller than the 72 of the first version";
    assert_eq!(error.code, abi::E_PROTOCOL, "{error}");
    assert!(error.message.contains(why), "{error}");
}

#[tokio::test]
async fn what_a_table_leaves_out_is_not_offered() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = load(&probe(dir.path(), "bare", &[]));
    let sandbox = plugin.sandbox(config("bare")).await.unwrap();
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
    let file = probe(dir.path(), "singleton", &["-DFLAGS=SKG_F_SINGLETON"]);
    let plugin = load(&file);
    let first = plugin.sandbox(config("{}")).await.unwrap();
    let second = plugin.sandbox(config("{}")).await;
    match ISOLATION {
        Isolation::Gateway => assert_eq!(second.unwrap_err().code, abi::E_ALREADY_EXISTS),
        // Each has its process, which is what it is about.
        Isolation::Process => drop(second.unwrap()),
    }
    if ISOLATION == Isolation::Gateway {
        // The same file loaded again is the same plugin: a reload makes its instance beside the old one.
        let again = load(&file).sandbox(config("{}")).await.unwrap_err();
        assert_eq!(again.code, abi::E_ALREADY_EXISTS);
        assert!(
            again.message.contains("give it a process of its own"),
            "{again}"
        );
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
