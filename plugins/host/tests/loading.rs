//! Which files are loaded, which are refused, and what the refusal says. The C plugins are compiled here.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod patched;
mod support;
#[path = "../../../tests/support/tools.rs"]
mod tools;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use skillgate_plugin_host::{Isolation, LoadError, Pin, Plugin, inspect};
use support::{compile, config, load, probe, sdk_plugin, settings};

fn refusal(path: &Path, pin: &Pin) -> String {
    let error: LoadError = Plugin::load(path, pin).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with(&path.display().to_string()),
        "names the file: {text}"
    );
    assert!(!text.contains('\n'), "one sentence: {text}");
    text
}

#[track_caller]
fn refused(name: &str, options: &[&str], expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let text = refusal(&probe(dir.path(), name, options), &Pin::default());
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_good_plugin_in_c() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = load(&probe(dir.path(), "good", &[]));
    let info = plugin.info();
    assert_eq!(
        (
            info.id.as_str(),
            info.version.as_str(),
            info.vendor.as_str()
        ),
        ("org.skillgate.probe", "1.0.0", "")
    );
    assert!(!info.blocking);
    assert!(plugin.offers_sandbox() && !plugin.offers_storage());
}

#[test]
fn a_good_plugin_made_with_the_sdk() {
    let plugin = load(&sdk_plugin());
    let info = plugin.info();
    assert_eq!(
        (
            info.id.as_str(),
            info.version.as_str(),
            info.license.as_str()
        ),
        ("org.skillgate.test", "1.2.3", "Apache-2.0")
    );
    assert_eq!(info.config_schema_json, r#"{"type":"object"}"#);
    assert!(info.blocking && plugin.offers_sandbox() && plugin.offers_storage());
}

#[test]
fn a_plugin_is_opened_again_from_what_was_checked() {
    let dir = tempfile::tempdir().unwrap();
    let file = probe(dir.path(), "kept", &[]);
    let plugin = load(&file);
    std::fs::remove_file(&file).unwrap();
    for isolation in [Isolation::Process, Isolation::Gateway] {
        let again = plugin.again(isolation, &settings()).unwrap();
        assert_eq!(again.isolation(), isolation);
        assert_eq!(again.info(), plugin.info());
        let back = again.again(Isolation::Gateway, &settings()).unwrap();
        assert_eq!(back.isolation(), Isolation::Gateway);
        assert_eq!(back.inspection().sha256, plugin.inspection().sha256);
    }
}

#[test]
fn inspect_says_what_a_file_is_and_runs_none_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = probe(
        dir.path(),
        "inspected",
        &[
            "-DFLAGS=SKG_F_SINGLETON",
            "-Wl,-rpath,/somewhere",
            "-Wl,--disable-new-dtags",
        ],
    );
    let found = inspect(&file).unwrap();
    let note = found.note.as_ref().unwrap();
    assert_eq!(
        (note.id.as_str(), note.abi_major, note.abi_minor, note.flags),
        ("org.skillgate.probe", 1, 0, 4)
    );
    assert!(found.entry && !found.executable_stack && !found.text_relocations);
    assert_eq!(found.rpath.as_deref(), Some("/somewhere"));
    assert!(
        found.needed.iter().any(|n| n.starts_with("libc.so")),
        "{:?}",
        found.needed
    );
    assert_eq!(found.size_bytes, std::fs::metadata(&file).unwrap().len());
    assert_eq!(found.refusals.len(), 1, "{:?}", found.refusals);
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["note"]["id"], "org.skillgate.probe");
    assert_eq!(json["sha256"].as_str().unwrap().len(), 64);
}

