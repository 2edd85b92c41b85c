//! The blobs that a run has made, and what its record has to wait for.

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Error, Result};
use tokio::sync::oneshot;

use crate::runs::ending::End;

/// The blobs that a run has made. With its end it makes no more, whoever has ended it, and its record lists those that it has
/// made.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) ids: Vec<String>,
    /// The run was given secrets: nobody is told of what may be its output before that was looked through.
    has_secrets: bool,
    /// What may be its output, and nobody has looked through.
    unseen: Vec<String>,
    /// Blobs on their way into the store, which cannot be held back from here on, and looks at what is unseen.
    under_way: usize,
    pub(super) over: bool,
    /// The end that is owed, until all that has come to its end.
    owed: Option<End>,
    /// Who waits for that: it is told when there is something to look through, and by the drop of this when there is not.
    tells: Option<oneshot::Sender<()>>,
}

/// An end that can be recorded, with the blobs that the run has made; or what tells that the last of them has arrived, with
/// which it is recorded: when they were looked through, where there is something to look through.
pub(in crate::runs) type Closed = std::result::Result<(End, Vec<String>), oneshot::Receiver<()>>;

impl Made {
    pub(super) fn new(has_secrets: bool) -> Self {
        Made {
            has_secrets,
            ..Made::default()
        }
    }

    pub(super) fn begin(&mut self) -> Result<()> {
        if self.over {
            return Err(Error::new(abi::E_CANCELLED, "the run is over"));
        }
        self.under_way += 1;
        Ok(())
    }

    /// `None`: the store did not take it.
    pub(super) fn arrived(&mut self, id: Option<String>) {
        // A run that is over cannot say any more whether this is its output.
        let unseen = self.over && self.has_secrets;
        let list = if unseen {
            &mut self.unseen
        } else {
            &mut self.ids
        };
        list.extend(id);
        self.is_done();
    }

    /// It makes no more. Whether there is something to look through, where its last one may be its output.
    pub(super) fn stop(&mut self, last_may_be_output: bool) -> bool {
        if !self.over && self.has_secrets && last_may_be_output {
            self.unseen.extend(self.ids.pop());
        }
        self.over = true;
        !self.unseen.is_empty()
    }

    /// They are to be looked through, which ends with `looked_through`.
    pub(super) fn take_unseen(&mut self) -> Vec<String> {
        self.under_way += 1;
        std::mem::take(&mut self.unseen)
    }

    /// `plain`: those that have no secret in them.
    pub(super) fn looked_through(&mut self, plain: Vec<String>) {
        self.ids.extend(plain);
        self.is_done();
    }

    fn is_done(&mut self) {
        self.under_way -= 1;
        self.settle();
    }

    /// Nobody who waits would be there to look through anything.
    fn settle(&mut self) {
        if self.under_way > 0 {
            return;
        }
        let tells = self.tells.take();
        let is_told = !self.unseen.is_empty() && tells.is_some_and(|tells| tells.send(()).is_ok());
        if !is_told {
            self.pay();
        }
    }

    pub(super) fn close(&mut self, end: End) -> Closed {
        let is_unseen = self.stop(true);
        if self.under_way == 0 && !is_unseen {
            return Ok((end, self.ids.clone()));
        }
        let (tells, told) = oneshot::channel();
        self.owed = Some(end);
        self.tells = Some(tells);
        self.settle();
        Err(told)
    }

    /// Without what is still under way, and without what nobody has looked through.
    pub(super) fn pay(&mut self) {
        if let Some(end) = self.owed.take() {
            end.post(&self.ids);
        }
        if !self.has_secrets {
            self.tells = None;
        }
    }

