//! The sandbox plugin without a gateway.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use skillgate_plugin_sdk::model::{CreateRequest, Error, Limits, Result, RunRequest, RunResult};
use skillgate_plugin_sdk::{Host, RunServices, Sandbox, abi};
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
        let plugin = SandboxProcess::create_with(Host::for_tests(|_, _, _, _| {}), request, parts)
            .map_err(|error| error.to_string())?;
        Ok(Arc::new(Direct {
            plugin,
            _state: state,
        }))
    }

    pub(crate) fn launcher_pid(&self) -> u32 {
        self.plugin.launcher_pid().unwrap()
    }

    pub(crate) fn run(&self, code: &str, services: &Services) -> RunResult {
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
        self.plugin.run(request, services).unwrap()
    }

    /// The least that a run can do.
    pub(crate) fn hello(&self) {
        let result = self.run(
            "def main(args):\n    return {'hello': 'world'}\n",
            &Services::default(),
        );
        assert!(result.completed, "{result:?}");
    }
}

/// The shared object that cargo has built beside this program.
fn launcher() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let built = program.parent().unwrap();
    built.join("libskillgate_sandbox_process.so")
}

/// A host that tells what a run says.
#[derive(Default)]
pub(crate) struct Services {
    pub(crate) heard: std::sync::Mutex<Vec<u8>>,
}

fn none<T>() -> Result<T> {
    Err(Error::new(abi::E_NOT_FOUND, "there is nothing here"))
}

impl RunServices for Services {
    fn output(&self, _stream: u32, data: &[u8]) -> bool {
        self.heard.lock().unwrap().extend_from_slice(data);
        true
    }
    fn secret(&self, _name: &str) -> Result<Vec<u8>> {
        none()
    }
    fn blob_fd(&self, _id: &str) -> Result<OwnedFd> {
        none()
    }
    fn blob_read(&self, _id: &str, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
        none()
    }
    fn blob_create(&self, _kind: &str) -> Result<i64> {
        none()
    }
    fn blob_write(&self, _writer: i64, _data: &[u8]) -> Result<()> {
        none()
    }
    fn blob_finish(&self, _writer: i64, _commit: bool) -> Result<Option<String>> {
        none()
    }
    fn gate_serve(&self, _listener: OwnedFd) -> Result<()> {
        none()
    }
    fn cancelled(&self) -> bool {
        false
    }
}
