//! The permits of runs: what was allowed by rules that are gone is not started on, and what has been granted of network and
//! secrets can be asked for again when the rules change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Error;
use crate::policy::Permit;

/// The permits in use.
#[derive(Debug, Default)]
pub(super) struct Permits(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Of the newest rules that are known here.
    generation: u64,
    in_use: HashMap<String, Permit>,
}

impl Permits {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves a list, whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For as long as the run goes on. Of one without network and secrets there is nothing that could be taken back later.
    ///
    /// # Errors
    /// [`Error::Outdated`] when other rules than those that gave it are in force.
    pub(super) fn enter(
        self: &Arc<Self>,
        run_id: &str,
        permit: &Permit,
    ) -> Result<Option<InUse>, Error> {
        let mut state = self.state();
        state.check(permit)?;
        if permit.network.is_empty() && permit.secrets.is_empty() {
            return Ok(None);
        }
        state.in_use.insert(run_id.to_owned(), permit.clone());
        Ok(Some(InUse {
            permits: self.clone(),
            run_id: run_id.to_owned(),
        }))
    }

    /// That no newer rules are known than those that gave it.
    ///
    /// # Errors
    /// [`Error::Outdated`]
    pub(super) fn check(&self, permit: &Permit) -> Result<(), Error> {
        self.state().check(permit)
    }

    /// From now on no run starts with a permit that older rules gave.
    pub(super) fn outdate(&self, generation: u64) {
        let mut state = self.state();
        state.generation = state.generation.max(generation);
    }

    /// The permits that older rules gave. From now on no run starts with such a one.
    pub(super) fn before(&self, generation: u64) -> Vec<(String, Permit)> {
        self.outdate(generation);
        let state = self.state();
        let older = state.in_use.iter();
        older
            .filter(|(_, permit)| permit.generation < generation)
            .map(|(run_id, permit)| (run_id.clone(), permit.clone()))
            .collect()
    }
}

impl State {
    fn check(&self, permit: &Permit) -> Result<(), Error> {
        if permit.generation < self.generation {
            return Err(Error::Outdated);
        }
        Ok(())
    }
}

/// A permit that is in use until this is dropped.
#[derive(Debug)]
pub(super) struct InUse {
    permits: Arc<Permits>,
    run_id: String,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.permits.state().in_use.remove(&self.run_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(generation: u64, network: &[&str]) -> Permit {
        let network = network.iter().map(|text| (*text).to_owned()).collect();
        Permit::for_tests(generation, network)
    }

    #[test]
    fn a_permit_of_older_rules_starts_nothing() {
        let permits = Arc::new(Permits::default());
        let old = permit(0, &["https://a.example"]);
        let going_on = permits.enter("run_1", &old).unwrap();
        let ids = |generation| -> Vec<String> {
            let older = permits.before(generation).into_iter();
            older.map(|(run_id, _)| run_id).collect()
        };
        assert!(permits.check(&old).is_ok());
        assert_eq!(ids(1), ["run_1"]);
        assert!(matches!(permits.enter("run_2", &old), Err(Error::Outdated)));
        // Nor what had entered before and has not begun.
        assert!(matches!(permits.check(&old), Err(Error::Outdated)));
        let new = permit(1, &["https://a.example"]);
        let _new = permits.enter("run_3", &new).unwrap();
        assert_eq!(ids(1), ["run_1"], "the new rules need not be asked again");
        drop(going_on);
        assert_eq!(ids(1), [""; 0]);
        // An older answer that comes late changes nothing.
        assert_eq!(ids(0), [""; 0]);
        assert!(permits.enter("run_4", &old).is_err());
        let plain = |generation| permits.enter("run_5", &permit(generation, &[]));
        assert!(plain(0).is_err() && plain(1).unwrap().is_none());
        // A secret alone can be taken back, too.
        let mut with_secret = permit(1, &[]);
        with_secret.secrets = vec!["API_KEY".into()];
        let _with_secret = permits.enter("run_6", &with_secret).unwrap().unwrap();
        let mut later = ids(2);
        later.sort();
        assert_eq!(later, ["run_3", "run_6"]);
    }
}
