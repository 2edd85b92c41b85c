//! A vendor's first ten minutes: `skillgate plugin new`, the build that its answer names, `skillgate plugin check`, and the
//! plugin is loaded and does what its kind is for, in both isolation modes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use skillgate_plugin_host::model::{
    BlobCreate, Content, CreateRequest, Error, Limits, PutSkill, Result, RunRequest,
};
use skillgate_plugin_host::{
    Isolation, Pin, Plugin, ProcessSettings, RunHost, SandboxInstance, StorageInstance, inspect,
};
use skillgate_plugin_sdk::abi;

use crate::alone;
use crate::support::gateway::{House, Settings};
use crate::support::{cargo, tools};

fn skillgate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skillgate"))
        .args(["plugin", "new"])
        .args(args)
        .output()
        .unwrap()
}

/// Where cargo lets tests keep things: what these plugins depend on is compiled once.
fn place() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin-new")
}

/// Writes a plugin anew, into a directory of its own for each test.
fn write(name: &str, kind: &str, language: &str) -> PathBuf {
    let dir = place().join(name);
    let _not_there_the_first_time = std::fs::remove_dir_all(&dir);
    let place = place().display().to_string();
    let output = skillgate(&[
        name,
        "--kind",
        kind,
        "--language",
        language,
        "--dir",
        &place,
    ]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with(&format!("{}\n", dir.display())), "{said}");
    assert!(said.contains("\nbuild it:  "), "{said}");
    // Beside what it is of.
    let licence = match language {
        "c" => "LICENSE",
        _ => "skillgate/LICENSE",
    };
    let licence = std::fs::read_to_string(dir.join(licence)).unwrap();
    assert_eq!(licence, include_str!("../../LICENSE"));
    dir
}

/// Runs what builds it; a warning is a failure.
fn build(mut command: Command, dir: &Path) {
    let output = command.current_dir(dir).output().unwrap_or_else(|error| {
        panic!("{command:?}: {error}: this test builds a plugin as a vendor does")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !said.contains("warning"),
        "{command:?}: {said}"
    );
}

fn in_c(name: &str, kind: &str) -> PathBuf {
    let dir = write(name, kind, "c");
    let flags = "-std=c99 -Wall -Wextra -Wpedantic -Werror -O1";
    let file = format!("{name}.so");
    if tools::there("make", "the plugin's Makefile") {
        let mut make = Command::new("make");
        make.arg(format!("CFLAGS={flags}"));
        build(make, &dir);
    } else {
        // What it says, so that all else of the plugin is tested.
        let mut cc = Command::new("cc");
        cc.args(flags.split(' '));
        cc.args(["-fPIC", "-shared", "-pthread", "-o", &file, "plugin.c"]);
        build(cc, &dir);
    }
    dir.join(file)
}

fn in_rust(name: &str, kind: &str) -> PathBuf {
    let dir = write(name, kind, "rust");
    // The versions that this project has been built with are there without a network.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock");
    std::fs::copy(lock, dir.join("Cargo.lock")).unwrap();
    cargo::oldest_compiler(&cargo::metadata(&dir, &[]));
    let target = place().join("target");
    // Its own tests too.
    for what in ["build", "test"] {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([what, "--offline", "--target-dir"]).arg(&target);
        build(cargo, &dir);
    }
    target.join(format!("debug/lib{}.so", name.replace('-', "_")))
}

/// The kit finds nothing. Its cases look at the clock.
fn passes(file: &Path, isolation: &str) -> String {
    let _alone = alone();
    let mut check = Command::new(env!("CARGO_BIN_EXE_skillgate"));
    check.args(["plugin", "check", "--isolation", isolation]);
    check.arg(file);
    let output = check.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.matches("\npass ").count() > 25, "{said}");
    said
}

fn load(file: &Path, id: &str) -> [Plugin; 2] {
    let found = inspect(file).unwrap();
    assert_eq!(
        (found.refusals.len(), found.warnings.len()),
        (0, 0),
        "{found:?}"
    );
    let settings = ProcessSettings {
        program: env!("CARGO_BIN_EXE_skillgate").into(),
        ..ProcessSettings::this_program(&["plugin-host"])
    };
    [Isolation::Gateway, Isolation::Process].map(|isolation| {
        let plugin = Plugin::open(file, &Pin::default(), isolation, &settings)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plugin.info().id, id);
        assert_eq!(plugin.isolation(), isolation);
        plugin
    })
}

fn instance(state: &Path) -> CreateRequest {
    CreateRequest {
        instance_id: "test".into(),
        state_dir: state.display().to_string(),
        config_json: b"{}".to_vec(),
    }
}

