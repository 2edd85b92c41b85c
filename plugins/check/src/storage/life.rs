//! A store whose process is killed: what it has said that it keeps is there when it is back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use skillgate_plugin_host::StorageInstance;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Error, SkillQuery};

use super::{TENANT, blob_of, refused, same, skill};
use crate::bench::{Bench, Done, Stop, Store, demand, failed, failed_at};
use crate::process_state::children;
use crate::raw::Kind;

/// How long a killed plugin's process may take to come back.
const RESTART_LIMIT: Duration = Duration::from_secs(60);
/// What is stored before the process is killed.
const KEPT: usize = 5;

/// Kills the process of the plugin's one instance.
pub(crate) fn kill(bench: &Bench) -> Done<Pid> {
    let children = children()?;
    let [(pid, _)] = children.as_slice() else {
        return Err(failed(format!(
            "the kit has {} children instead of the plugin's process",
            children.len()
        )));
    };
    bench.step("kill -9 of the plugin's process");
    kill_process(*pid, Signal::KILL).map_err(std::io::Error::from)?;
    Ok(*pid)
}

fn is_down(error: &Error) -> bool {
    matches!(error.code, abi::E_UNAVAILABLE | abi::E_CRASHED)
}

/// Asks again until the process is back.
pub(crate) fn until_back<T>(mut ask: impl FnMut() -> Result<T, Error>) -> Done<T> {
    let until = Instant::now() + RESTART_LIMIT;
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) => {
                if !is_down(&error) || Instant::now() > until {
                    return Err(failed_at(
                        "create",
                        format!(
                            "after kill -9 a new life of the instance does not answer: {error}"
                        ),
                    ));
                }
                let pause = Duration::from_millis(error.retry_after_ms.clamp(5, 500).into());
                std::thread::sleep(pause);
            }
        }
    }
}

/// In a process of its own, if it says that what it holds outlives that.
fn lasting(bench: &Bench) -> Done<Store<'_>> {
    let plugin = bench.open_apart(Kind::Storage)?;
    let store = bench.storage_of(&plugin, "a")?;
    if store.instance.caps() & abi::ST_VOLATILE != 0 {
        return Err(Stop::Skipped(
            "caps says SKG_ST_VOLATILE: what it holds ends with its process".into(),
        ));
    }
    Ok(store)
}

pub(crate) fn durability(bench: &Bench) -> Done {
    let store = lasting(bench)?;
    store.needs_publishing()?;
    let mut kept = Vec::new();
    for i in 0..KEPT {
        let put = skill(
            TENANT,
            "check.kept",
            &format!("1.0.{i}"),
            format!("kept {i}").as_bytes(),
        );
        store.put(put.clone())?;
        kept.push(put);
    }
    // One that is under way when the process ends.
    let writing = {
        let instance = Arc::clone(&store.instance);
        bench.spawn(async move {
            let mut done = Vec::new();
            for i in 0.. {
                let put = skill(
                    TENANT,
                    "check.under-way",
                    &format!("1.0.{i}"),
                    format!("{i}").as_bytes(),
                );
                match instance.skill_put(put.clone()).await {
                    Ok(_) => done.push(put),
                    Err(error) => return (done, Some(put), error),
                }
            }
            (done, None, Error::new(abi::E_INTERNAL, "no number is left"))
        })
    };
    kill(bench)?;
    let (done, torn, error) = bench
        .wait(async { Ok(writing.await) })?
        .map_err(|error| failed(error.to_string()))?;
    demand(is_down(&error), || {
        format!("publishing while the process ends: {error}")
    })?;
    let query = SkillQuery {
        limit: 1000,
        tenant: TENANT.into(),
        ..SkillQuery::default()
    };
    bench.step("the first call of the next life");
    until_back(|| store.list(query.clone()))?;
    for put in kept.iter().chain(&done) {
        let got = store
            .get(TENANT, &put.name, &put.version)
            .map_err(|error| {
                failed_at(
                    "skill_put",
                    format!(
                        "{} {} was completed with SKG_OK, and after kill -9 it is gone: {error}",
                        put.name, put.version
                    ),
                )
            })?;
        same(&store, put, &got)?;
    }
    // Whole or not at all.
    if let Some(put) = torn {
        match store.get(TENANT, &put.name, &put.version) {
            Ok(got) => same(&store, &put, &got)?,
            Err(error) => refused(
                "skill_get",
                "what was not completed",
                abi::E_NOT_FOUND,
                Err::<(), _>(error),
            )?,
        }
    }
    Ok(())
}

/// What a store keeps of blobs is asked also of one that publishes nothing.
pub(crate) fn blob_durability(bench: &Bench) -> Done {
    let store = lasting(bench)?;
    store.needs(abi::ST_BLOBS, "blobs")?;
    let mut kept = Vec::new();
    for i in 0..KEPT {
        let data = format!("kept {i}");
        kept.push((store.blob(TENANT, &[data.as_bytes()])?.id, data));
    }
    let deleted = store.blob(TENANT, &[b"deleted"])?.id;
    let id = &deleted;
    store.call("blob_delete", |store| async move {
        store.blob_delete(TENANT, id).await
    })?;
    // One that is under way when the process ends; of that nobody knows the id.
    let writing = {
        let instance = Arc::clone(&store.instance);
        bench.spawn(async move {
            let mut done = Vec::new();
            for i in 0.. {
                let data = format!("under way {i}");
                match blob_of_text(&instance, &data).await {
                    Ok(id) => done.push((id, data)),
                    Err(_) => break,
                }
            }
            done
        })
    };
    kill(bench)?;
    let done = bench
        .wait(async { Ok(writing.await) })?
        .map_err(|error| failed(error.to_string()))?;
    bench.step("the first call of the next life");
    // Whatever it says of that, it is back.
    until_back(|| match store.stat(TENANT, &deleted) {
        Err(error) if is_down(&error) => Err(error),
        answer => Ok(answer.is_ok()),
    })?;
    for (id, data) in kept.iter().chain(&done) {
        blob_is_there(&store, id, data)?;
    }
    refused(
        "blob_delete",
        "after kill -9 a deleted blob",
        abi::E_NOT_FOUND,
        store.stat(TENANT, &deleted),
    )
}

async fn blob_of_text(store: &StorageInstance, text: &str) -> Result<String, Error> {
    let mut writer = store.blob_create(blob_of(TENANT)).await?;
    writer.write(text.as_bytes().to_vec()).await?;
    Ok(writer.commit().await?.id)
}

fn blob_is_there(store: &Store<'_>, id: &str, data: &str) -> Done {
    let gone = |error: Error| {
        failed_at(
            "blob_commit",
            format!("a blob was completed with SKG_OK, and after kill -9: {error}"),
        )
    };
    let read = store.range(TENANT, id, 0, 0).map_err(gone)?;
    demand(read == data.as_bytes(), || {
        "a blob has other bytes after kill -9".into()
    })
}
