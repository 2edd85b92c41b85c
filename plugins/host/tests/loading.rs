//! Which files are loaded, which are refused, and what the refusal says. The C plugins are compiled here.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

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

/// Offsets of the program headers of a 64-bit file.
fn headers(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let start = usize::try_from(u64::from_le_bytes(bytes[32..40].try_into().unwrap())).unwrap();
    let count = usize::from(u16::from_le_bytes(bytes[56..58].try_into().unwrap()));
    (0..count).map(move |i| start + i * 56)
}

fn header(bytes: &[u8], kind: u32) -> usize {
    let of_kind = |at: &usize| bytes[*at..at + 4] == kind.to_le_bytes();
    headers(bytes).find(of_kind).unwrap()
}

/// Of two of a kind the loader goes by the last, and what it does not look at says nothing.
#[test]
fn a_file_is_read_as_the_loader_reads_it() {
    const PT_LOAD: u32 = 1;
    const PT_DYNAMIC: u32 = 2;
    const PT_GNU_STACK: u32 = 0x6474_e551;
    const PT_GNU_RELRO: u32 = 0x6474_e552;
    const DT_STRSZ: u64 = 10;
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read(probe(dir.path(), "read", &[])).unwrap();
    let refused = |name: &str, bytes: &[u8], expected: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        let text = refusal(&file, &Pin::default());
        assert!(text.contains(expected), "{name}: {text}");
    };
    let relro = header(&good, PT_GNU_RELRO);
    assert!(relro > header(&good, PT_GNU_STACK) && relro > header(&good, PT_DYNAMIC));

    let mut bytes = good.clone();
    bytes[relro..relro + 4].copy_from_slice(&PT_GNU_STACK.to_le_bytes());
    bytes[relro + 4..relro + 8].copy_from_slice(&7_u32.to_le_bytes());
    refused("stack", &bytes, "executable stack");

    let mut bytes = good.clone();
    bytes[relro..relro + 4].copy_from_slice(&PT_DYNAMIC.to_le_bytes());
    // The file's first bytes, which are no such segment.
    bytes[relro + 8..relro + 24].fill(0);
    refused("dynamic", &bytes, "does not export");

    // One that begins in the middle of another's page is mapped over that page.
    let mut bytes = good.clone();
    bytes[relro..relro + 4].copy_from_slice(&PT_LOAD.to_le_bytes());
    bytes[relro + 32..relro + 40].copy_from_slice(&1_u64.to_le_bytes());
    bytes[relro + 40..relro + 48].copy_from_slice(&1_u64.to_le_bytes());
    refused("over", &bytes, "its segments share pages");

    let options = ["-Wl,-rpath,/tmp/evil"];
    let mut bytes = std::fs::read(probe(dir.path(), "path", &options)).unwrap();
    let dynamic = header(&bytes, PT_DYNAMIC);
    let at = u64::from_le_bytes(bytes[dynamic + 8..dynamic + 16].try_into().unwrap());
    let mut entry = usize::try_from(at).unwrap();
    while bytes[entry..entry + 8] != DT_STRSZ.to_le_bytes() {
        entry += 16;
    }
    bytes[entry + 8..entry + 16].copy_from_slice(&1_u64.to_le_bytes());
    refused("short", &bytes, "library search path \"/tmp/evil\"");
}

/// What the loader would not find, or what is nothing that can be read.
#[test]
fn an_entry_is_in_the_file() {
    const PT_LOAD: u32 = 1;
    const PT_DYNAMIC: u32 = 2;
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const SHN_ABS: u16 = 0xfff1;
    let dir = tempfile::tempdir().unwrap();
    let file = probe(dir.path(), "entry", &[]);
    let good = std::fs::read(&file).unwrap();
    let number = |at: usize| u64::from_le_bytes(good[at..at + 8].try_into().unwrap());
    let place = |at: usize| usize::try_from(number(at)).unwrap();
    let dynamic = |tag: u64| {
        let mut entry = place(header(&good, PT_DYNAMIC) + 8);
        while number(entry) != tag {
            assert_ne!(number(entry), 0, "no entry {tag}");
            entry += 16;
        }
        place(entry + 8)
    };
    // Both tables are in the first segment, whose addresses are places in the file.
    let (names, symbols) = (dynamic(DT_STRTAB), dynamic(DT_SYMTAB));
    let is_it = |symbol: &usize| {
        let name = u32::from_le_bytes(good[*symbol..symbol + 4].try_into().unwrap());
        good[names + usize::try_from(name).unwrap()..].starts_with(b"skillgate_plugin_entry_v1\0")
    };
    let entry = (symbols..).step_by(24).find(is_it).unwrap();
    let (about, section, value) = (entry + 4, entry + 6, entry + 8);
    let end = |at: usize| number(at + 16) + number(at + 40);
    let loaded = || headers(&good).filter(|at| good[*at..at + 4] == PT_LOAD.to_le_bytes());
    let its_own = loaded().find(|at| end(*at) > number(value)).unwrap();
    let last = end(loaded().last().unwrap());
    let hidden = its_own + 4;

    assert!(!refuses(&file));
    let cases: [(&str, usize, &[u8]); 5] = [
        ("local", about, &[1]),
        ("absolute", section, &SHN_ABS.to_le_bytes()),
        ("far", value, &(1_u64 << 40).to_le_bytes()),
        ("cut", value, &(last - 8).to_le_bytes()),
        ("unreadable", hidden, &[0]),
    ];
    for (name, at, changed) in cases {
        let mut bytes = good.clone();
        bytes[at..at + changed.len()].copy_from_slice(changed);
        if name == "absolute" {
            bytes[value..value + 8].fill(0);
        }
        std::fs::write(&file, bytes).unwrap();
        assert!(refuses(&file), "{name}");
        let text = refusal(&file, &Pin::default());
        assert!(
            text.contains("does not export the data symbol"),
            "{name}: {text}"
        );
    }
}