/// A skill and a blob, there and back.
async fn stores(store: &StorageInstance) {
    let put = PutSkill {
        tenant: "t".into(),
        name: "a.b".into(),
        version: "1.0.0".into(),
        namespace: "a".into(),
        kind: "instruction".into(),
        // sha256("SKILL.md\0" + the digest of "# x\n" + "\n")
        tree_sha256: tree_digest("SKILL.md", b"# x\n"),
        manifest_json: b"{}".to_vec(),
        files: vec![("SKILL.md".into(), b"# x\n".to_vec())],
        ..PutSkill::default()
    };
    store.skill_put(put).await.unwrap();
    let skill = store.skill_get("t", "a.b", "").await.unwrap();
    assert_eq!((skill.version.as_str(), skill.files.len()), ("1.0.0", 1));
    match store.skill_read("t", "a.b", "", "SKILL.md").await.unwrap() {
        Content::Data(data) => assert_eq!(data, b"# x\n"),
        other => panic!("{other:?}"),
    }
    let create = BlobCreate {
        tenant: "t".into(),
        kind: "text/plain".into(),
        max_bytes: 100,
        ..BlobCreate::default()
    };
    let mut writer = store.blob_create(create).await.unwrap();
    writer.write(b"hello".to_vec()).await.unwrap();
    let id = writer.commit().await.unwrap().id;
    let mut reader = store.blob_open("t", &id, 1, 0).await.unwrap();
    assert_eq!(reader.read(100).await.unwrap(), (b"ello".to_vec(), true));
    assert_eq!(
        store.blob_stat("other", &id).await.unwrap_err().code,
        abi::E_NOT_FOUND
    );
}

fn tree_digest(path: &str, content: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    let of_file = hex::encode(Sha256::digest(content));
    hex::encode(Sha256::digest(format!("{path}\0{of_file}\n")))
}

/// What a store says that is in memory: of what is there in its next life nothing is asked.
fn keeps_nothing(said: &str) {
    let skipped: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with("skip"))
        .collect();
    assert!(
        skipped
            .iter()
            .any(|line| line.contains("storage/durability"))
    );
    assert!(said.contains("caps says SKG_ST_VOLATILE"), "{said}");
}

#[tokio::test]
async fn a_new_store_in_c_is_a_store() {
    let file = in_c("new-store-c", "storage");
    let said = passes(&file, "process");
    keeps_nothing(&said);
    for plugin in load(&file, "com.example.new-store-c") {
        let state = tempfile::tempdir().unwrap();
        let store = plugin.storage(instance(state.path())).await.unwrap();
        stores(&store).await;
        store.shutdown().await.unwrap();
    }
}

/// As its Makefile says.
#[test]
fn a_new_plugin_in_c_passes_with_every_access_checked() {
    let named = Command::new("cc")
        .arg("-print-file-name=libasan.so")
        .output();
    let runtime = String::from_utf8(named.unwrap().stdout).unwrap();
    if !Path::new(runtime.trim()).is_absolute() {
        return tools::left_out("every access of a plugin checked: this cc has no libasan.so");
    }
    if !tools::there("make", "the plugin's Makefile") {
        return;
    }
    for kind in ["storage", "sandbox"] {
        let dir = write(&format!("new-{kind}-checked"), kind, "c");
        let mut make = Command::new("make");
        make.arg("checked.so");
        build(make, &dir);
        let makefile = std::fs::read_to_string(dir.join("Makefile")).unwrap();
        let says = |line: &&str| line.contains("skillgate plugin check");
        let mut said = makefile.lines().filter(says);
        let (said, leaks) = (said.next().expect("it says how"), said.next());
        assert!(!said.contains("--skip"), "every case: {said}");
        let program = env!("CARGO_BIN_EXE_skillgate");
        let [said, leaks] = [said, leaks.expect("it says how")].map(|said| {
            said.trim_start_matches('#')
                .replace(" skillgate ", &format!(" {program} "))
        });
        assert!(leaks.contains("detect_leaks=1"), "{leaks}");
        let mut check = Command::new("sh");
        // In a process of its own as well, where nothing of the environment is inherited.
        let all = format!("{said} && {said} --isolation process && {leaks}");
        check.args(["-c", &all]);
        let _alone = alone();
        let output = check.current_dir(&dir).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{output:?}");
        assert!(said.matches("\npass ").count() > 50, "{said}");
    }
}

#[tokio::test]
async fn a_new_store_in_rust_is_a_store() {
    let file = in_rust("new-store-rust", "storage");
    let said = passes(&file, "gateway");
    keeps_nothing(&said);
    for plugin in load(&file, "com.example.new-store-rust") {
        let state = tempfile::tempdir().unwrap();
        let store = plugin.storage(instance(state.path())).await.unwrap();
        stores(&store).await;
        store.shutdown().await.unwrap();
    }
}

/// A gateway's side of a run that needs nothing: it hears of output.
#[derive(Debug, Default)]
struct Told(tokio::sync::Notify);

fn no<T>() -> Result<T> {
    Err(Error::new(abi::E_UNIMPLEMENTED, "not in this test"))
}

