//! Stores, through the SDK.

use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::*;
use skillgate_plugin_host::{Counted as _, STORE_CALLS_MAX, STORE_THREADS_MAX};

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

/// In a process of its own it costs no other call anything.
#[tokio::test]
async fn a_pipe_is_no_file_and_no_end_of_the_plugin() {
    let store = store().await;
    let error = store.skill_read("acme", "x", "", "pipe").await.unwrap_err();
    assert_eq!(error.code, abi::E_PROTOCOL);
    let wrong = "fd: is a pipe instead of a regular file";
    assert!(error.message.contains(wrong), "{}", error.message);
    for _ in 0..100 {
        store.skill_get("acme", "x", "").await.unwrap();
    }
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

/// On which a call of the echo store's hangs until somebody opens it.
pub(super) fn pipe_in(dir: &std::path::Path) -> std::path::PathBuf {
    let pipe = dir.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    pipe
}

/// What a caller has sent is there as long as the store has it, though nobody waits for the store any more.
#[tokio::test]
async fn what_a_store_was_given_keeps_its_room_until_it_has_done_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = pipe_in(dir.path());
    let store = store().await;
    let put = PutSkill {
        name: "hang".into(),
        version: pipe.to_str().unwrap().into(),
        ..PutSkill::default()
    };
    let room = Arc::new(());
    let mut call = Box::pin(store.skill_put_with(put, room.clone()));
    let begun = dir.path().join("pipe.begun");
    let until = Instant::now() + Duration::from_secs(20);
    while !begun.exists() && Instant::now() < until {
        let waits = tokio::time::timeout(Duration::from_millis(5), call.as_mut()).await;
        assert!(waits.is_err(), "{waits:?}");
    }
    drop(call);
    let holders = Arc::strong_count(&room);
    // First, so that no thread is left that waits for it; and this waits for none.
    drop(std::fs::File::options().read(true).write(true).open(&pipe));
    assert!(begun.exists(), "the store has the call");
    assert_eq!(holders, 2);
    let done = async {
        while Arc::strong_count(&room) > 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(10), done).await;
    done.expect("it goes when the store has done with it");
}

/// The threads that may wait are for all: a store whose calls do not come back has a part of them.
#[test]
fn a_store_that_hangs_leaves_threads_to_runs_and_other_stores() {
    if ISOLATION == Isolation::Process {
        // There it has only its own.
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pipe = pipe_in(dir.path());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(STORE_THREADS_MAX + 1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (store, other, sandbox) = (store().await, store().await, echo().await);
        let get = || Box::pin(store.skill_get("t", "hang", pipe.to_str().unwrap()));
        let mut hanging: Vec<_> = (0..2 * STORE_THREADS_MAX).map(|_| get()).collect();
        let mut nobody = Context::from_waker(Waker::noop());
        for call in &mut hanging {
            assert!(call.as_mut().poll(&mut nobody).is_pending());
        }
        let rest = async {
            let ran = sandbox
                .run(run("made from"), Arc::new(Gateway::default()))
                .await;
            (ran, other.skill_get("t", "s", "").await)
        };
        let rest = tokio::time::timeout(Duration::from_secs(10), rest).await;
        // As the end of whatever it hangs on: those that waited come to their turn.
        let pipe = std::fs::File::options().read(true).write(true).open(&pipe);
        for call in hanging {
            call.await.unwrap();
        }
        drop(pipe);
        let (ran, got) = rest.expect("others have threads");
        ran.unwrap();
        got.unwrap();
    });
}

/// Nor do more than so many calls wait for it, wherever it is, and none that its caller has left; of one tenant, no more than
/// leave some to whoever comes.
#[test]
fn calls_that_wait_for_a_store_that_hangs_are_so_many() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = pipe_in(dir.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = store().await;
        let get = |tenant| Box::pin(store.skill_get(tenant, "hang", pipe.to_str().unwrap()));
        let mut nobody = Context::from_waker(Waker::noop());
        let (mut hanging, mut counts, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for tenant in ["a", "b", "c"] {
            let before = hanging.len();
            while hanging.len() <= STORE_CALLS_MAX {
                let mut call = get(tenant);
                match call.as_mut().poll(&mut nobody) {
                    Poll::Pending => hanging.push(call),
                    Poll::Ready(answer) => {
                        refused.push(answer.map(|skill| skill.name));
                        break;
                    }
                }
            }
            counts.push(hanging.len() - before);
        }
        let counted = store.counts().in_flight();
        // Who leaves one that waits makes room, in the plugin's process as soon as that has heard of it.
        drop(hanging.pop());
        let left = async {
            while ISOLATION == Isolation::Process && store.counts().in_flight() == counted {
                tokio::task::yield_now().await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(5), left).await;
        let after = store.counts().in_flight();
        let mut next = get("c");
        let has_room = next.as_mut().poll(&mut nobody).is_pending();
        hanging.push(next);
        // As the end of whatever it hangs on.
        let pipe = std::fs::File::options().read(true).write(true).open(&pipe);
        for call in hanging {
            call.await.unwrap();
        }
        drop(pipe);
        assert_eq!(counts, [3072, 768, 192]);
        assert_eq!((has_room, counted, after), (true, 4032, 4031));
        for (answer, held) in refused.into_iter().zip(counts) {
            let error = answer.unwrap_err();
            let how = (error.code, error.retryable, error.not_executed);
            assert_eq!(how, (abi::E_UNAVAILABLE, true, true), "{error}");
            let why = format!("skill_get: {held} calls of this tenant wait for the plugin");
            assert!(error.message.starts_with(&why), "{error}");
        }
        assert_eq!(store.counts().in_flight(), 0);
        store.skill_get("a", "s", "").await.unwrap();
    });
}

