//! A sandbox: what it runs, what it keeps a run from, and what is left of it.

pub(crate) mod egress;
pub(crate) mod files;
pub(crate) mod gate;
pub(crate) mod isolation;
pub(crate) mod life;
pub(crate) mod limits;
pub(crate) mod measured;
pub(crate) mod runs;
pub(crate) mod skills;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use skillgate_plugin_host::{Plugin, RunHost, SandboxInstance};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Error, Limits, Result, RunRequest, RunResult};

use crate::bench::{Bench, Done, Stop, failed};
use crate::raw::Kind;
use gate::Gate;

/// The longest that a run of the kit lasts by itself.
pub(crate) const WALL_MS: u64 = 15_000;
/// The gateway's side keeps so much of a run's output.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Most that a run may store as one blob.
const BLOB_BYTES_MAX: usize = 16 << 20;

/// Why cases that run code are skipped.
pub(crate) const NO_PYTHON: &str = "it does not run python";

/// Whether a run was refused as the header says of a language that a sandbox does not run.
pub(crate) fn is_no_such_language(error: &Error) -> bool {
    error.code == abi::E_UNIMPLEMENTED && error.not_executed
}

/// An instance that runs the kit's code; nothing can be said from inside of one that does not. A plain run is asked: who
/// refuses others, and not this one, does run python.
pub(crate) fn of_python(bench: &Bench, plugin: &Plugin) -> Done<Arc<SandboxInstance>> {
    let sandbox = bench.sandbox_of(plugin, "a")?;
    let hello = request("def main(args):\n    return 1\n");
    match run(bench, &sandbox, "a plain one", hello, &Arc::default()) {
        Err(error) if is_no_such_language(&error) => Err(Stop::Skipped(NO_PYTHON.into())),
        // What is wrong with it the case says.
        _ => Ok(sandbox),
    }
}

/// [`of_python`] where this check wants its calls to go.
pub(crate) fn python(bench: &Bench) -> Done<Arc<SandboxInstance>> {
    of_python(bench, &bench.open(Kind::Sandbox)?)
}

/// The gateway's side of a run.
#[derive(Default)]
pub(crate) struct Services {
    output: Mutex<Vec<u8>>,
    written: Condvar,
    /// Values of secrets, by name.
    pub(crate) secrets: Vec<(String, String)>,
    /// By id: what the run may read, and what it has made.
    pub(crate) blobs: Mutex<HashMap<String, Vec<u8>>>,
    /// By writer.
    writing: Mutex<HashMap<i64, Vec<u8>>>,
    /// `None`: the run has none.
    pub(crate) gate: Option<Gate>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Services {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.output)).into_owned()
    }

    /// Waits until the run has written something.
    pub(crate) fn has_output(&self, limit: Duration) -> bool {
        let output = lock(&self.output);
        let waited = self
            .written
            .wait_timeout_while(output, limit, |output| output.is_empty());
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_empty()
    }
}

