//! The sandbox plugin without a gateway.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::{CreateRequest, Limits, RunRequest, RunResult};
use skillgate_plugin_sdk::testing::{self, Run};
use skillgate_sandbox_process::{Parts, SandboxProcess};

/// An instance with a state directory of its own.
pub(crate) struct Direct {
    plugin: SandboxProcess,
    _state: tempfile::TempDir,
}

impl Direct {
    /// With this configuration (JSON); an error says why there is none.
    pub(crate) fn new(config: &str) -> std::result::Result<Arc<Direct>, String> {
        let state = tempfile::Builder::new()
            .prefix("skillgate-bench-")
            .tempdir()
            .unwrap();
        let request = CreateRequest {
            instance_id: "bench".into(),
            state_dir: state.path().display().to_string(),
            config_json: config.as_bytes().to_vec(),
        };
        let parts = Parts {
            launcher: Some(launcher()),
            ..Parts::default()
        };
        let plugin = SandboxProcess::create_with(testing::host().0, request, parts)
            .map_err(|error| error.to_string())?;
        Ok(Arc::new(Direct {
            plugin,
            _state: state,
        }))
    }

    pub(crate) fn launcher_pid(&self) -> u32 {
        self.plugin.launcher_pid().unwrap()
    }

    /// Its result, and when that was there: what the run leaves is put away before this returns.
    pub(crate) fn run(&self, code: &str, services: &Run) -> (RunResult, Instant) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let request = RunRequest {
            run_id: format!("run_{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            tenant: "bench".into(),
            language: "python".into(),
            code: code.into(),
            function: "main".into(),
            args_json: b"{}".to_vec(),
            limits: Limits {
                max_pids: 64,
                wall_ms: 120_000,
                cpu_ms: 0,
                memory_bytes: 512 << 20,
                disk_bytes: 256 << 20,
                disk_inodes: 16384,
                output_bytes: 4096,
            },
            ..RunRequest::default()
        };
        let (answered, answer) = channel();
        let reply = testing::reply_to(move |result| {
            answered.send((result, Instant::now())).unwrap();
        });
        self.plugin.run_and_clear(request, services, reply);
        let (result, at) = answer.recv().unwrap();
        (result.unwrap(), at)
    }

    /// The least that a run can do.
    pub(crate) fn hello(&self) -> Instant {
        let (result, at) = self.run(
            "def main(args):\n    return {'hello': 'world'}\n",
            &Run::new(),
        );
        assert!(result.completed, "{result:?}");
        at
    }
}

/// The shared object that cargo has built beside this program.
fn launcher() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let built = program.parent().unwrap();
    built.join("libskillgate_sandbox_process.so")
}
