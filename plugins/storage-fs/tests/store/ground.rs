use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::CreateRequest;

use crate::child;
use crate::support::*;

fn refusal(bench: &Bench) -> (i32, String) {
    let error = bench
        .create(&format!(r#"{{"root": {:?}}}"#, bench.root()))
        .unwrap_err();
    (error.code, error.message)
}

#[test]
fn a_second_instance_on_the_same_root_is_refused() {
    let bench = Bench::new();
    let first = bench.store();
    let (code, text) = refusal(&bench);
    // Not now, that is: whoever can do without it can tell.
    assert_eq!(code, abi::E_UNAVAILABLE);
    assert!(text.contains("in use by another skillgate"), "{text}");
    assert!(
        text.contains(&format!("process {}", std::process::id())),
        "{text}"
    );
    // And the first goes on as before.
    assert!(store_blob(&first, &blob_of("acme"), b"x").is_ok());
    drop(first);
    bench.store();
}

#[test]
fn an_unknown_format_and_a_foreign_directory_are_refused() {
    let bench = Bench::new();
    drop(bench.store());
    std::fs::write(bench.root().join("format"), "skillgate-store 2\n").unwrap();
    let (code, text) = refusal(&bench);
    assert_eq!(code, abi::E_PRECONDITION);
    assert!(
        text.contains("skillgate-store 2") && text.contains("skillgate-store 1"),
        "{text}"
    );

    let bench = Bench::new();
    std::fs::create_dir(bench.root()).unwrap();
    std::fs::write(bench.root().join("thesis.doc"), "x").unwrap();
    std::fs::set_permissions(bench.root(), PermissionsExt::from_mode(0o755)).unwrap();
    let (code, text) = refusal(&bench);
    assert_eq!(code, abi::E_PRECONDITION);
    assert!(text.contains("thesis.doc"), "{text}");
    assert_eq!(count(&bench.root()), 1, "nothing was made in it");
    let mode = std::fs::metadata(bench.root())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o755, "nor was its mode changed");
}

#[test]
fn the_root_is_closed_and_what_a_sandbox_reads_is_open() {
    let bench = Bench::new();
    let store = bench.store();
    store
        .skill_put(&skill("acme", "a.b", "1.0.0", b"x"))
        .unwrap();
    let mode = |path: &str| {
        std::fs::metadata(bench.root().join(path))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!(mode(""), 0o700);
    let version = "tenants/acme/skills/a.b/1.0.0";
    for dir in [
        "tenants",
        "tenants/acme",
        version,
        &format!("{version}/files"),
        &format!("{version}/files/code/lib"),
    ] {
        assert_eq!(mode(dir), 0o755, "{dir}");
    }
    assert_eq!(mode(&format!("{version}/files/code/main.py")), 0o644);
}

/// A service's umask is often 077; a sandbox with another user has to read what is stored all the same.
#[test]
fn what_a_sandbox_reads_is_open_whatever_the_umask() {
    let bench = Bench::new();
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"umask 077 && exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args(child::ARGS);
    let output = child::set_job(&mut command, "round", &bench.root()).output();
    let said = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
    assert!(said.contains("ack") && said.contains("end"), "{said}");
    let (mut todo, mut files) = (vec![bench.root().join("tenants")], 0);
    while let Some(path) = todo.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let open = if meta.is_dir() { 0o755 } else { 0o644 };
        let mode = meta.permissions().mode() & 0o7777;
        assert_eq!(mode, open, "{}", path.display());
        if meta.is_dir() {
            let below = std::fs::read_dir(&path).unwrap();
            todo.extend(below.map(|entry| entry.unwrap().path()));
        } else {
            files += 1;
        }
    }
    assert!(files > 4, "{files}");
}

/// Its blobs can be read by everybody who reaches them.
#[test]
fn a_root_that_the_operator_has_made_open_is_closed() {
    for life in ["made by hand", "opened since by hand"] {
        let bench = Bench::new();
        let set = |mode| std::fs::set_permissions(bench.root(), PermissionsExt::from_mode(mode));
        if life == "made by hand" {
            std::fs::create_dir(bench.root()).unwrap();
        } else {
            drop(bench.store());
        }
        set(0o755).unwrap();
        let _store = bench.store();
        let mode = std::fs::metadata(bench.root())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o700, "{life}");
    }
}

