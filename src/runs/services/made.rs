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
    /// On their way into the store: from here on they cannot be held back.
    committing: usize,
    pub(super) over: bool,
    /// The end that is owed, until what is on its way has arrived; and who waits for that, whom the drop of it tells.
    owed: Option<(End, oneshot::Sender<()>)>,
}

/// An end that can be recorded, with the blobs that the run has made; or what tells that the last of them has arrived, with
/// which it is recorded.
pub(in crate::runs) type Closed = std::result::Result<(End, Vec<String>), oneshot::Receiver<()>>;

impl Made {
    pub(super) fn begin(&mut self) -> Result<()> {
        if self.over {
            return Err(Error::new(abi::E_CANCELLED, "the run is over"));
        }
        self.committing += 1;
        Ok(())
    }

    /// `None`: the store did not take it.
    pub(super) fn arrived(&mut self, id: Option<String>) {
        self.committing -= 1;
        self.ids.extend(id);
        if self.committing == 0 {
            self.pay();
        }
    }

    pub(super) fn close(&mut self, end: End) -> Closed {
        self.over = true;
        if self.committing == 0 {
            return Ok((end, self.ids.clone()));
        }
        let (tells, told) = oneshot::channel();
        self.owed = Some((end, tells));
        Err(told)
    }

    pub(super) fn pay(&mut self) {
        if let Some((end, _tells)) = self.owed.take() {
            end.post(&self.ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::audit::Audit;
    use crate::config;

    /// How a log of one run lists its blobs, while `run` does what it does between its beginning and its end.
    async fn recorded(run: impl FnOnce(&mut Made, End)) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let audit = Audit::open(&config::Audit {
            path: path.clone(),
            fsync: config::Fsync::Never,
            max_file_bytes: 1 << 20,
            on_failure: config::OnAuditFailure::Deny,
        })
        .unwrap();
        run(&mut Made::default(), End::for_tests(audit.clone()));
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
}