    /// Nobody waits any more: if nothing is under way that would pay, this does.
    pub(super) fn is_left(&mut self) {
        if self.under_way == 0 {
            self.pay();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::audit::Audit;
    use crate::config;
    use crate::runs::ending::arrives;

    /// How a log of one run lists its blobs, while `run` does what it does between its beginning and its end.
    async fn recorded(run: impl FnOnce(&mut Made, End)) -> Vec<String> {
        recorded_late(async |audit| run(&mut Made::default(), End::for_tests(audit))).await
    }

    /// The same where that takes its time.
    async fn recorded_late(run: impl AsyncFnOnce(Audit)) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let audit = Audit::open(&config::Audit {
            path: path.clone(),
            fsync: config::Fsync::Never,
            max_file_bytes: 1 << 20,
            on_failure: config::OnAuditFailure::Deny,
        })
        .unwrap();
        run(audit.clone()).await;
        audit.close().await;
        let text = std::fs::read_to_string(path).unwrap();
        let records = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let of_runs: Vec<_> = records.filter(|record| record["kind"] == "run").collect();
        assert_eq!(of_runs.len(), 1, "{text}");
        assert_eq!(
            (&of_runs[0]["status"], &of_runs[0]["error_type"]),
            (&"failed".into(), &"Timeout".into())
        );
        serde_json::from_value(of_runs[0]["output_blobs"].clone()).unwrap()
    }

    #[tokio::test]
    async fn a_run_that_is_over_is_recorded_with_the_blob_that_was_on_its_way() {
        let listed = recorded(|made, end| {
            made.begin().unwrap();
            made.arrived(Some("blob:1".into()));
            made.begin().unwrap();
            made.begin().unwrap();
            assert!(made.close(end).is_err());
            assert_eq!(made.begin().unwrap_err().code, abi::E_CANCELLED);
            made.arrived(None);
            made.arrived(Some("blob:2".into()));
        });
        assert_eq!(listed.await, ["blob:1", "blob:2"]);
        let listed = recorded(|made, end| {
            made.begin().unwrap();
            made.arrived(Some("blob:1".into()));
            let (end, made_by_then) = made.close(end).unwrap();
            assert_eq!(made.begin().unwrap_err().code, abi::E_CANCELLED);
            end.post(&made_by_then);
        });
        assert_eq!(listed.await, ["blob:1"]);
        // Once, also when it was not waited for.
        let listed = recorded(|made, end| {
            made.begin().unwrap();
            let mut told = made.close(end).unwrap_err();
            assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
            made.pay();
            assert_eq!(told.try_recv(), Err(TryRecvError::Closed));
            made.arrived(Some("blob:1".into()));
        });
        assert_eq!(listed.await, [""; 0]);
    }

    /// Whether a run completed or not, nobody hears of its output before that was looked through.
    #[tokio::test]
    async fn what_may_be_an_output_is_on_record_when_it_was_looked_through() {
        let of_secrets = |made: &mut Made, count: usize| {
            *made = Made::new(true);
            for number in 1..=count {
                made.begin().unwrap();
                made.arrived(Some(format!("blob:{number}")));
            }
        };
        // Its caller goes, and all its blobs have arrived.
        let listed = recorded(|made, end| {
            of_secrets(made, 2);
            let mut told = made.close(end).unwrap_err();
            assert_eq!(told.try_recv(), Ok(()));
            assert_eq!(made.ids, ["blob:1"]);
            let unseen = made.take_unseen();
            assert_eq!(unseen, ["blob:2"]);
            made.looked_through(unseen);
        });
        assert_eq!(listed.await, ["blob:1", "blob:2"]);
        // One is on its way.
        let listed = recorded(|made, end| {
            of_secrets(made, 0);
            made.begin().unwrap();
            assert!(!made.stop(true));
            let mut told = made.close(end).unwrap_err();
            assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
            made.arrived(Some("blob:1".into()));
            assert_eq!(told.try_recv(), Ok(()));
            assert_eq!(made.ids, [""; 0]);
            assert_eq!(made.take_unseen(), ["blob:1"]);
            made.looked_through(Vec::new());
        });
        assert_eq!(listed.await, [""; 0]);
        // So late that the record was not kept waiting: it is looked through all the same.
        let listed = recorded(|made, end| {
            of_secrets(made, 0);
            made.begin().unwrap();
            let mut told = made.close(end).unwrap_err();
            made.pay();
            assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
            made.arrived(Some("blob:1".into()));
            assert_eq!(told.try_recv(), Ok(()));
        });
        assert_eq!(listed.await, [""; 0]);
        // Its caller goes while it is looked through.
        let listed = recorded(|made, end| {
            of_secrets(made, 1);
            assert!(made.stop(true));
            let unseen = made.take_unseen();
            let mut told = made.close(end).unwrap_err();
            assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
            made.looked_through(unseen);
            assert_eq!(told.try_recv(), Err(TryRecvError::Closed));
        });
        assert_eq!(listed.await, ["blob:1"]);
        // The gateway has ended, and nobody is left to do it.
        let listed = recorded(|made, end| {
            of_secrets(made, 1);
            drop(made.close(end).unwrap_err());
            made.is_left();
        });
        assert_eq!(listed.await, [""; 0]);
        // It has completed, and its output is not stored.
        let listed = recorded(|made, end| {
            of_secrets(made, 1);
            assert!(!made.stop(false));
            let (end, all) = made.close(end).unwrap();
            end.post(&all);
        });
        assert_eq!(listed.await, ["blob:1"]);
    }

    /// What others' outputs keep waiting is not what the store does not have.
    #[tokio::test]
    async fn a_blob_that_waits_to_be_looked_through_is_on_record_for_all_that() {
        /// Of a run whose one blob is looked through after 61 seconds, for which others have the turn.
        async fn listed(gateway_ends: impl Future<Output = ()>) -> Vec<String> {
            let made = Mutex::new(Made::new(true));
            made.lock().unwrap().begin().unwrap();
            made.lock().unwrap().arrived(Some("blob:1".into()));
            let run = async |audit| {
                // Not for the log, whose thread is no part of this clock.
                tokio::time::pause();
                let told = made.lock().unwrap().close(End::for_tests(audit));
                let look = async {
                    let unseen = made.lock().unwrap().take_unseen();
                    tokio::time::sleep(Duration::from_secs(61)).await;
                    made.lock().unwrap().looked_through(unseen);
                };
                let pay = || made.lock().unwrap().pay();
                arrives("run_1", told.unwrap_err(), look, pay, gateway_ends).await;
                tokio::time::resume();
            };
            recorded_late(run).await
        }
        assert_eq!(listed(std::future::pending()).await, ["blob:1"]);
        // The gateway's end waits for nobody's turn.
        let ends = async { tokio::time::sleep(Duration::from_secs(60)).await };
        assert_eq!(listed(ends).await, [""; 0]);
    }
}