impl RunHost for Services {
    fn output(&self, _stream: u32, data: &[u8]) -> bool {
        let mut output = lock(&self.output);
        let room = OUTPUT_BYTES_MAX - output.len();
        output.extend_from_slice(&data[..data.len().min(room)]);
        self.written.notify_all();
        output.len() < OUTPUT_BYTES_MAX
    }
    fn secret(&self, name: &str) -> Result<Vec<u8>> {
        let found = self.secrets.iter().find(|(of, _)| of == name);
        let (_, value) = found.ok_or_else(|| Error::new(abi::E_NOT_FOUND, "no such secret"))?;
        Ok(value.clone().into_bytes())
    }
    fn blob_fd(&self, _: &str) -> Result<OwnedFd> {
        Err(Error::new(
            abi::E_UNIMPLEMENTED,
            "this store gives no descriptors",
        ))
    }
    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let blobs = lock(&self.blobs);
        let blob = blobs.get(id);
        let blob = blob.ok_or_else(|| Error::new(abi::E_NOT_FOUND, "no such blob"))?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = blob.get(offset..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
    fn blob_create(&self, _: &str) -> Result<i64> {
        let mut writing = lock(&self.writing);
        let writer = i64::try_from(writing.len()).unwrap_or(i64::MAX - 1) + 1;
        writing.insert(writer, Vec::new());
        Ok(writer)
    }
    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()> {
        let mut writing = lock(&self.writing);
        let blob = writing.get_mut(&writer);
        let blob = blob.ok_or_else(|| Error::new(abi::E_STALE, "no such writer"))?;
        if blob.len() + data.len() > BLOB_BYTES_MAX {
            return Err(Error::new(abi::E_OUT_OF_RANGE, "the quota is reached"));
        }
        blob.extend_from_slice(data);
        Ok(())
    }
    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>> {
        // The place stays: a number is not given twice.
        let mut writing = lock(&self.writing);
        let blob = writing.get_mut(&writer).map(std::mem::take);
        let blob = blob.ok_or_else(|| Error::new(abi::E_STALE, "no such writer"))?;
        if !commit {
            return Ok(None);
        }
        let id = format!("blob:{writer:032x}");
        lock(&self.blobs).insert(id.clone(), blob);
        Ok(Some(id))
    }
    fn gate_serve(&self, listener: OwnedFd) -> Result<()> {
        let Some(gate) = &self.gate else {
            return Err(Error::new(abi::E_PERMISSION, "the run has no gate"));
        };
        gate.serve(listener).map_err(|error| {
            let why = format!("the run's listener cannot be served: {error}");
            Error::new(abi::E_INVALID_ARGUMENT, why)
        })
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        max_pids: 32,
        wall_ms: WALL_MS,
        cpu_ms: 0,
        memory_bytes: 256 << 20,
        disk_bytes: 32 << 20,
        disk_inodes: 1000,
        output_bytes: 64 << 10,
    }
}

pub(crate) fn request(code: &str) -> RunRequest {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    RunRequest {
        run_id: format!("run_kit_{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        tenant: "check".into(),
        language: "python".into(),
        code: code.into(),
        function: "main".into(),
        args_json: b"{}".to_vec(),
        limits: limits(),
        ..RunRequest::default()
    }
}

/// A run; what of it is not the plugin's fault is a result.
pub(crate) fn run(
    bench: &Bench,
    sandbox: &SandboxInstance,
    what: &str,
    request: RunRequest,
    services: &Arc<Services>,
) -> Result<RunResult> {
    bench.step(format!("run: {what}"));
    bench.wait(sandbox.run(request, Arc::clone(services) as Arc<dyn RunHost>))
}

/// A run of code that has to complete; what it returns.
pub(crate) fn output(
    bench: &Bench,
    sandbox: &SandboxInstance,
    what: &str,
    code: &str,
) -> Done<Value> {
    output_of(bench, sandbox, what, request(code), &Arc::default())
}

pub(crate) fn output_of(
    bench: &Bench,
    sandbox: &SandboxInstance,
    what: &str,
    request: RunRequest,
    services: &Arc<Services>,
) -> Done<Value> {
    let result = run(bench, sandbox, what, request, services)?;
    if !result.completed {
        return Err(failed(format!(
            "{what}: the run failed: {}: {} {}",
            result.error_type,
            result.error_message,
            services.text()
        )));
    }
    // Empty: it has returned nothing.
    if result.output_json.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&result.output_json)
        .map_err(|error| failed(format!("{what}: output_json is not JSON: {error}")))
}

/// One of each call, as the gateway makes it; the first that goes wrong.
pub(crate) fn plain_calls(bench: &Bench, sandbox: &SandboxInstance) -> Result<()> {
    bench.step("health");
    bench.wait(sandbox.health())?;
    let code = "import sys\ndef main(args):\n    print('out')\n    print('err', file=sys.stderr)\n    return {'a': 1}\n";
    run(bench, sandbox, "hello", request(code), &Arc::default())?;
    run(
        bench,
        sandbox,
        "an exception",
        request("def main(args):\n    raise ValueError('x')\n"),
        &Arc::default(),
    )?;
    Ok(())
}