/// Old linkers say it with an entry of its own, new ones with a flag, and some with both.
#[test]
fn writable_code_is_refused_whichever_way_it_is_said() {
    const PT_DYNAMIC: u32 = 2;
    const DT_DEBUG: u64 = 21;
    const DT_TEXTREL: u64 = 22;
    const DT_FLAGS: u64 = 30;
    const DF_TEXTREL: u64 = 4;
    let dir = tempfile::tempdir().unwrap();
    let options = ["-DTEXTREL", "-Wl,-z,notext"];
    let file = probe(dir.path(), "both", &options);
    let both = std::fs::read(&file).unwrap();
    let dynamic = header(&both, PT_DYNAMIC);
    let number = |at: usize| u64::from_le_bytes(both[at..at + 8].try_into().unwrap());
    let of = |tag: u64| {
        let mut entry = usize::try_from(number(dynamic + 8)).unwrap();
        while number(entry) != tag {
            assert_ne!(number(entry), 0, "no entry {tag}");
            entry += 16;
        }
        entry
    };
    let (entry, flags) = (of(DT_TEXTREL), of(DT_FLAGS));
    assert_ne!(number(flags + 8) & DF_TEXTREL, 0);
    for (has_entry, has_flag) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut bytes = both.clone();
        if !has_entry {
            bytes[entry..entry + 8].copy_from_slice(&DT_DEBUG.to_le_bytes());
        }
        if !has_flag {
            let other = number(flags + 8) & !DF_TEXTREL;
            bytes[flags + 8..flags + 16].copy_from_slice(&other.to_le_bytes());
        }
        std::fs::write(&file, bytes).unwrap();
        let is_refused = has_entry || has_flag;
        assert_eq!(inspect(&file).unwrap().text_relocations, is_refused);
        assert_eq!(refuses(&file), is_refused);
    }
}

#[test]
fn program_headers_have_one_size_and_are_not_many() {
    let dir = tempfile::tempdir().unwrap();
    let file = probe(dir.path(), "headers", &[]);
    let good = std::fs::read(&file).unwrap();
    for (at, number) in [(54, 55_u16), (56, 4097)] {
        let mut bytes = good.clone();
        bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
        std::fs::write(&file, bytes).unwrap();
        let text = refusal(&file, &Pin::default());
        assert!(
            text.contains("a size or number that no ELF file has"),
            "{text}"
        );
    }
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

/// Without loading it.
fn refuses(file: &Path) -> bool {
    inspect(file).map_or(true, |found| !found.refusals.is_empty())
}

#[test]
fn a_cut_or_garbled_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read(probe(dir.path(), "whole", &[])).unwrap();
    let file = dir.path().join("cut.so");
    for length in (0..good.len().min(8192)).step_by(61) {
        std::fs::write(&file, &good[..length]).unwrap();
        let is_refused = refuses(&file);
        assert!(is_refused, "{length} bytes of {}", good.len());
    }
    // What it is: its magic, class, order of bytes, type and machine.
    for at in (0..6).chain(16..20) {
        let mut garbled = good.clone();
        garbled[at] ^= 0x55;
        std::fs::write(&file, &garbled).unwrap();
        assert!(refuses(&file), "byte {at}");
    }
    // Bytes of the headers and of the end, one at a time: some of them do not matter, and none of them ends this process.
    let mut seed = 1_u32;
    for at in (0..1024).chain(good.len() - 4096..good.len()).step_by(7) {
        let mut garbled = good.clone();
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        garbled[at] = (seed >> 24) as u8;
        std::fs::write(&file, &garbled).unwrap();
        drop(inspect(&file));
    }
}

/// Each of its segments of notes can be all of the file: to read every one would take minutes, and hours of a large file.
#[test]
fn a_file_of_notes_is_looked_at_in_time() {
    const PT_NOTE: u32 = 4;
    const HEADERS: u16 = 4096;
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read(probe(dir.path(), "notes", &[])).unwrap();
    let mut bytes = vec![0; 1 << 20];
    bytes[..64].copy_from_slice(&good[..64]);
    bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
    bytes[56..58].copy_from_slice(&HEADERS.to_le_bytes());
    let all: Vec<usize> = headers(&bytes).collect();
    let first = all[all.len() - 1] + 56;
    for at in all {
        bytes[at..at + 4].copy_from_slice(&PT_NOTE.to_le_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&(first as u64).to_le_bytes());
        let length = bytes.len() - first;
        bytes[at + 32..at + 40].copy_from_slice(&(length as u64).to_le_bytes());
    }
    let file = dir.path().join("notes.so");
    std::fs::write(&file, &bytes).unwrap();
    let began = std::time::Instant::now();
    assert!(refusal(&file, &Pin::default()).contains("does not export"));
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
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
