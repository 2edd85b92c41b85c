//! What a well-behaved run gets.

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::{Mount, RunSkill, Source};

use crate::support::*;

/// Whoever reads that a run has come to its limit, or was lost, does something else than for a failure of its code.
#[test]
fn an_exception_that_is_called_like_an_end_is_no_such_end() {
    let instance = Instance::new();
    for name in ["Timeout", "WorkerLost", "Timeouts"] {
        let code = format!("class {name}(Exception): pass\ndef main(args): raise {name}('no')\n");
        let (result, _) = instance.code(&code);
        let expected = match name {
            "Timeouts" => name.to_owned(),
            _ => format!("code.{name}"),
        };
        assert_eq!(result.error_type, expected);
        let last = result.error_message.lines().last();
        assert_eq!(last, Some(&*format!("{name}: no")));
    }
}

/// When the host is out of memory (proc(5)); and no less so than whoever starts it.
#[test]
fn a_run_is_the_first_to_be_killed() {
    const FILE: &str = "/proc/self/oom_score_adj";
    let own: i64 = std::fs::read_to_string(FILE)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let code = format!("def main(args): return int(open({FILE:?}).read())\n");
    let instance = Instance::new();
    assert_eq!(instance.output(&code), own.max(900));
}

#[test]
fn hello() {
    let instance = Instance::new();
    let mut request = request(
        "def main(args):\n    print('hello', args['name'])\n    return {'hello': args['name']}\n",
    );
    request.args_json = br#"{"name":"world"}"#.to_vec();
    let (result, services) = instance.run(request);
    assert!(result.completed, "{result:?}\n{}", services.text());
    assert_eq!(result.output_json, br#"{"hello":"world"}"#);
    assert_eq!(services.text(), "hello world\n");
    assert_eq!((result.exit_code, result.signal), (0, 0));
    // A zygote's child has about 1 MiB of its own, and the kernel counts in steps of a quarter.
    assert!(
        result.create_us > 0
            && result.exec_us > 0
            && result.cpu_us > 0
            && result.peak_memory_bytes >= 3 << 18,
        "{result:?}"
    );
}

#[test]
fn an_exception_is_the_runs_own_failure() {
    let instance = Instance::new();
    let (result, _) = instance.code("def main(args):\n    raise ValueError('no leads')\n");
    assert!(!result.completed);
    assert_eq!(result.error_type, "ValueError");
    assert!(
        result.error_message.contains("no leads") && result.error_message.contains("line 2"),
        "{}",
        result.error_message
    );
    let (result, _) = instance.code("def main(args:\n");
    assert_eq!(result.error_type, "SyntaxError");
}

#[test]
fn output_and_errors_keep_their_order() {
    let instance = Instance::new();
    let (result, services) = instance.code("import sys\ndef main(args):\n    for i in range(50):\n        print('o', i, file=sys.stdout if i % 2 else sys.stderr)\n");
    assert!(result.completed);
    let wanted: String = (0..50).map(|i| format!("o {i}\n")).collect();
    assert_eq!(services.text(), wanted);
}

#[test]
fn skills_and_input_blobs_are_mounted_read_only() {
    let instance = Instance::new();
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    let skill = dir.path().join("skill");
    std::fs::create_dir_all(skill.join("code")).unwrap();
    std::fs::write(skill.join("code/main.py"), "import os\ndef main(args):\n    return sorted(os.listdir('/skills/acme.count')) + [open('/blobs/00ff').read()]\n").unwrap();
    std::fs::write(skill.join("SKILL.md"), "x").unwrap();
    std::fs::write(dir.path().join("blob"), "content").unwrap();
    let blob = std::fs::File::open(dir.path().join("blob")).unwrap();
    let mut request = request("");
    request.skill = "acme.count".into();
    request.skills = vec![RunSkill {
        name: "acme.count".into(),
        version: "1.0.0".into(),
        entrypoint: "code/main.py".into(),
        function: "main".into(),
    }];
    request.mounts = vec![
        mount(
            "/skills/acme.count",
            Source::Path(skill.display().to_string()),
        ),
        mount("/blobs/00ff", Source::Fd(blob.into())),
    ];
    let (result, services) = instance.run(request);
    assert!(result.completed, "{result:?}\n{}", services.text());
    assert_eq!(result.output_json, br#"["SKILL.md","code","content"]"#);
}

/// A store that keeps skills elsewhere has archives, not directories.
#[test]
fn a_skill_may_come_as_an_archive() {
    let instance = Instance::new();
    let mut archive = tar::Builder::new(tempfile::tempfile().unwrap());
    let code = b"import os\ndef main(args):\n    return [sorted(os.listdir('/skills/acme.tar')), os.access('/skills/acme.tar', os.W_OK)]\n";
    let mut header = tar::Header::new_ustar();
    header.set_size(code.len() as u64);
    header.set_mode(0o600);
    archive
        .append_data(&mut header, "code/main.py", &code[..])
        .unwrap();
    let mut request = request("");
    request.skill = "acme.tar".into();
    request.skills = vec![RunSkill {
        name: "acme.tar".into(),
        version: "1.0.0".into(),
        entrypoint: "code/main.py".into(),
        function: "main".into(),
    }];
    let file = archive.into_inner().unwrap();
    request.mounts = vec![mount("/skills/acme.tar", Source::Tar(file.into()))];
    let (result, services) = instance.run(request);
    assert!(result.completed, "{result:?}\n{}", services.text());
    assert_eq!(result.output_json, br#"[["code"],false]"#);
    let copies = std::fs::read_dir(instance.state.path().join("state/copies"));
    assert_eq!(copies.unwrap().count(), 0, "it goes with the run");
}

#[test]
fn a_blob_without_a_file_is_copied() {
    let instance = Instance::new();
    let code = "import os\ndef main(args):\n    return [open('/blobs/' + n).read()[:3] + str(os.path.getsize('/blobs/' + n)) for n in sorted(os.listdir('/blobs'))]\n";
    let mut request = request(code);
    let gone = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut &gone, b"gone").unwrap();
    request.mounts = vec![
        mount("/blobs/aa", Source::Blob("blob:aa".into())),
        mount("/blobs/bb", Source::Fd(gone.into())),
    ];
    let services = Services::default();
    services
        .blobs
        .lock()
        .unwrap()
        .insert("blob:aa".into(), vec![b'x'; 3 << 20]);
    let result = instance.plugin.run(request, &services).unwrap();
    assert!(result.completed, "{result:?}");
    assert_eq!(result.output_json, br#"["xxx3145728","gon4"]"#);
    let copies = std::fs::read_dir(instance.state.path().join("state/copies"))
        .unwrap()
        .count();
    assert_eq!(copies, 0, "the copies go with the run");
}

#[test]
fn input_blobs_are_listed_in_the_callers_order() {
    let instance = Instance::new();
    let code = "from runtime import blobs\ndef main(args):\n    return blobs.list()\n";
    let mut request = request(code);
    let blob = |name: &str| {
        let target = format!("/blobs/{name}");
        mount(&target, Source::Fd(tempfile::tempfile().unwrap().into()))
    };
    request.mounts = ["zz", "aa", "mm"].map(blob).into();
    let result = instance.plugin.run(request, &Services::default()).unwrap();
    assert_eq!(result.output_json, br#"["blob:zz","blob:aa","blob:mm"]"#);
}

#[test]
fn blobs_are_stored_and_only_ones_own_are_read() {
    let instance = Instance::new();
    let code = "\
import runtime\ndef main(args):
    id = runtime.blobs.write_bytes(b'x' * 3000000, kind='application/octet-stream')
    mine = len(runtime.blobs.read_bytes(id))
    try:
        runtime.blobs.read_bytes('blob:other')
        other = 'read'
    except Exception as e:
        other = type(e).__name__
    return {'mine': mine, 'other': other}
";
    let services = Services::default();
    services
        .blobs
        .lock()
        .unwrap()
        .insert("blob:other".into(), b"secret".to_vec());
    let result = instance.plugin.run(request(code), &services).unwrap();
    assert!(result.completed, "{result:?}");
    let output = String::from_utf8(result.output_json.clone()).unwrap();
    assert!(
        output.contains(r#""mine":3000000"#) && !output.contains(r#""other":"read""#),
        "{output}"
    );
    assert_eq!(result.output_blobs.len(), 1);
    assert_eq!(
        services.blobs.lock().unwrap()[&result.output_blobs[0]].len(),
        3_000_000
    );
}

#[test]
fn a_large_output_is_spilled() {
    let instance = Instance::new();
    let (result, services) = instance.code("def main(args):\n    return 'x' * 10000\n");
    assert!(
        result.completed && result.output_spilled && result.output_json.is_empty(),
        "{result:?}"
    );
    assert_eq!(
        services.blobs.lock().unwrap()[result.output_blobs.last().unwrap()].len(),
        10_002
    );
}

#[test]
fn secrets_and_environment_reach_the_run_and_no_other() {
    let instance = Instance::new();
    let code = "import os\ndef main(args):\n    return dict(os.environ)\n";
    let mut request1 = request(code);
    request1.env = vec![("GREETING".into(), "hi".into())];
    request1.secrets = vec!["TOKEN".into()];
    let id = request1.run_id.clone();
    let services = Services {
        secrets: [("TOKEN".into(), "s3cret".into())].into(),
        ..Services::default()
    };
    let result = instance.plugin.run(request1, &services).unwrap();
    let env: serde_json::Value = serde_json::from_slice(&result.output_json).unwrap();
    let wanted = serde_json::json!({"GREETING": "hi", "HOME": "/workspace", "LANG": "C.UTF-8", "PATH": "/usr/bin", "SKILLGATE_RUN_ID": id, "TMPDIR": "/tmp", "TOKEN": "s3cret"});
    assert_eq!(env, wanted);
    let env = instance.output(code);
    assert_eq!(env.as_object().unwrap().len(), 5, "{env}");
}

#[test]
fn requests_that_cannot_be_run_are_refused_before_any_code() {
    let instance = Instance::new();
    let check =
        |change: &dyn Fn(&mut skillgate_plugin_sdk::model::RunRequest), code: i32, part: &str| {
            let mut request = request("def main(args): return 1\n");
            change(&mut request);
            let error = instance
                .plugin
                .run(request, &Services::default())
                .unwrap_err();
            assert_eq!(error.code, code, "{error}");
            assert!(
                error.not_executed && error.message.contains(part),
                "{error}"
            );
        };
    check(
        &|r| r.language = "ruby".into(),
        abi::E_UNIMPLEMENTED,
        "ruby",
    );
    check(
        &|r| r.network = abi::NET_SELF,
        abi::E_PRECONDITION,
        "network",
    );
    check(
        &|r| r.run_id = "../x".into(),
        abi::E_INVALID_ARGUMENT,
        "run id",
    );
    check(
        &|r| r.args_json = b"[1]".to_vec(),
        abi::E_INVALID_ARGUMENT,
        "object",
    );
    check(
        &|r| r.args_json = b"{\"a\":".to_vec(),
        abi::E_INVALID_ARGUMENT,
        "JSON",
    );
    check(
        &|r| r.env = vec![("LD_PRELOAD".into(), "x".into())],
        abi::E_INVALID_ARGUMENT,
        "LD_PRELOAD",
    );
    check(
        &|r| r.env = vec![("PATH".into(), "x".into())],
        abi::E_INVALID_ARGUMENT,
        "PATH",
    );
    check(
        &|r| r.env = vec![("A=B".into(), "x".into())],
        abi::E_INVALID_ARGUMENT,
        "A=B",
    );
    check(&|r| r.secrets = vec!["NONE".into()], abi::E_NOT_FOUND, "");
    check(
        &|r| r.limits.wall_ms = 0,
        abi::E_INVALID_ARGUMENT,
        "wall_ms",
    );
    check(
        &|r| r.mounts = vec![mount("/etc/x", Source::Path("/tmp".into()))],
        abi::E_INVALID_ARGUMENT,
        "/etc/x",
    );
    check(
        &|r| r.mounts = vec![mount("/skills/a", Source::Path("/none".into()))],
        abi::E_UNAVAILABLE,
        "/skills/a",
    );
    check(
        &|r| r.mounts = vec![mount("/skills/a", Source::Path("/dev/null".into()))],
        abi::E_INVALID_ARGUMENT,
        "/skills/a",
    );
    check(
        &|r| r.code = "#".repeat(25 << 20),
        abi::E_OUT_OF_RANGE,
        "bytes",
    );
}

pub(crate) fn mount(target: &str, source: Source) -> Mount {
    Mount {
        target: target.into(),
        read_only: true,
        source,
        sha256: String::new(),
        size_bytes: 0,
    }
}

/// A run is another user: what it is shown must be readable by it.
pub(crate) fn open_to_all(path: &std::path::Path) {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}
