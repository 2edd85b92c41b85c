//! What is left of runs: nothing, also when the plugin's process was killed.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::getpid;
use skillgate_plugin_host::RunHost;
use skillgate_plugin_sdk::abi;

use super::{Services, request, run};
use crate::bench::{Bench, CALL_LIMIT, Done, demand, failed, failed_at};
use crate::process_state::Stat;
use crate::raw::Kind;
use crate::storage::life::{kill, until_back};

/// How soon after a run its processes are gone.
const GONE_LIMIT: Duration = Duration::from_secs(3);
/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(20);

/// Starts a process that outlives its parent; its command line names it.
fn leaver(mark: &str) -> String {
    format!(
        "import os, sys, time\ndef leave():\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            os.closerange(0, 3)\n            try: os.execv('/proc/self/exe', ['{mark}', '-c', 'import time; time.sleep(120)'])\n            finally: os._exit(1)\n        os._exit(0)\n    time.sleep(0.3)\n"
    )
}

/// Processes whose command line has `mark` in it.
fn marked(mark: &str) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        // One that ends just now is none.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.starts_with(mark.as_bytes()) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

/// Waits until nothing is found any more.
pub(super) fn until_none<T>(
    mut look: impl FnMut() -> std::io::Result<Vec<T>>,
) -> std::io::Result<Vec<T>> {
    let until = Instant::now() + GONE_LIMIT;
    loop {
        let found = look()?;
        if found.is_empty() || Instant::now() > until {
            return Ok(found);
        }
        std::thread::sleep(LOOK);
    }
}

pub(crate) fn leftovers(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let mark = format!("skillgate-check-stays-{}", getpid().as_raw_nonzero());
    let code = format!(
        "{}\ndef main(args):\n    leave()\n    return 1\n",
        leaver(&mark)
    );
    // Whether it may is its own matter.
    let _ = run(
        bench,
        &sandbox,
        "one that leaves a process",
        request(&code),
        &Arc::default(),
    )?;
    let left = until_none(|| marked(&mark))?;
    end(&left);
    demand(left.is_empty(), || {
        format!("{} processes of a run go on after it has ended", left.len())
    })
}

/// What this check has made and found is not left behind.
fn end(pids: &[String]) {
    for pid in pids.iter().filter_map(|pid| pid.parse().ok()) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            // It may have ended by now.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Parent and moment of start. Nothing of one that has ended, reaped or not.
fn parent_and_start(pid: &str) -> Option<(String, String)> {
    let stat = Stat::read(&Path::new("/proc").join(pid))?;
    (stat.state != "Z").then_some((stat.parent, stat.start))
}

/// Every process below this one, with the moment of its start.
fn descendants() -> std::io::Result<Vec<(String, String)>> {
    let mut parents = HashMap::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if let Some(known) = parent_and_start(&pid) {
            parents.insert(pid, known);
        }
    }
    let mut found = Vec::new();
    let mut todo = vec![getpid().as_raw_nonzero().to_string()];
    while let Some(parent) = todo.pop() {
        for (pid, (of, start)) in &parents {
            if *of == parent {
                todo.push(pid.clone());
                found.push((pid.clone(), start.clone()));
            }
        }
    }
    Ok(found)
}

/// Is this very process still there?
fn lives((pid, start): &(String, String)) -> bool {
    parent_and_start(pid).is_some_and(|(_, began)| began == *start)
}

pub(crate) fn killed(bench: &Bench) -> Done {
    let plugin = bench.open_apart(Kind::Sandbox)?;
    let sandbox = super::of_python(bench, &plugin)?;
    let mark = format!("skillgate-check-swept-{}", getpid().as_raw_nonzero());
    // It leaves a process if it may, says so, and waits.
    let code = format!(
        "{}\ndef main(args):\n    try: leave()\n    except OSError: pass\n    print('begun', flush=True)\n    time.sleep(300)\n",
        leaver(&mark)
    );
    bench.step("run: one that is under way when the plugin's process is killed");
    let services = Arc::new(Services::default());
    let waiting = {
        let (sandbox, services) = (Arc::clone(&sandbox), Arc::clone(&services));
        bench.spawn(async move {
            sandbox
                .run(request(&code), services as Arc<dyn RunHost>)
                .await
        })
    };
    if !services.has_output(CALL_LIMIT) {
        return Err(failed_at(
            "run_output",
            "a run that prints and waits is not heard of",
        ));
    }
    let mut below = descendants()?;
    let killed = kill(bench)?.as_raw_nonzero().to_string();
    below.retain(|(pid, _)| *pid != killed);
    let ended = bench
        .wait(async { Ok(waiting.await) })?
        .map_err(|error| failed(error.to_string()))?;
    let lost = ended.err().map(|error| error.code);
    demand(lost == Some(abi::E_CRASHED), || {
        format!("the run that was under way ends with {lost:?}")
    })?;
    bench.step("the first run of the next life");
    let after = until_back(|| {
        let code = "def main(args):\n    return 2\n";
        bench.wait(sandbox.run(request(code), Arc::new(Services::default())))
    })?;
    demand(after.completed, || {
        format!("{}: {}", after.error_type, after.error_message)
    })?;
    let left = until_none(|| {
        let mut left = marked(&mark)?;
        left.extend(
            below
                .iter()
                .filter(|process| lives(process))
                .map(|(pid, _)| pid.clone()),
        );
        Ok(left)
    })?;
    end(&left);
    if left.is_empty() {
        return Ok(());
    }
    Err(failed_at(
        "create",
        format!(
            "{} processes of the killed life go on in the next one: create() has not removed them",
            left.len()
        ),
    ))
}