#[test]
fn a_refused_plugin_has_not_run() {
    // The child has the environment that the constructor looks at, so that nothing is set in this process.
    let dir = tempfile::tempdir().unwrap();
    let file = probe(
        dir.path(),
        "constructor",
        &["-DCONSTRUCTOR", "-DNOTE_MAJOR=9", "-DENTRY_MAJOR=9"],
    );
    let good = probe(dir.path(), "constructor_good", &["-DCONSTRUCTOR"]);
    for (file, runs) in [(&file, false), (&good, true)] {
        let mark = dir.path().join("ran");
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_loads_and_inspects", "--ignored"])
            .env("SKG_PROBE", &mark)
            .env("SKG_PROBE_FILE", file)
            .output()
            .unwrap();
        assert!(
            child.status.success(),
            "{}",
            String::from_utf8_lossy(&child.stdout)
        );
        assert_eq!(mark.exists(), runs, "{}", file.display());
    }
}

#[test]
#[ignore = "run by a_refused_plugin_has_not_run, in a process of its own"]
fn child_loads_and_inspects() {
    let file = std::env::var_os("SKG_PROBE_FILE").unwrap();
    inspect(&file).unwrap();
    assert!(
        !Path::new(&std::env::var_os("SKG_PROBE").unwrap()).exists(),
        "inspect ran the plugin's code"
    );
    drop(Plugin::load(&file, &Pin::default()));
}

#[test]
fn another_major() {
    let expected = "it is built for major 9 of the plugin contract, and this host speaks major 1: get a build for major 1";
    refused(
        "note_major",
        &["-DNOTE_MAJOR=9", "-DENTRY_MAJOR=9"],
        expected,
    );
    // The note lies: then the entry is asked before anything else of the plugin.
    refused("entry_major", &["-DENTRY_MAJOR=9"], expected);
}

#[test]
fn a_struct_that_ends_early() {
    refused(
        "short_info",
        &["-DINFO_BYTES=24"],
        "info: struct_size is 24, smaller than the 120 of the first version",
    );
}

#[test]
fn a_host_that_is_too_old_for_it() {
    refused(
        "min_host",
        &["-DMIN_HOST=7"],
        "it needs a host with minor 7 or later",
    );
}

#[test]
fn no_entry_no_note() {
    refused(
        "no_entry",
        &["-DNO_ENTRY"],
        "does not export the data symbol skillgate_plugin_entry_v1",
    );
    // It would be read as the table that it is not.
    refused(
        "function",
        &["-DNO_ENTRY", "-DENTRY_FUNCTION"],
        "does not export the data symbol skillgate_plugin_entry_v1",
    );
    refused("no_note", &["-DNO_NOTE"], "no SkillGate ELF note");
}

#[test]
fn a_process_of_its_own() {
    refused(
        "own_process",
        &["-DFLAGS=SKG_F_OWN_PROCESS"],
        "it asks for a process of its own: configure isolation = \"process\"",
    );
    for option in ["-DGO", "-DGO_WITHOUT_ID"] {
        refused(
            "go",
            &[option],
            "it is written in Go, whose runtime changes signal handlers",
        );
    }
}

#[test]
fn another_machine() {
    let dir = tempfile::tempdir().unwrap();
    let file = probe(dir.path(), "machine", &[]);
    let mut bytes = std::fs::read(&file).unwrap();
    // e_machine: that of SPARC.
    bytes[18] = 43;
    std::fs::write(&file, bytes).unwrap();
    let text = refusal(&file, &Pin::default());
    let ours = std::env::consts::ARCH;
    assert!(
        text.contains(&format!(
            "built for ELF machine 43, and this host is {ours}: get the build for {ours}"
        )),
        "{text}"
    );
}

#[test]
fn writable_code_is_refused() {
    refused(
        "textrel",
        &["-DTEXTREL", "-Wl,-z,notext"],
        "it has text relocations, which need writable code: compile it with -fPIC",
    );
}

#[test]
fn what_an_operator_should_know_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["-DSTATIC_TLS", "-Wl,--no-as-needed", "-lresolv"];
    let found = inspect(probe(dir.path(), "warned", &options)).unwrap();
    assert!(found.static_tls && found.refusals.is_empty(), "{found:?}");
    let has = |text: &str| found.warnings.iter().any(|warning| warning.contains(text));
    assert!(
        found.warnings.len() == 2 && has("libresolv.so") && has("static thread-local storage"),
        "{:?}",
        found.warnings
    );
}

