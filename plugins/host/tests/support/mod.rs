//! What the tests of this crate share.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};

use skillgate_plugin_host::model::{CreateRequest, Error, Limits, Result, RunRequest};
use skillgate_plugin_host::{Isolation, Pin, Plugin, ProcessSettings, RunHost};
use skillgate_plugin_sdk::abi;

/// The plugin made with the SDK, which cargo builds beside the tests.
pub(crate) fn sdk_plugin() -> PathBuf {
    example("libskillgate_test_plugin.so")
}

fn example(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let target = exe.parent().and_then(Path::parent).unwrap();
    let file = target.join("examples").join(name);
    assert!(
        file.exists(),
        "{} is missing: `cargo build -p skillgate-plugin-host --examples`",
        file.display()
    );
    file
}

/// Compiles the C plugin of the tests into `dir`.
pub(crate) fn probe(dir: &Path, name: &str, options: &[&str]) -> PathBuf {
    let warnings = ["-Wno-unused-const-variable", "-Wno-unused-function"];
    let options = [&warnings, &["-D_GNU_SOURCE", "-pthread"], options].concat();
    compile("tests/loading/probe.c", dir, name, &options)
}

/// The example for vendors, compiled as strictly as they may.
pub(crate) fn example_c(dir: &Path) -> PathBuf {
    compile(
        "../example-c/echo.c",
        dir,
        "echo",
        &["-Wpedantic", "-Wno-unused-function", "-pthread"],
    )
}

/// Compiles a C file, named from this crate's directory, into a plugin in `dir`.
pub(crate) fn compile(source: &str, dir: &Path, name: &str, options: &[&str]) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = dir.join(format!("{name}.so"));
    let output = Command::new("cc")
        .args([
            "-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-I",
        ])
        .arg(here.join("../abi/include"))
        .args(options)
        .arg("-o")
        .arg(&file)
        .arg(here.join(source))
        // What checks the tests (store/mod.rs) need not check the compiler.
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap_or_else(|error| panic!("a C compiler, cc, is needed to build {source}: {error}"));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    file
}

pub(crate) fn load(path: &Path) -> Plugin {
    Plugin::load(path, &Pin::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// How the tests start a plugin's own process.
pub(crate) fn settings() -> ProcessSettings {
    ProcessSettings {
        program: example("skillgate_test_host"),
        ..ProcessSettings::this_program(&[])
    }
}

pub(crate) fn open(path: &Path, isolation: Isolation) -> Plugin {
    Plugin::open(path, &Pin::default(), isolation, &settings()).unwrap_or_else(|e| panic!("{e}"))
}

pub(crate) fn config(json: &str) -> CreateRequest {
    CreateRequest {
        instance_id: "test".into(),
        state_dir: "/nowhere".into(),
        config_json: json.into(),
    }
}

pub(crate) fn run(function: &str) -> RunRequest {
    RunRequest {
        run_id: format!("run_{function}"),
        language: "echo".into(),
        function: function.into(),
        args_json: br#"{"a":1}"#.to_vec(),
        limits: Limits {
            wall_ms: 1000,
            output_bytes: 4096,
            ..Limits::default()
        },
        ..RunRequest::default()
    }
}

/// A gateway's side of a run that remembers what it was asked.
#[derive(Default)]
pub(crate) struct Gateway {
    pub(crate) output: Mutex<Vec<(u32, Vec<u8>)>>,
    pub(crate) told: Option<tokio::sync::mpsc::UnboundedSender<String>>,
    pub(crate) listeners: Mutex<Vec<std::os::fd::OwnedFd>>,
    pub(crate) blobs: Mutex<Vec<(String, Vec<u8>)>>,
    pub(crate) enough: bool,
    /// What happens while a secret is read.
    pub(crate) meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Where blobs are made.
    pub(crate) store: Option<Arc<HangingStore>>,
}

/// Whoever makes a blob in it waits until it is let go.
#[derive(Default)]
pub(crate) struct HangingStore {
    /// How many have come, and whether it hangs no more.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl HangingStore {
    pub(crate) fn came(&self) -> usize {
        self.state.lock().unwrap().0
    }
    pub(crate) fn let_go(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
    fn enter(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        drop(self.changed.wait_while(state, |(_, goes_on)| !*goes_on));
    }
}

impl Gateway {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }
}

impl RunHost for Gateway {
    fn output(&self, stream: u32, data: &[u8]) -> bool {
        self.output.lock().unwrap().push((stream, data.to_vec()));
        if let Some(told) = &self.told {
            told.send(String::from_utf8_lossy(data).into_owned())
                .unwrap();
        }
        !self.enough
    }
    fn secret(&self, name: &str) -> Result<Vec<u8>> {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        match name {
            "LONG" => Ok(vec![b'x'; 10_000]),
            _ => Ok(format!("the secret {name}").into_bytes()),
        }
    }
    fn blob_fd(&self, id: &str) -> Result<std::os::fd::OwnedFd> {
        if id == "blob:null" {
            return Ok(std::fs::File::open("/dev/null").unwrap().into());
        }
        Err(Error::new(abi::E_UNIMPLEMENTED, id))
    }
    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let blobs = self.blobs.lock().unwrap();
        let Some((_, data)) = blobs.iter().find(|b| b.0 == id) else {
            return Err(Error::new(abi::E_NOT_FOUND, id));
        };
        let rest = &data[offset as usize..];
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
    fn blob_create(&self, kind: &str) -> Result<i64> {
        if kind == "panic" {
            panic!("the gateway's own code panics");
        }
        if let Some(store) = &self.store {
            store.enter();
        }
        let mut blobs = self.blobs.lock().unwrap();
        let id = format!("blob:new{}", blobs.len());
        blobs.push((id, Vec::new()));
        Ok(blobs.len() as i64)
    }
    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()> {
        self.blobs.lock().unwrap()[writer as usize - 1]
            .1
            .extend_from_slice(data);
        Ok(())
    }
    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>> {
        Ok(commit.then(|| self.blobs.lock().unwrap()[writer as usize - 1].0.clone()))
    }
    fn gate_serve(&self, listener: std::os::fd::OwnedFd) -> Result<()> {
        self.listeners.lock().unwrap().push(listener);
        Ok(())
    }
}
