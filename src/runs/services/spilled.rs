//! An output that is too large for an answer, and so was stored: it is the run's output all the same, and nobody gets it with
//! a secret of the run in it.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Error, RunResult};
use tokio::time::Instant;
use tracing::Instrument;

use super::Services;
use crate::blobs;
use crate::runs::answer::failure;
use crate::secrets::{Redactor, Search};
use crate::slots::{Slot, Slots};
use crate::telemetry::with_sources;

/// Bytes that are read at a time: as many as a store verifies at once, which one that is asked for less may have to do again.
const READ_BYTES: usize = 1 << 20;
/// Bytes that are looked through at a time, on a thread that others need: some 0.5 ms.
const PIECE_BYTES: usize = 64 * 1024;
/// One piece at a time, of whichever output: searches that go on at once would have all of these threads, one piece after the
/// other, and whoever is asked meanwhile would wait behind dozens of them. Tenants come in turn: large outputs of one, however many,
/// are not another's wait.
static TURN: LazyLock<Arc<Slots>> = LazyLock::new(|| Slots::new(1));
/// How long that may take altogether, a store that hangs included, and turns of others not.
const WITHIN: Duration = Duration::from_secs(30);

/// Between two looks at one that is short of something at the moment.
const AGAIN_AFTER_MIN: Duration = Duration::from_millis(100);

const HAS_ONE: &str = r#""[the output is withheld: it was stored, being too large for an answer, and has the value of one of the run's secrets in it; return it without that value]""#;
const UNKNOWN: &str = r#""[the output is withheld: it was stored, being too large for an answer, and the store did not let it be searched for the run's secrets]""#;

impl Services {
    /// The end of a run whose output may be its last blob. Where one of its secrets stands in that, or it cannot be known, the
    /// blob goes, and a sentence is the output.
    pub(in crate::runs) async fn without_secrets_in_blob(
        self: &Arc<Self>,
        mut ended: Result<RunResult, RunResult>,
    ) -> Result<RunResult, RunResult> {
        let completed = ended.as_mut().ok().filter(|result| result.completed);
        // One that did not complete may have stored its output all the same, and was ended before it could say so.
        let may_be_output = completed.as_ref().is_none_or(|it| it.output_spilled);
        if !self.stop(may_be_output) {
            return ended;
        }
        // A task of its own: what must not be kept goes, also where its caller has gone.
        let services = self.clone();
        let looking = async move { services.look_through().await };
        let looked = tokio::spawn(looking.in_current_span()).await;
        let spilled = completed.filter(|result| result.output_spilled);
        match (looked, spilled) {
            (Ok(Some(why)), Some(result)) => {
                result.output_spilled = false;
                result.output_json = why.into();
            }
            (Err(error), spilled) => {
                tracing::error!(run_id = self.run_id, %error, "looking through an output");
                let why = "the output could not be looked through for the secrets of the run";
                if let Some(result) = spilled {
                    *result = failure(abi::RUN_SANDBOX_ERROR, why.to_owned());
                }
            }
            _ => {}
        }
        ended
    }

    /// It makes no more blobs. Whether there is something to look through.
    fn stop(&self, last_may_be_output: bool) -> bool {
        let mut state = self.state();
        state.stop();
        state.made.stop(last_may_be_output)
    }

    /// Looks through what may be its output, and removes what has a secret in it. The sentence of that, if it is so.
    pub(in crate::runs) async fn look_through(&self) -> Option<&'static str> {
        let redactor = self.granted.redactor()?;
        let unseen = self.state().made.take_unseen();
        let mut look = Look {
            at: self,
            plain: Vec::new(),
        };
        let mut withheld = None;
        for id in unseen {
            let Some(why) = self.why_withheld(redactor, &id).await else {
                look.plain.push(id);
                continue;
            };
            tracing::warn!(run_id = self.run_id, reason = why, "an output is withheld");
            self.withdraw(&id).await;
            withheld = Some(why);
        }
        withheld
    }

    async fn why_withheld(&self, redactor: &Arc<Redactor>, id: &str) -> Option<&'static str> {
        Some(match self.is_in_blob(redactor, id).await {
            Ok(false) => return None,
            Ok(true) => HAS_ONE,
            Err(Unknown::Store(error)) => {
                let error = with_sources(&error);
                tracing::error!(run_id = self.run_id, %error, "an output cannot be read back");
                UNKNOWN
            }
            Err(Unknown::Late) => {
                tracing::error!(
                    run_id = self.run_id,
                    "the store does not give an output back"
                );
                UNKNOWN
            }
        })
    }

    /// Whether one of them stands in it. What the store is short of for the moment is waited for.
    async fn is_in_blob(&self, redactor: &Arc<Redactor>, id: &str) -> Result<bool, Unknown> {
        let mut patience = Patience::begin();
        loop {
            let search = Search::new(redactor.clone());
            let error = match self.look(search, id, &mut patience).await {
                Err(Unknown::Store(blobs::Error::Store(error))) => error,
                other => return other,
            };
            let Some(wait) = passes_in(&error) else {
                return Err(Unknown::Store(blobs::Error::Store(error)));
            };
            patience.with(tokio::time::sleep(wait)).await?;
        }
    }

    async fn look(
        &self,
        mut search: Search,
        id: &str,
        patience: &mut Patience,
    ) -> Result<bool, Unknown> {
        let opened = self.blobs.open(self.caller.tenant(), id, 0, 0);
        let mut reader = patience.with(opened).await?.map_err(Unknown::Store)?;
        loop {
            let read = patience.with(reader.read(READ_BYTES)).await?;
            let (some, end) = read.map_err(|error| Unknown::Store(blobs::Error::Store(error)))?;
            for piece in some.chunks(PIECE_BYTES) {
                let _turn = patience.turn(self.caller.tenant()).await;
                if search.push(piece) {
                    return Ok(true);
                }
            }
            if end {
                return Ok(search.found());
            }
        }
    }

    /// Nobody is told of it. What cannot be removed has a name that nobody knows.
    async fn withdraw(&self, id: &str) {
        let tenant = self.caller.tenant();
        let gone = tokio::time::timeout(WITHIN, self.blobs.delete(tenant, id)).await;
        let why = match gone {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the store has not answered within {} s", WITHIN.as_secs()),
        };
        tracing::error!(
            run_id = self.run_id,
            tenant,
            blob = id,
            why,
            "an output that was withheld cannot be removed"
        );
    }
}