#[test]
fn a_file_that_others_can_change() {
    let dir = tempfile::tempdir().unwrap();
    let file = probe(dir.path(), "guarded", &[]);
    let guarded = Pin {
        guarded: true,
        ..Pin::default()
    };
    let mode = |path: &Path, bits| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits)).unwrap();
    };
    Plugin::load(&file, &guarded).unwrap();
    for bits in [0o664, 0o646] {
        mode(&file, bits);
        let text = refusal(&file, &guarded);
        let advice = format!("(mode {bits:04o}): take that right away with chmod go-w");
        assert!(text.ends_with(&advice), "{text}");
    }
    mode(&file, 0o644);
    mode(dir.path(), 0o1777);
    let text = refusal(&file, &guarded);
    let directory = dir.path().canonicalize().unwrap();
    assert!(
        text.contains(&format!("{} can be written", directory.display())),
        "{text}"
    );
    Plugin::load(&file, &Pin::default()).unwrap();
    mode(dir.path(), 0o700);
    // A link is as good as the directory that it is in.
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("plugin.so");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    Plugin::load(&link, &guarded).unwrap();
    mode(links.path(), 0o770);
    assert!(refusal(&link, &guarded).contains("mode 0770"));
}

#[test]
fn a_way_to_the_file_that_others_can_change() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let made = |path: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let (above, dir, links) = (made("above"), made("above/dir"), made("links"));
    let file = probe(&dir, "plugin", &[]);
    // Through a link that is neither the last name nor in the directory that is named last.
    std::os::unix::fs::symlink("../above/dir/../dir", links.join("through")).unwrap();
    let linked = links.join("through/plugin.so");
    let guarded = Pin {
        guarded: true,
        ..Pin::default()
    };
    let mode = |path: &Path, bits| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits)).unwrap();
    };
    Plugin::load(&file, &guarded).unwrap();
    Plugin::load(&linked, &guarded).unwrap();
    for (way, changed) in [(&file, &above), (&linked, &above), (&linked, &links)] {
        for bits in [0o770, 0o707] {
            mode(changed, bits);
            let text = refusal(way, &guarded);
            let expected = format!("{} can be written", changed.display());
            assert!(text.contains(&expected), "{text}");
        }
        // As /tmp is: nobody but its owner exchanges what is in it.
        mode(changed, 0o1777);
        Plugin::load(way, &guarded).unwrap();
        mode(changed, 0o700);
    }
    let endless = root.join("endless");
    std::os::unix::fs::symlink("endless", &endless).unwrap();
    assert!(refusal(&endless, &guarded).contains("cannot be read"));
}

#[tokio::test]
async fn a_store_knows_whether_its_plugin_came_with_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["-Wno-unused-function", "-pthread"];
    let file = compile("../example-c/store.c", dir.path(), "store", &options);
    for guarded in [false, true] {
        let pin = Pin {
            guarded,
            ..Pin::default()
        };
        for isolation in [Isolation::Gateway, Isolation::Process] {
            let plugin = Plugin::open(&file, &pin, isolation, &settings()).unwrap();
            let store = plugin.storage(config("{}")).await.unwrap();
            assert_eq!(store.is_ours(), !guarded, "{isolation:?}");
            store.shutdown().await.unwrap();
        }
    }
}

/// Only root can give a file away.
#[test]
fn a_file_that_belongs_to_another_user() {
    const OTHER: u32 = 4321;
    let dir = tempfile::tempdir().unwrap();
    if dir.path().metadata().unwrap().uid() != 0 {
        return tools::left_out("a file of another user: it takes root");
    }
    let inner = dir.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let file = probe(&inner, "owned", &[]);
    let guarded = Pin {
        guarded: true,
        ..Pin::default()
    };
    for whose in [file.as_path(), &inner, dir.path()] {
        chown(whose, Some(OTHER), None).unwrap();
        let text = refusal(&file, &guarded);
        let whose = whose.canonicalize().unwrap();
        let owner = format!(
            "{} belongs to the user {OTHER}, who can change it, and this program runs as 0: give it to root",
            whose.display()
        );
        assert!(text.contains(&owner), "{text}");
        chown(&whose, Some(0), None).unwrap();
    }
    Plugin::load(&file, &guarded).unwrap();
}