impl RunHost for Told {
    fn output(&self, _: u32, _: &[u8]) -> bool {
        self.0.notify_one();
        true
    }
    fn secret(&self, _: &str) -> Result<Vec<u8>> {
        no()
    }
    fn blob_fd(&self, _: &str) -> Result<std::os::fd::OwnedFd> {
        no()
    }
    fn blob_read(&self, _: &str, _: u64, _: &mut [u8]) -> Result<usize> {
        no()
    }
    fn blob_create(&self, _: &str) -> Result<i64> {
        no()
    }
    fn blob_write(&self, _: i64, _: &[u8]) -> Result<()> {
        no()
    }
    fn blob_finish(&self, _: i64, _: bool) -> Result<Option<String>> {
        no()
    }
    fn gate_serve(&self, _: std::os::fd::OwnedFd) -> Result<()> {
        no()
    }
}

fn request(language: &str, code: &str) -> RunRequest {
    RunRequest {
        run_id: format!("run_{code}"),
        language: language.into(),
        code: code.into(),
        args_json: br#"{"a":1}"#.to_vec(),
        limits: Limits {
            wall_ms: 10_000,
            output_bytes: 4096,
            ..Limits::default()
        },
        ..RunRequest::default()
    }
}

/// What both start from: a language of their own, cancellation, drain.
async fn runs(sandbox: &Arc<SandboxInstance>) {
    let echo = || sandbox.run(request("echo", "args"), Arc::new(Told::default()));
    let result = echo().await.unwrap();
    assert!(result.completed);
    assert_eq!(result.output_json, br#"{"a":1}"#);
    let refused = sandbox.run(request("python", ""), Arc::new(Told::default()));
    let refused = refused.await.unwrap_err();
    assert!(
        refused.code == abi::E_UNIMPLEMENTED && refused.not_executed,
        "{refused:?}"
    );
    assert_eq!(sandbox.health().await.unwrap().state, abi::HEALTH_OK);

    let told = Arc::new(Told::default());
    let waits = {
        let (sandbox, told) = (Arc::clone(sandbox), Arc::clone(&told));
        tokio::spawn(async move { sandbox.run(request("echo", "wait"), told).await })
    };
    told.0.notified().await;
    assert_eq!(sandbox.health().await.unwrap().in_flight, 1);
    let drain = {
        let sandbox = Arc::clone(sandbox);
        tokio::spawn(async move { sandbox.drain().await })
    };
    // From the drain on nothing begins, and the run goes on.
    while echo().await.map_err(|error| error.code) != Err(abi::E_UNAVAILABLE) {
        tokio::task::yield_now().await;
    }
    assert!(!drain.is_finished() && !waits.is_finished());
    waits.abort();
    drain.await.unwrap().unwrap();
    assert_eq!(sandbox.health().await.unwrap().in_flight, 0);
}

#[tokio::test]
async fn new_sandboxes_are_sandboxes() {
    let files = [
        ("new-box-c", in_c("new-box-c", "sandbox"), "gateway", 0),
        (
            "new-box-rust",
            in_rust("new-box-rust", "sandbox"),
            "process",
            64,
        ),
    ];
    for (name, file, checked, at_once) in files {
        // Of the kit's runs, which are in python, nothing is asked.
        let said = passes(&file, checked);
        assert!(
            said.matches("it does not run python").count() > 15,
            "{said}"
        );
        let skipped = said.lines().filter_map(|line| line.strip_prefix("skip  "));
        for case in skipped {
            let of_runs = ["sandbox/", "operations/cancel-during", "operations/drain"];
            assert!(of_runs.iter().any(|name| case.starts_with(name)), "{said}");
        }
        for plugin in load(&file, &format!("com.example.{name}")) {
            let state = tempfile::tempdir().unwrap();
            let sandbox = plugin.sandbox(instance(state.path())).await.unwrap();
            // What is beyond is refused, so it has to be said.
            assert_eq!(sandbox.caps().max_concurrent, at_once, "{name}");
            runs(&sandbox).await;
            sandbox.shutdown().await.unwrap();
        }
    }
}

#[test]
fn it_writes_over_nothing_and_says_what_a_name_is() {
    let house = House::new(Settings::default());
    let dir = house.path().display().to_string();
    let new = |name: &str| {
        let args = [name, "--kind", "sandbox", "--language", "c", "--dir", &dir];
        let output = skillgate(&args);
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(new("mine"), (Some(0), String::new()));
    let source = house.path().join("mine/plugin.c");
    std::fs::write(&source, "changed").unwrap();
    let expected = format!(
        "error: {dir}/mine is there already\nhint: choose another name, or another --dir\n"
    );
    assert_eq!(new("mine"), (Some(4), expected));
    assert_eq!(std::fs::read_to_string(source).unwrap(), "changed");
    let long = "x".repeat(31);
    for wrong in ["", "Mine", "../mine", "9mine", "my_plugin", &long] {
        let (code, said) = new(wrong);
        assert_eq!(code, Some(2), "{wrong}");
        assert!(said.contains("expected lower case letters"), "{said}");
    }
}
