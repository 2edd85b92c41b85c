//! What calls cost on this machine: reported, not judged.

use std::time::{Duration, Instant};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Result, SkillQuery};

use crate::bench::{Bench, Done};
use crate::raw::Kind;
use crate::sandbox;

/// Most of each that are made.
const CALLS: usize = 1000;
const RUNS: usize = 10;
/// Of what is slow, or far away, so many as begin within this, and one in any case.
const MEASURED_FOR: Duration = Duration::from_secs(3);

/// What it does not offer is left out: the contract lets a function be NULL.
fn measure(bench: &Bench, name: &str, calls: usize, mut call: impl FnMut() -> Result<()>) -> Done {
    let mut times = Vec::with_capacity(calls);
    let first = Instant::now();
    while times.is_empty() || (times.len() < calls && first.elapsed() < MEASURED_FOR) {
        let began = Instant::now();
        match call() {
            Err(error) if times.is_empty() && error.code == abi::E_UNIMPLEMENTED => return Ok(()),
            called => called?,
        }
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    bench.figure(&format!("{name}_calls"), times.len() as f64);
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        times
            .get((times.len() as f64 * share) as usize)
            .copied()
            .unwrap_or(0.0)
    };
    for (percentile, share) in [("p50", 0.5), ("p99", 0.99)] {
        // Tenths of a microsecond are as much as there is to know.
        bench.figure(
            &format!("{name}_{percentile}_us"),
            (at(share) * 10.0).round() / 10.0,
        );
    }
    Ok(())
}

pub(crate) fn calls(bench: &Bench) -> Done {
    let plugin = bench.load()?;
    let kinds = bench.kinds(&plugin);
    if kinds.contains(&Kind::Storage) {
        let store = bench.storage_of(&bench.open(Kind::Storage)?, "storage")?;
        bench.step("health and skill_list, many times");
        let instance = &store.instance;
        measure(bench, "storage_health", CALLS, || {
            bench.wait(instance.health()).map(drop)
        })?;
        let query = || SkillQuery {
            limit: 10,
            tenant: "check".into(),
            ..SkillQuery::default()
        };
        measure(bench, "skill_list", CALLS, || {
            bench.wait(instance.skill_list(query())).map(drop)
        })?;
        let mut destroyed = instance.destroyed();
        drop(store);
        bench.until_destroyed(destroyed.wait())?;
    }
    if kinds.contains(&Kind::Sandbox) {
        let instance = bench.sandbox_of(&bench.open(Kind::Sandbox)?, "sandbox")?;
        bench.step("health");
        measure(bench, "sandbox_health", CALLS, || {
            bench.wait(instance.health()).map(drop)
        })?;
        let one = || {
            let request = sandbox::request("def main(args):\n    return 1\n");
            let services = std::sync::Arc::default();
            sandbox::run(bench, &instance, "one to measure", request, &services).map(drop)
        };
        // Of a sandbox that does not run python there is nothing to measure.
        if !one().is_err_and(|error| sandbox::is_no_such_language(&error)) {
            measure(bench, "run", RUNS, one)?;
        }
    }
    Ok(())
}
