//! How the plugins are, as they say it themselves, and the numbers that they say with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, Health as Said};

use crate::app::silent::heard;
use crate::telemetry::health::State;
use crate::telemetry::metrics::Page;

/// Questions that one instance may leave unanswered: where it hangs, each may hold a thread of those that runs have too.
const QUESTIONS_MAX: usize = 4;

/// Asks the instances of a plugin how they are: which one was asked last, and the questions that it has not answered, each
/// with one of these.
#[derive(Debug, Default)]
pub(super) struct Asker(Mutex<(usize, Arc<()>)>);

impl Asker {
    pub(super) fn ask(
        &self,
        which: usize,
        health: impl Future<Output = model::Result<Said>> + Send + 'static,
    ) -> BoxFuture<'static, model::Result<Said>> {
        let (open, question) = {
            let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.0 != which {
                *asked = (which, Arc::default());
            }
            (Arc::strong_count(&asked.1) - 1, asked.1.clone())
        };
        if open >= QUESTIONS_MAX {
            let why = format!("{open} questions of how it is are without an answer");
            return std::future::ready(Err(model::Error::new(abi::E_UNAVAILABLE, why))).boxed();
        }
        // Who asked may not wait for the answer.
        let answer = tokio::spawn(async move {
            let said = health.await;
            drop(question);
            said
        });
        let ended = |_| {
            Err(model::Error::new(
                abi::E_INTERNAL,
                "it was not asked to the end",
            ))
        };
        async move { answer.await.unwrap_or_else(ended) }.boxed()
    }
}

/// Which instance it is, for as long as anybody has it.
pub(super) fn address<I>(instance: &Arc<I>) -> usize {
    Arc::as_ptr(instance).addr()
}

/// What the plugins said last of themselves: `{"name": number}` of each.
#[derive(Debug, Clone, Default)]
pub(super) struct Numbers(Arc<Mutex<BTreeMap<&'static str, BTreeMap<String, f64>>>>);

/// A plugin's, while it is asked: what it has said before is shown until it has answered, and no longer where nobody waits for
/// that any more, since in a metric it looks as good as new.
struct Question<'a> {
    numbers: &'a Numbers,
    plugin: &'static str,
    said: Option<BTreeMap<String, f64>>,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        match self.said.take() {
            Some(said) => drop(self.numbers.all().insert(self.plugin, said)),
            None => self.numbers.forget(self.plugin),
        }
    }
}

/// The number of a store that has a name of its own: the contract says so (`skg_health.metrics_json`).
const BLOB_BYTES: &str = "blob_bytes";
/// Numbers of one plugin that are shown.
const NUMBERS_MAX: usize = 64;

/// What a plugin says as `skg_health.metrics_json`, which may be nothing.
fn numbers(text: &str) -> serde_json::Result<BTreeMap<String, f64>> {
    match text {
        "" => Ok(BTreeMap::new()),
        text => serde_json::from_str(text),
    }
}

