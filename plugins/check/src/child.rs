//! What the kit starts: a case's watchdog, and the case's own process: it loads the plugin, does what the case says, and leaves a verdict.

use std::fs::File;
use std::path::Path;

use crate::bench::{Bench, Stop};
use crate::cases::CASES;
use crate::run::{CREATE, JOB, VERDICT};
use crate::{Job, KitError, Outcome, Verdict, watchdog};

/// What a child of [`crate::check`] does: `orders` is the path that it was given. A case's watchdog has other orders than
/// the case. A crash, `exit()` or hang of the plugin is the case's own; the kit sees that no verdict is there.
pub fn run_case(orders: &Path) -> Result<(), KitError> {
    if orders
        .file_name()
        .is_some_and(|name| name == watchdog::ORDERS)
    {
        return watchdog::run(orders);
    }
    let job = orders;
    let words = File::open(job).map_err(KitError::os("read a case's orders"))?;
    let job_of: Job =
        serde_json::from_reader(words).map_err(|error| KitError::Words { what: JOB, error })?;
    let case = CASES
        .iter()
        .find(|case| case.name == job_of.case)
        .ok_or_else(|| KitError::NoSuchCase(job_of.case.clone()))?;
    let dir = job.parent().unwrap_or(Path::new("."));
    let bench = Bench::new(job_of, dir)?;
    let outcome = match (case.run)(&bench) {
        Ok(()) => Outcome::Passed,
        Err(Stop::Skipped(why)) => Outcome::Skipped(why),
        Err(Stop::Failed { function, seen }) => Outcome::Failed {
            function: function.unwrap_or(case.function).to_owned(),
            seen,
        },
        Err(Stop::Call(error)) => Outcome::Failed {
            function: case.function.to_owned(),
            seen: format!("{}: {error}", bench.last_step()),
        },
    };
    let at_create = bench.last_step().starts_with(CREATE);
    let verdict = Verdict {
        outcome,
        at_create,
        ..bench.end()
    };
    let words = serde_json::to_vec(&verdict).map_err(|error| KitError::Words {
        what: VERDICT,
        error,
    })?;
    // Under its name only when it is whole: a plugin's thread may end the process at any time.
    let part = dir.join("verdict.part");
    std::fs::write(&part, words)
        .and_then(|()| std::fs::rename(&part, dir.join(VERDICT)))
        .map_err(KitError::os("write a verdict"))
}