#[test]
fn the_note_and_the_entry_must_agree() {
    refused(
        "other_id",
        &["-DENTRY_ID=\"org.skillgate.other\""],
        "its note says \"org.skillgate.probe\"",
    );
    refused("bad_magic", &["-DMAGIC=0x12345678u"], "magic is 0x12345678");
}

#[test]
fn search_paths_and_stacks() {
    refused(
        "runpath",
        &["-Wl,-rpath,/tmp/evil", "-Wl,--enable-new-dtags"],
        "library search path \"/tmp/evil\"",
    );
    refused("stack", &["-Wl,-z,execstack"], "executable stack");
}

/// What the loader brings in beside it, under whatever name.
#[test]
fn a_library_that_looks_like_the_usual_ones_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let other = probe(
        dir.path(),
        "other",
        &["-Wl,-soname,libc.so./../tmp/other.so"],
    );
    let other = other.display().to_string();
    let options = [
        "-Wl,--no-as-needed",
        &other,
        "-Wl,-f,libauxiliary.so",
        "-Wl,-F,libfilter.so",
    ];
    let found = inspect(probe(dir.path(), "disguised", &options)).unwrap();
    for name in [
        "libc.so./../tmp/other.so",
        "libauxiliary.so",
        "libfilter.so",
    ] {
        let warning = format!("it needs {name}, which the pin of this file does not cover");
        assert!(found.warnings.contains(&warning), "{:?}", found.warnings);
    }
}

#[test]
fn the_pin() {
    let dir = tempfile::tempdir().unwrap();
    let file = probe(dir.path(), "pinned", &[]);
    let sha256 = inspect(&file).unwrap().sha256;
    let wrong = Pin {
        sha256: Some("0".repeat(64)),
        ..Pin::default()
    };
    let text = refusal(&file, &wrong);
    assert!(
        text.contains(&sha256) && text.contains(&"0".repeat(64)),
        "{text}"
    );
    Plugin::load(
        &file,
        &Pin {
            sha256: Some(sha256.to_uppercase()),
            ..Pin::default()
        },
    )
    .unwrap();
}

#[test]
fn files_that_are_no_plugins() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.so");
    std::fs::write(&text, "#!/bin/sh\n").unwrap();
    assert!(refusal(&text, &Pin::default()).contains("not an ELF file"));
    assert!(refusal(dir.path(), &Pin::default()).contains("not a regular file"));
    assert!(refusal(&dir.path().join("missing.so"), &Pin::default()).contains("cannot be read"));
    let fifo = dir.path().join("fifo");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    assert!(refusal(&fifo, &Pin::default()).contains("not a regular file"));
    let program = refusal(&std::env::current_exe().unwrap(), &Pin::default());
    assert!(program.contains("does not export"), "{program}");
    let other = refusal(Path::new("/lib64/ld-linux-x86-64.so.2"), &Pin::default());
    assert!(
        other.contains("does not export") || other.contains("cannot be read"),
        "{other}"
    );
}

#[test]
fn the_same_path_with_another_file_is_another_plugin() {
    // glibc remembers names: a second load must not silently give the first file's code.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plugin.so");
    std::fs::copy(probe(dir.path(), "one", &[]), &path).unwrap();
    let first = load(&path);
    std::fs::copy(sdk_plugin(), &path).unwrap();
    let second = load(&path);
    assert_eq!(first.info().id, "org.skillgate.probe");
    assert_eq!(second.info().id, "org.skillgate.test");
}
