//! Runs, through the SDK.

use skillgate_plugin_host::Counted as _;

use super::*;

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

/// In a process of its own it costs no other call anything.
#[tokio::test]
async fn what_is_no_socket_is_no_gate_and_no_end_of_the_plugin() {
    let sandbox = echo().await;
    let before = sandbox.run(run("pid"), Gateway::new()).await.unwrap();
    let said = sandbox.run(run("no socket"), Gateway::new()).await.unwrap();
    assert_eq!(output(&said), abi::E_INVALID_ARGUMENT.to_string());
    let after = sandbox.run(run("pid"), Gateway::new()).await.unwrap();
    assert_eq!(output(&before), output(&after));
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