impl Numbers {
    pub(super) async fn said(
        self,
        plugin: &'static str,
        asked: impl Future<Output = model::Result<Said>> + Send,
    ) -> State {
        let mut question = Question {
            numbers: &self,
            plugin,
            said: None,
        };
        let said = match heard(asked.await) {
            Ok(said) => said,
            Err(error) => return State::Failed(error.message),
        };
        let numbers = numbers(&said.metrics_json);
        let is_well = said.state == abi::HEALTH_OK && numbers.is_ok();
        let mut message = said.message;
        if let Err(why) = &numbers {
            // Alarms are built on them, and one that is missing rings none.
            message = format!(
                "none of its numbers is shown, as they are no flat object of numbers ({why}): {message}"
            );
        }
        let shown = numbers.unwrap_or_default();
        question.said = Some(shown.into_iter().take(NUMBERS_MAX).collect());
        match said.state {
            abi::HEALTH_OK if is_well => State::Well(message),
            abi::HEALTH_OK | abi::HEALTH_DEGRADED => State::Impaired(message),
            _ => State::Failed(message),
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<&'static str, BTreeMap<String, f64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forget(&self, plugin: &'static str) {
        self.all().remove(plugin);
    }

    pub(super) fn write(&self, page: &mut Page) {
        page.family(
            "skillgate_plugin_value",
            "gauge",
            "What the plugins say of themselves, by their own names.",
        );
        let all = self.all();
        for (plugin, numbers) in all.iter() {
            for (name, value) in numbers {
                page.sample(&[("plugin", plugin), ("name", name)], *value);
            }
        }
        if let Some(bytes) = all.get("storage").and_then(|said| said.get(BLOB_BYTES)) {
            page.family(
                "skillgate_blob_store_bytes",
                "gauge",
                "Bytes of the blobs in the store, as it has counted them last.",
            );
            page.sample(&[], *bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use skillgate_plugin_sdk::model::{Error, Health};

    use super::*;
    use crate::telemetry::metrics::Metrics;

    #[tokio::test]
    async fn a_plugin_that_does_not_answer_is_asked_no_more() {
        let asker = Asker::default();
        let (tell, told) = tokio::sync::watch::channel(false);
        let ask = |which| {
            let mut told = told.clone();
            asker.ask(which, async move {
                let _ = told.wait_for(|told| *told).await;
                Ok(Health::default())
            })
        };
        for _ in 0..QUESTIONS_MAX {
            assert!(ask(1).now_or_never().is_none(), "and nobody waits for it");
        }
        let refused = ask(1).now_or_never().expect("at once");
        assert!(refused.is_err_and(|it| it.message.contains("4 questions")));
        // Another one in its place is asked, and so is the first as soon as it has answered.
        let other = ask(2);
        tell.send_replace(true);
        assert!(other.await.is_ok());
        assert!(ask(2).await.is_ok());
    }

    #[tokio::test]
    async fn a_plugin_that_cannot_say_how_it_is_has_no_numbers() {
        let (metrics, numbers) = (Metrics::default(), Numbers::default());
        let of_all = numbers.clone();
        metrics.add_source(move |page| of_all.write(page));
        let ask = |plugin, answer: Result<Health, Error>| {
            let numbers = numbers.clone();
            async move { numbers.said(plugin, std::future::ready(answer)).await }
        };
        let well = || {
            Ok(Health {
                metrics_json: r#"{"free_bytes":7,"blob_bytes":9}"#.into(),
                ..Health::default()
            })
        };
        let shown = |sample: &str| metrics.page().into_text().contains(sample);
        ask("storage", well()).await;
        ask("shelf", well()).await;
        assert!(shown(r#"{plugin="storage",name="free_bytes"} 7"#));
        assert!(shown("skillgate_blob_store_bytes 9"));
        let gone = Err(Error::new(abi::E_UNAVAILABLE, "it hangs"));
        assert_eq!(ask("storage", gone).await, State::Failed("it hangs".into()));
        assert!(!shown(r#"plugin="storage""#) && !shown("skillgate_blob_store_bytes"));
        assert!(shown(r#"{plugin="shelf",name="free_bytes"} 7"#));
        // One that has no health() says no numbers either, and works.
        ask("storage", well()).await;
        let none = Err(Error::new(abi::E_UNIMPLEMENTED, "no such call"));
        let silent = State::Well("it does not say how it is".into());
        assert_eq!(ask("storage", none).await, silent);
        assert!(!shown(r#"plugin="storage""#));

        // One that says something else with them works, and is to be looked at.
        let odd = Ok(Health {
            state: abi::HEALTH_OK,
            message: "fine".into(),
            metrics_json: r#"{"free_bytes":7,"since":"today"}"#.into(),
            ..Health::default()
        });
        let said = ask("storage", odd).await;
        let is_told = |it: &str| it.contains("none of its numbers") && it.ends_with(": fine");
        assert!(
            matches!(&said, State::Impaired(it) if is_told(it)),
            "{said:?}"
        );
        assert!(!shown(r#"plugin="storage""#));
        let without = Ok(Health {
            state: abi::HEALTH_OK,
            ..Health::default()
        });
        assert_eq!(ask("storage", without).await, State::Well(String::new()));

        // Nor one that does not answer, of which the health is not told; until nobody waits for that any more.
        let mut asked = Box::pin(numbers.clone().said("shelf", std::future::pending()));
        assert!(asked.as_mut().now_or_never().is_none());
        assert!(shown(r#"plugin="shelf""#));
        drop(asked);
        assert!(!shown(r#"plugin="shelf""#));
    }
}