/// Nor does one tenant, whose part of the store hangs, have all the threads that it is called on, wherever it is.
#[test]
fn a_tenant_whose_part_hangs_leaves_threads_to_others() {
    const CALLS: usize = 256;
    let dir = tempfile::tempdir().unwrap();
    let pipe = pipe_in(dir.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = store().await;
        let open = async |tenant: &str| {
            let create = BlobCreate {
                tenant: tenant.into(),
                ..BlobCreate::default()
            };
            let reader = store.blob_open(tenant, "blob:made-up-9", 0, 0).await;
            let writer = store.blob_create(create.clone()).await;
            let whole = store.blob_create(create).await;
            (reader.unwrap(), writer.unwrap(), whole.unwrap())
        };
        let (mut reader, mut writer, whole) = open("a").await;
        let (mut other_reader, ..) = open("b").await;
        let get = || Box::pin(store.skill_get("a", "hang", pipe.to_str().unwrap()));
        let mut hanging: Vec<_> = (0..CALLS).map(|_| get()).collect();
        let mut nobody = Context::from_waker(Waker::noop());
        for call in &mut hanging {
            assert!(call.as_mut().poll(&mut nobody).is_pending());
        }
        // Behind those, being the same tenant's.
        let mut read = Box::pin(reader.read(9));
        let mut written = Box::pin(writer.write("x"));
        let mut committed = Box::pin(whole.commit());
        let mut wait = || {
            read.as_mut().poll(&mut nobody).is_pending()
                && written.as_mut().poll(&mut nobody).is_pending()
                && committed.as_mut().poll(&mut nobody).is_pending()
        };
        assert!(wait());
        let other = async {
            let got = store.skill_get("b", "s", "").await;
            (got, other_reader.read(1).await)
        };
        let other = tokio::time::timeout(Duration::from_secs(10), other).await;
        let still_wait = wait();
        // As the end of whatever it hangs on: those that waited come to their turn.
        let pipe = std::fs::File::options().read(true).write(true).open(&pipe);
        for call in hanging {
            call.await.unwrap();
        }
        drop(pipe);
        let (got, other_read) = other.expect("another tenant has threads");
        got.unwrap();
        other_read.unwrap();
        assert!(still_wait);
        read.await.unwrap();
        written.await.unwrap();
        committed.await.unwrap();
        assert_eq!(store.counts().in_flight(), 0);
    });
}

/// What is asked of an open blob is a call of the tenant whose blob it is.
#[tokio::test]
async fn an_open_blob_is_its_tenants() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = pipe_in(dir.path());
    let store = store().await;
    let create = |tenant: &str| BlobCreate {
        tenant: tenant.into(),
        ..BlobCreate::default()
    };
    let mut open = Vec::new();
    for tenant in ["a", "b"] {
        let reader = store
            .blob_open(tenant, "blob:made-up-9", 0, 0)
            .await
            .unwrap();
        let writer = store.blob_create(create(tenant)).await.unwrap();
        let whole = store.blob_create(create(tenant)).await.unwrap();
        open.push((reader, writer, whole));
    }
    let mut nobody = Context::from_waker(Waker::noop());
    let mut hanging = Vec::new();
    let refused = loop {
        let mut call = Box::pin(store.skill_get("a", "hang", pipe.to_str().unwrap()));
        match call.as_mut().poll(&mut nobody) {
            Poll::Pending => hanging.push(call),
            Poll::Ready(answer) => break answer.map(|skill| skill.name),
        }
    };
    let [of_a, of_b] = [0, 1].map(|_| {
        let (mut reader, mut writer, whole) = open.remove(0);
        Box::pin(async move {
            let read = reader.read(9).await.map(|(piece, _)| piece.len() as u64);
            let written = writer.write("x").await.map(|()| 1);
            let committed = whole.commit().await.map(|stat| stat.size_bytes);
            [read, written, committed]
        })
    });
    let of_a = tokio::time::timeout(Duration::from_secs(10), of_a).await;
    let pipe = std::fs::File::options().read(true).write(true).open(&pipe);
    let of_b = of_b.await.map(Result::unwrap);
    for call in hanging {
        call.await.unwrap();
    }
    drop(pipe);
    let refusals = of_a
        .expect("at once")
        .map(|answer| answer.unwrap_err().code);
    assert_eq!(refusals, [abi::E_UNAVAILABLE; 3]);
    assert_eq!(refused.unwrap_err().code, abi::E_UNAVAILABLE);
    assert_eq!(of_b, [9, 1, 0]);
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

#[tokio::test]
async fn what_cannot_say_what_it_can_do_is_destroyed_before_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = load(&probe(dir.path(), "refusing", &["-DREFUSE_CAPS"]));
    let destroyed = dir.path().join("destroyed");
    let error = plugin.storage(config(destroyed.to_str().unwrap())).await;
    assert_eq!(error.unwrap_err().code, abi::E_INTERNAL);
    assert!(destroyed.exists(), "it has the data still");
}
