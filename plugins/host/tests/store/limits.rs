//! Where the store says no.

use super::*;
use skillgate_plugin_sdk::abi;
use std::time::Duration;

const MAX: usize = 100_000;
const HANDLES_MAX: u32 = 8;
const FILE_MAX: usize = 4_000;
const SKILL_MAX: usize = 10_000;

/// A store with less of everything.
async fn tight() -> Arc<StorageInstance> {
    let options = [
        &format!("-DSTORE_BYTES_MAX={MAX}") as &str,
        &format!("-DHANDLES_MAX={HANDLES_MAX}"),
        &format!("-DFILE_BYTES_MAX={FILE_MAX}"),
        &format!("-DSKILL_BYTES_MAX={SKILL_MAX}"),
    ];
    store_built_with(&options).await
}

#[tokio::test]
async fn a_full_store_says_so_and_can_be_read() {
    let store = tight().await;
    let mut ids = Vec::new();
    let full = loop {
        match put_blob(&store, "t", &bytes(5_000)).await {
            Ok(id) => ids.push(id),
            Err(error) => break error,
        }
    };
    assert_eq!(full.code, abi::E_EXHAUSTED);
    assert!(ids.len() > 10, "{}", ids.len());
    settled(&store).await;
    store.blob_delete("t", &ids.pop().unwrap()).await.unwrap();
    let mut skills = 0;
    let full = loop {
        let name = format!("a.s{skills}");
        match store.skill_put(small("t", &name, "1.0.0")).await {
            Ok(_) => skills += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.code, abi::E_EXHAUSTED);
    assert!(skills > 0);
    let page = listed(&store, "t", "", ("", "", ""), 1000).await;
    assert_eq!(page.len(), skills);
    for id in &ids {
        assert!(read_blob(&store, "t", id, 0, 0).await.unwrap() == bytes(5_000));
    }
    // Who deletes makes room.
    store.blob_delete("t", &ids[0]).await.unwrap();
    // A reader of it that is still closing would keep it.
    settled(&store).await;
    let one_more = format!("a.s{skills}");
    store
        .skill_put(small("t", &one_more, "1.0.0"))
        .await
        .unwrap();
    end(store).await;
}

/// What the store has taken, in bytes.
async fn taken(store: &StorageInstance) -> usize {
    let metrics = store.health().await.unwrap().metrics_json;
    let metrics: serde_json::Value = serde_json::from_str(&metrics).unwrap();
    usize::try_from(metrics["bytes"].as_u64().unwrap()).unwrap()
}

/// Waits until it has that: a call gives back what it used after its answer.
pub(super) async fn until_taken(store: &StorageInstance, expected: usize) {
    let waiting = async {
        while taken(store).await != expected {
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .is_err()
    {
        panic!("{} bytes are taken, not {expected}", taken(store).await);
    }
}

/// With every little room that may be left, something fits or it does not: and then nothing is lost of what it took.
#[tokio::test]
async fn no_room_at_any_step() {
    let store = tight().await;
    let mut refused = 0;
    // The first one takes the list's room, too, which does for all that follow.
    store
        .skill_put(small("t", "a.0000", "1.0.0"))
        .await
        .unwrap();
    let mut base = taken(&store).await;
    store
        .skill_put(small("t", "a.0001", "1.0.0"))
        .await
        .unwrap();
    let of_skill = taken(&store).await - base;
    base += of_skill;
    let empty = put_blob(&store, "t", b"").await.unwrap();
    let of_blob = taken(&store).await - base;
    store.blob_delete("t", &empty).await.unwrap();
    for room in (0..3000).step_by(60) {
        until_taken(&store, base).await;
        let most = bytes(MAX - base - of_blob - room);
        let id = put_blob(&store, "t", &most).await.unwrap();
        until_taken(&store, MAX - room).await;
        match put_blob(&store, "t", &bytes(1000)).await {
            Ok(id) => store.blob_delete("t", &id).await.unwrap(),
            Err(error) => {
                refused += 1;
                assert_eq!(error.code, abi::E_EXHAUSTED, "{room}");
            }
        }
        until_taken(&store, MAX - room).await;
        let name = format!("a.{}", 1000 + room);
        match store.skill_put(small("t", &name, "1.0.0")).await {
            Ok(_) => base += of_skill,
            Err(error) => {
                refused += 1;
                assert_eq!(error.code, abi::E_EXHAUSTED, "{room}");
            }
        }
        store.blob_delete("t", &id).await.unwrap();
    }
    assert!(refused > 20, "{refused}");
    end(store).await;
}

#[tokio::test]
async fn handles_are_counted() {
    let store = tight().await;
    let id = put_blob(&store, "t", b"x").await.unwrap();
    let mut writers = Vec::new();
    let mut readers = Vec::new();
    for _ in 0..HANDLES_MAX {
        writers.push(store.blob_create(blob_of("t")).await.unwrap());
        readers.push(store.blob_open("t", &id, 0, 0).await.unwrap());
    }
    let health = store.health().await.unwrap();
    assert_eq!(
        (health.state, health.in_flight, health.capacity),
        (abi::HEALTH_OK, 2 * HANDLES_MAX, 0)
    );
    assert_eq!(
        code(store.blob_create(blob_of("t")).await),
        abi::E_EXHAUSTED
    );
    assert_eq!(
        code(store.blob_open("t", &id, 0, 0).await),
        abi::E_EXHAUSTED
    );
    writers.pop().unwrap().commit().await.unwrap();
    store.blob_create(blob_of("t")).await.unwrap();
    drop((writers, readers));
    end(store).await;
}

#[tokio::test]
async fn large_files_are_refused() {
    let store = tight().await;
    let file = bytes(FILE_MAX + 1);
    let put = skill_of("t", "a.b", "1.0.0", &[("a", &file)]);
    assert_eq!(code(store.skill_put(put).await), abi::E_OUT_OF_RANGE);
    let (file, rest) = (&file[..FILE_MAX], &file[..SKILL_MAX - 2 * FILE_MAX + 1]);
    let files = [("a", file), ("b", file), ("c", rest)];
    let put = skill_of("t", "a.b", "1.0.0", &files);
    assert_eq!(code(store.skill_put(put).await), abi::E_OUT_OF_RANGE);
    let files = [files[0], files[1], ("c", &rest[1..])];
    let put = skill_of("t", "a.b", "1.0.0", &files);
    store.skill_put(put).await.unwrap();
    end(store).await;
}

#[tokio::test]
async fn a_drained_store_begins_nothing_and_ends_what_is_open() {
    let store = store().await;
    let id = put_blob(&store, "t", b"read me").await.unwrap();
    store.skill_put(small("t", "a.b", "1.0.0")).await.unwrap();
    let mut writer = store.blob_create(blob_of("t")).await.unwrap();
    let mut reader = store.blob_open("t", &id, 0, 0).await.unwrap();
    store.drain().await.unwrap();
    let query = SkillQuery {
        limit: 1,
        tenant: "t".into(),
        ..SkillQuery::default()
    };
    let codes = [
        code(store.skill_list(query).await),
        code(store.skill_get("t", "a.b", "").await),
        code(store.skill_read("t", "a.b", "", "SKILL.md").await),
        code(store.skill_tree("t", "a.b", "").await),
        code(store.skill_put(small("t", "a.c", "1.0.0")).await),
        code(store.blob_create(blob_of("t")).await),
        code(store.blob_stat("t", &id).await),
        code(store.blob_open("t", &id, 0, 0).await),
        code(store.blob_fd("t", &id).await),
        code(store.blob_delete("t", &id).await),
    ];
    assert_eq!(codes, [abi::E_UNAVAILABLE; 10]);
    assert_eq!(reader.read(100).await.unwrap(), (b"read me".to_vec(), true));
    writer.write(b"x".to_vec()).await.unwrap();
    assert_eq!(writer.commit().await.unwrap().size_bytes, 1);
    drop(reader);
    end(store).await;
}

#[tokio::test]
async fn settings_that_it_does_not_have() {
    let plugin = support::open(&built_with(&[]), ISOLATION);
    for json in ["", "{}", " {\n\t} \r"] {
        end(plugin.storage(config(json)).await.unwrap()).await;
    }
    for json in ["{\"root\": 1}", "[]", "{", "{}{}", "{}}", "null"] {
        let refused = plugin.storage(config(json)).await.unwrap_err();
        assert_eq!(refused.code, abi::E_INVALID_ARGUMENT, "{json}");
        assert!(
            refused.message.contains("no settings"),
            "{}",
            refused.message
        );
    }
}