/// Why it cannot be known whether there is a secret in an output.
enum Unknown {
    /// The store does not give it out.
    Store(blobs::Error),
    /// It did not in time.
    Late,
}

/// Until when it may take.
struct Patience(Instant);

impl Patience {
    fn begin() -> Self {
        Patience(Instant::now() + WITHIN)
    }

    /// What the store is asked.
    async fn with<T>(&self, asked: impl Future<Output = T>) -> Result<T, Unknown> {
        let answer = tokio::time::timeout_at(self.0, asked).await;
        answer.map_err(|_| Unknown::Late)
    }

    /// Waits until no other piece is looked through, for as long as that takes.
    async fn turn(&mut self, tenant: &str) -> Slot {
        let began = Instant::now();
        let turn = TURN.wait(tenant).await;
        self.0 += began.elapsed();
        turn
    }
}

/// A look at what may be an output, however it ends; with those that have no secret in them.
struct Look<'a> {
    at: &'a Services,
    plain: Vec<String>,
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        let plain = std::mem::take(&mut self.plain);
        self.at.state().made.looked_through(plain);
    }
}

/// When to ask again: where the store says that it helps, since it had no reader or no descriptor, and where its process has ended
/// under a reader, and another one has the blob.
fn passes_in(error: &Error) -> Option<Duration> {
    let wait = Duration::from_millis(error.retry_after_ms.into());
    let has_ended = matches!(error.code, abi::E_CRASHED | abi::E_STALE);
    (error.retryable || has_ended).then(|| wait.max(AGAIN_AFTER_MIN))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skillgate_plugin_sdk::abi;
    use skillgate_plugin_sdk::model::Error;

    use super::{AGAIN_AFTER_MIN, Patience, WITHIN, passes_in};

    #[tokio::test(start_paused = true)]
    async fn one_piece_is_looked_through_at_a_time_and_none_is_given_up_for_waiting() {
        let turn = Patience::begin().turn("a").await;
        let second = tokio::spawn(async {
            let mut patience = Patience::begin();
            let _turn = patience.turn("a").await;
            let late = patience.with(std::future::pending::<()>());
            let began = tokio::time::Instant::now();
            assert!(late.await.is_err());
            began.elapsed()
        });
        tokio::time::sleep(WITHIN * 2).await;
        assert!(!second.is_finished());
        drop(turn);
        let waited = second.await.unwrap();
        // The timer's steps are of one ms.
        assert!(
            waited.abs_diff(WITHIN) < Duration::from_millis(5),
            "{waited:?}"
        );
    }

    #[tokio::test]
    async fn many_outputs_of_one_tenant_are_not_anothers_wait() {
        let held = Patience::begin().turn("flood").await;
        let (order, mut served) = tokio::sync::mpsc::unbounded_channel();
        for tenant in ["flood"; 50].into_iter().chain(["b"]) {
            let order = order.clone();
            tokio::spawn(async move {
                let _turn = Patience::begin().turn(tenant).await;
                order.send(tenant).unwrap();
            });
            // In this order.
            tokio::task::yield_now().await;
        }
        drop(held);
        let first = [served.recv().await, served.recv().await];
        assert!(first.contains(&Some("b")), "{first:?}");
    }

    #[test]
    fn another_process_of_the_store_is_waited_for() {
        for code in [abi::E_CRASHED, abi::E_STALE] {
            let ended = Error::new(code, "the process has ended");
            assert_eq!(passes_in(&ended), Some(AGAIN_AFTER_MIN));
        }
        assert_eq!(passes_in(&Error::new(abi::E_NOT_FOUND, "it is gone")), None);
    }

    #[test]
    fn a_shortage_that_passes_is_waited_for() {
        let full = || Error::new(abi::E_EXHAUSTED, "all are open");
        assert_eq!(passes_in(&full()), None);
        assert_eq!(passes_in(&full().retryable(0)), Some(AGAIN_AFTER_MIN));
        assert_eq!(
            passes_in(&full().retryable(1000)),
            Some(Duration::from_secs(1))
        );
    }
}