/// Whoever has named another place as `root`, or has not mounted its disk, learns it from nothing else.
#[test]
fn a_store_that_is_new_says_so_once() {
    let bench = Bench::new();
    for _ in 0..2 {
        drop(bench.store());
        assert_eq!(bench.count_logged("Info this store is new"), 1);
    }
}

#[test]
fn what_an_earlier_life_left_in_tmp_is_swept() {
    let bench = Bench::new();
    drop(bench.store());
    let tmp = bench.root().join("tmp");
    let deep = tmp.join("a/b/c/d");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("data"), "x").unwrap();
    std::fs::write(tmp.join("file"), "x").unwrap();
    let outside = bench.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), "x").unwrap();
    std::os::unix::fs::symlink(&outside, deep.join("link")).unwrap();
    drop(bench.store());
    assert_eq!(bench.in_tmp(), 0);
    assert!(
        outside.join("kept").exists(),
        "a link is removed, not followed"
    );
    assert!(bench.logged("removed what an earlier life left half-built"));
}

#[test]
fn what_cannot_be_swept_is_told_and_keeps_nobody_from_starting() {
    let bench = Bench::new();
    drop(bench.store());
    let tmp = bench.root().join("tmp");
    // Deeper than anything of ours, so that it is not followed to its end.
    let deep = tmp.join("deep").join("d/".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::create_dir(tmp.join("leftover")).unwrap();
    let store = bench.store();
    assert_eq!(bench.in_tmp(), 1, "the other one");
    assert!(bench.logged("could not remove a temporary directory"));
    store_blob(&store, &blob_of("acme"), b"x").unwrap();
}

#[test]
fn without_a_root_there_is_no_writing() {
    let bench = Bench::new();
    let config = format!(r#"{{"read_only_skills": [{:?}]}}"#, bench.dir.path());
    let store = bench.create(&config).unwrap();
    assert_eq!(store.caps(), abi::ST_SKILLS);
    assert_eq!(
        store
            .skill_put(&skill("acme", "a.b", "1.0.0", b"x"))
            .unwrap_err()
            .code,
        abi::E_UNIMPLEMENTED
    );
    assert_eq!(
        store.blob_create(&blob_of("acme")).unwrap_err().code,
        abi::E_UNIMPLEMENTED
    );
    assert_eq!(
        store.blob_stat("acme", "blob:x").unwrap_err().code,
        abi::E_UNIMPLEMENTED
    );
    assert_eq!(store.health().unwrap().state, abi::HEALTH_OK);
    let full = bench.store();
    assert_eq!(
        full.caps(),
        abi::ST_SKILLS | abi::ST_SKILLS_WRITE | abi::ST_BLOBS | abi::ST_BLOB_FD
    );
}

#[test]
fn a_wrong_configuration_is_refused_by_the_trait_too() {
    let host = skillgate_plugin_sdk::Host::for_tests(|_, _, _, _| {});
    let request = CreateRequest {
        config_json: br#"{"rot": "x"}"#.to_vec(),
        ..CreateRequest::default()
    };
    let error = skillgate_storage_fs::StorageFs::create(host, request).unwrap_err();
    assert_eq!(error.code, abi::E_INVALID_ARGUMENT);
    assert!(
        error.message.contains("`rot`") && error.message.contains("`root`"),
        "{error}"
    );
}

#[test]
fn whatever_its_name_nothing_stays_in_tmp() {
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::new();
    drop(bench.store());
    let tmp = bench.root().join("tmp");
    let left = tmp.join(std::ffi::OsStr::from_bytes(b"not \xff text"));
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("x"), "x").unwrap();
    drop(bench.store());
    assert_eq!(bench.in_tmp(), 0);
}
