use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{Content, CreateRequest, SkillKey, SkillQuery};
use skillgate_plugin_sdk::{Host, abi};
use skillgate_storage_fs::StorageFs;

use crate::child::say;
use crate::crash;
use crate::support::*;

fn write_skill(dir: &Path, name: &str, version: &str, more: &str) {
    std::fs::create_dir_all(dir.join("code")).unwrap();
    let manifest = format!(
        "name = \"{name}\"\nversion = \"{version}\"\ndescription = \"does x\"\nkind = \"action\"\n{more}\n\
         [runtime]\nlanguage = \"python\"\nentrypoint = \"code/main.py\"\nexport = \"run\"\n"
    );
    std::fs::write(dir.join("skill.toml"), manifest).unwrap();
    std::fs::write(
        dir.join("SKILL.md"),
        format!("---\nname: {name}\n---\n# {name}\n"),
    )
    .unwrap();
    std::fs::write(
        dir.join("code/main.py"),
        "def run(args):\n    return args\n",
    )
    .unwrap();
}

fn shelf(bench: &Bench, dirs: &[PathBuf], root: bool) -> StorageFs {
    let root = if root {
        format!(r#""root": {:?}, "fsync": false, "#, bench.root())
    } else {
        String::new()
    };
    bench
        .create(&format!(r#"{{{root}"read_only_skills": {dirs:?}}}"#))
        .unwrap()
}

fn listed(store: &StorageFs, limit: u32) -> Vec<String> {
    let mut query = SkillQuery {
        limit,
        tenant: "acme".into(),
        ..SkillQuery::default()
    };
    let mut all = Vec::new();
    loop {
        let page = store.skill_list(&query).unwrap();
        // Whoever says that there is more has more.
        assert!(all.is_empty() || !page.skills.is_empty());
        all.extend(page.skills.iter().map(|s| {
            format!(
                "{}@{}{}",
                s.name,
                s.version,
                if s.read_only { "" } else { " own" }
            )
        }));
        match page.skills.last().filter(|_| page.more) {
            Some(s) => {
                query.after = SkillKey {
                    namespace: s.namespace.clone(),
                    name: s.name.clone(),
                    version: s.version.clone(),
                };
            }
            None => return all,
        }
    }
}

#[test]
fn both_layouts_are_served_to_every_tenant() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("skills");
    write_skill(&dir.join("whatever"), "demo.echo", "1.0.0", "");
    write_skill(&dir.join("demo.sum/1.0.0"), "demo.sum", "1.0.0", "");
    write_skill(
        &dir.join("demo.sum/1.2.0"),
        "demo.sum",
        "1.2.0",
        "namespace = \"math\"",
    );
    std::fs::write(dir.join("README.md"), "not a skill").unwrap();
    std::fs::create_dir_all(dir.join(".git/objects")).unwrap();
    std::fs::create_dir_all(dir.join("empty/deeper")).unwrap();
    // The configured directory itself may be a link.
    let link = bench.dir.path().join("link");
    symlink(&dir, &link).unwrap();
    let store = shelf(&bench, &[link], false);
    assert_eq!(
        listed(&store, 1),
        ["demo.echo@1.0.0", "demo.sum@1.0.0", "demo.sum@1.2.0"]
    );
    assert!(
        bench.logs.lock().unwrap().is_empty(),
        "{:?}",
        bench.logs.lock().unwrap()
    );
    for tenant in ["acme", "other"] {
        let got = store.skill_get(tenant, "demo.sum", "").unwrap();
        assert_eq!(
            (
                got.version.as_str(),
                got.namespace.as_str(),
                got.kind.as_str()
            ),
            ("1.2.0", "math", "action")
        );
        assert!(got.read_only && got.publisher.is_empty());
        assert_eq!(got.files.len(), 3);
        let manifest: serde_json::Value = serde_json::from_slice(&got.manifest_json).unwrap();
        assert_eq!(manifest["runtime"]["entrypoint"], "code/main.py");
        read_skill(&store, tenant, &got);
    }
    let text = data(
        store
            .skill_read("acme", "demo.echo", "", "code/main.py")
            .unwrap(),
    );
    assert_eq!(text, b"def run(args):\n    return args\n");
    let Content::Dir(fd) = store.skill_tree("acme", "demo.echo", "1.0.0").unwrap() else {
        panic!()
    };
    assert!(
        rustix::fs::accessat(
            &fd,
            "code/main.py",
            rustix::fs::Access::READ_OK,
            rustix::fs::AtFlags::empty()
        )
        .is_ok()
    );
    let error = |path: &str| {
        store
            .skill_read("acme", "demo.echo", "", path)
            .unwrap_err()
            .code
    };
    assert_eq!(error("nothing.py"), abi::E_NOT_FOUND);
    assert_eq!(error("code"), abi::E_INVALID_ARGUMENT);
    assert_eq!(
        error("../demo.sum/1.0.0/skill.toml"),
        abi::E_INVALID_ARGUMENT
    );
    assert_eq!(
        store
            .skill_get("acme", "demo.echo", "2.0.0")
            .unwrap_err()
            .code,
        abi::E_NOT_FOUND
    );
}

#[test]
fn what_is_not_valid_is_left_off_and_named() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("skills");
    let secret = bench.dir.path().join("secret");
    std::fs::write(&secret, "top secret").unwrap();
    write_skill(&dir.join("good"), "demo.good", "1.0.0", "");
    write_skill(&dir.join("typo"), "demo.typo", "1.0.0", "kind = ");
    write_skill(&dir.join("unfit"), "demo.unfit", "1.0", "");
    write_skill(
        &dir.join("twin"),
        "demo.good",
        "1.0.0",
        "tags = [\"other\"]",
    );
    write_skill(&dir.join("link"), "demo.link", "1.0.0", "");
    symlink(&secret, dir.join("link/notes.txt")).unwrap();
    write_skill(&dir.join("linkdir"), "demo.linkdir", "1.0.0", "");
    symlink("/etc", dir.join("linkdir/etc")).unwrap();
    write_skill(&dir.join("pipe"), "demo.pipe", "1.0.0", "");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("pipe/p"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    write_skill(&dir.join("large"), "demo.large", "1.0.0", "");
    std::fs::File::create(dir.join("large/sparse"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    write_skill(&dir.join("deep"), "demo.deep", "1.0.0", "");
    for (skill, depth) in [("good", 64), ("deep", 65)] {
        std::fs::create_dir_all(dir.join(skill).join("d/".repeat(depth))).unwrap();
    }
    std::fs::create_dir_all(dir.join("manifest")).unwrap();
    symlink(dir.join("good/skill.toml"), dir.join("manifest/skill.toml")).unwrap();
    symlink(dir.join("good"), dir.join("whole")).unwrap();
    let store = shelf(&bench, std::slice::from_ref(&dir), false);
    assert_eq!(listed(&store, 50), ["demo.good@1.0.0"]);
    let logs = bench.logs.lock().unwrap().clone();
    let expected = [
        ("typo/skill.toml:5:", "error"),
        ("unfit/skill.toml:2:", "1.0"),
        ("skills/twin", "already"),
        ("skills/link", "notes.txt"),
        ("linkdir", "symbolic link"),
        ("pipe", "not a regular file"),
        ("large", "sparse"),
        ("deep", "nested deeper than 64 directories"),
        ("manifest", "symbolic link"),
        ("whole", "symbolic link"),
    ];
    for (path, text) in expected {
        let named =
            |line: &&String| line.starts_with("Warn") && line.contains(path) && line.contains(text);
        assert!(
            logs.iter().any(|line| named(&line)),
            "{path} {text}: {logs:#?}"
        );
    }
    assert!(logs.iter().all(|line| !line.contains("top secret")));
    // Planted after the start: not followed either.
    std::fs::remove_file(dir.join("good/SKILL.md")).unwrap();
    symlink(&secret, dir.join("good/SKILL.md")).unwrap();
    assert_eq!(
        store
            .skill_read("acme", "demo.good", "", "SKILL.md")
            .unwrap_err()
            .code,
        abi::E_CORRUPT
    );
    std::fs::remove_file(dir.join("good/SKILL.md")).unwrap();
    symlink("code/main.py", dir.join("good/SKILL.md")).unwrap();
    let within = store.skill_read("acme", "demo.good", "", "SKILL.md");
    assert_eq!(within.unwrap_err().code, abi::E_CORRUPT);
    std::fs::remove_file(dir.join("good/SKILL.md")).unwrap();
    assert_eq!(
        store
            .skill_read("acme", "demo.good", "", "SKILL.md")
            .unwrap_err()
            .code,
        abi::E_NOT_FOUND
    );
    std::fs::create_dir(dir.join("good/SKILL.md")).unwrap();
    let directory = store.skill_read("acme", "demo.good", "", "SKILL.md");
    assert_eq!(directory.unwrap_err().code, abi::E_CORRUPT);
}

#[test]
fn a_directory_may_be_one_skill_and_the_same_skill_twice_is_fine() {
    let bench = Bench::new();
    let one = bench.dir.path().join("one");
    write_skill(&one, "demo.one", "1.0.0", "");
    let copy = bench.dir.path().join("copies");
    write_skill(&copy.join("x"), "demo.one", "1.0.0", "");
    let store = shelf(&bench, &[one, copy], false);
    assert_eq!(listed(&store, 5), ["demo.one@1.0.0"]);
    let logs = bench.logs.lock().unwrap().clone();
    assert!(logs.is_empty(), "{logs:?}");
    let got = store.skill_get("acme", "demo.one", "").unwrap();
    assert_eq!(read_skill(&store, "acme", &got).len(), 3);
    assert!(matches!(
        store.skill_tree("acme", "demo.one", ""),
        Ok(Content::Dir(_))
    ));
}

#[test]
fn shelf_and_store_in_one_instance_are_one_list() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("skills");
    write_skill(&dir.join("b"), "demo.b", "1.0.0", "");
    let shelved = dir.join("d");
    write_skill(&shelved, "demo.d", "1.0.0", "");
    let store = shelf(&bench, &[dir], true);
    for (name, version) in [
        ("demo.a", "1.0.0"),
        ("demo.b", "2.0.0"),
        ("demo.b", "0.1.0"),
        ("demo.e", "1.0.0"),
    ] {
        store
            .skill_put(&skill("acme", name, version, b"x"))
            .unwrap();
    }
    let all = [
        "demo.a@1.0.0 own",
        "demo.b@2.0.0 own",
        "demo.b@1.0.0",
        "demo.b@0.1.0 own",
        "demo.d@1.0.0",
        "demo.e@1.0.0 own",
    ];
    for limit in 1..8 {
        assert_eq!(listed(&store, limit), all, "{limit}");
    }
    let metrics = store.health().unwrap().metrics_json;
    assert!(metrics.contains(r#""skills":6,"#), "{metrics}");
    assert_eq!(
        store.skill_get("acme", "demo.b", "").unwrap().version,
        "2.0.0"
    );
    assert_eq!(
        store.skill_get("other", "demo.b", "").unwrap().version,
        "1.0.0"
    );
    let taken = skill("acme", "demo.d", "1.0.0", b"mine");
    assert_eq!(
        store.skill_put(&taken).unwrap_err().code,
        abi::E_ALREADY_EXISTS
    );
    // Who sends what is there has what was wanted.
    let files = ["SKILL.md", "code/main.py", "skill.toml"];
    let files = files.map(|path| (path, std::fs::read(shelved.join(path)).unwrap()));
    let same = files.each_ref().map(|(path, bytes)| (*path, &bytes[..]));
    let put = store.skill_put(&put_of("acme", "demo.d", "1.0.0", &same));
    assert!(put.unwrap().read_only);
    assert_eq!(listed(&store, 7), all);
}

#[test]
fn what_was_published_before_it_was_on_the_shelf_is_there_once() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("skills");
    write_skill(&dir.join("b"), "demo.b", "1.0.0", "");
    for version in ["1.0.0", "2.0.0"] {
        let own = skill("acme", "demo.b", version, b"x");
        bench.store().skill_put(&own).unwrap();
    }
    let store = shelf(&bench, &[dir], true);
    for limit in 1..4 {
        let all = listed(&store, limit);
        assert_eq!(all, ["demo.b@2.0.0 own", "demo.b@1.0.0"], "{limit}");
    }
    assert!(
        store
            .skill_get("acme", "demo.b", "1.0.0")
            .unwrap()
            .read_only
    );
}

#[test]
fn the_latest_is_that_of_shelf_and_store_together() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("skills");
    let rows = [
        ("demo.newer", "1.0.0", "1.0.1", "1.0.1"),
        ("demo.older", "1.0.0", "0.9.9", "1.0.0"),
        ("demo.early", "1.0.0", "2.0.0-rc.1", "1.0.0"),
        ("demo.ripe", "2.0.0-rc.1", "1.0.0", "1.0.0"),
        ("demo.both", "1.0.0-rc.1", "1.0.0-rc.2", "1.0.0-rc.2"),
    ];
    for (name, shelved, _, _) in rows {
        write_skill(&dir.join(name), name, shelved, "");
    }
    let store = shelf(&bench, &[dir], true);
    for (name, _, own, latest) in rows {
        store.skill_put(&skill("acme", name, own, b"x")).unwrap();
        let found = store.skill_get("acme", name, "").unwrap();
        assert_eq!(found.version, latest, "{name}");
        assert_eq!(found.read_only, latest != own, "{name}");
    }
}

/// A name that is no text can be listed and not opened, by root either.
const NOT_TO_BE_OPENED: &[u8] = b"2.0.0\xff";

#[test]
fn a_version_that_cannot_be_read_is_told_and_its_name_is_the_operators() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("skills");
    write_skill(&dir.join("demo.some/1.0.0"), "demo.some", "1.0.0", "");
    for name in ["demo.some", "demo.none"] {
        let version = dir.join(name).join(OsStr::from_bytes(NOT_TO_BE_OPENED));
        write_skill(&version, name, "2.0.0", "");
    }
    // What every file system has is nobody's skill, and what is hidden is not one yet.
    for nobodys in ["lost+found", ".new"] {
        write_skill(&dir.join(nobodys), "demo.nobodys", "1.0.0", "");
    }
    for root in [false, true] {
        bench.logs.lock().unwrap().clear();
        let store = shelf(&bench, std::slice::from_ref(&dir), root);
        assert_eq!(listed(&store, 5), ["demo.some@1.0.0"]);
        for name in ["demo.some", "demo.none"] {
            let told = format!("Warn left off the shelf [(\"path\", \"{}", dir.display());
            assert_eq!(bench.count_logged(&format!("{told}/{name}/2.0.0")), 1);
        }
        let health = store.health().unwrap();
        assert_eq!(health.state, abi::HEALTH_DEGRADED);
        assert!(health.message.starts_with("2 "), "{}", health.message);
        assert!(health.metrics_json.contains(r#""skills_unread":2"#));
        let get = |name| store.skill_get("acme", name, "").map_err(|e| e.code);
        assert_eq!(get("demo.some").unwrap().version, "1.0.0");
        assert_eq!(get("demo.none").unwrap_err(), abi::E_CORRUPT);
        assert_eq!(get("demo.other").unwrap_err(), abi::E_NOT_FOUND);
        for name in ["demo.some", "demo.none"].into_iter().filter(|_| root) {
            let taken = store.skill_put(&skill("acme", name, "2.0.0", b"mine"));
            assert_eq!(taken.unwrap_err().code, abi::E_ALREADY_EXISTS, "{name}");
        }
    }
}

/// Names that are the operator's could be published over, and nobody would know.
#[test]
fn a_directory_that_is_not_there_keeps_the_store_from_starting() {
    let bench = Bench::new();
    let (dir, missing) = (
        bench.dir.path().join("skills"),
        bench.dir.path().join("missing"),
    );
    write_skill(&dir.join("some"), "demo.some", "1.0.0", "");
    let config = format!(r#"{{"read_only_skills": {:?}}}"#, [&dir, &missing]);
    let refused = bench.create(&config).map(drop).unwrap_err();
    assert_eq!(refused.code, abi::E_PRECONDITION, "{refused}");
    for part in [missing.to_str().unwrap(), "is not there", "skills.paths"] {
        assert!(refused.message.contains(part), "{refused}");
    }
}

#[test]
fn a_directory_that_has_been_removed_is_told() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("skills");
    for root in [false, true] {
        write_skill(&dir.join("some"), "demo.some", "1.0.0", "");
        let store = shelf(&bench, std::slice::from_ref(&dir), root);
        assert_eq!(store.health().unwrap().state, abi::HEALTH_OK);
        std::fs::remove_dir_all(&dir).unwrap();
        let health = store.health().unwrap();
        assert_eq!(health.state, abi::HEALTH_DEGRADED);
        let told = "1 directories of skills have been removed";
        assert!(health.message.starts_with(told), "{}", health.message);
    }
}

#[test]
fn a_link_among_versions_is_told() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("skills");
    write_skill(&dir.join("demo.some/1.0.0"), "demo.some", "1.0.0", "");
    symlink("1.0.0", dir.join("demo.some/latest")).unwrap();
    std::fs::create_dir_all(dir.join("demo.none")).unwrap();
    symlink("../demo.some/1.0.0", dir.join("demo.none/1.0.0")).unwrap();
    let store = shelf(&bench, &[dir], true);
    assert_eq!(listed(&store, 5), ["demo.some@1.0.0"]);
    for link in ["demo.some/latest", "demo.none/1.0.0"] {
        assert_eq!(bench.count_logged(link), 1, "{link}");
    }
    assert_eq!(bench.count_logged("it is a symbolic link"), 2);
    // It could be read, and is not to be followed.
    assert_eq!(store.health().unwrap().state, abi::HEALTH_OK);
    let taken = store.skill_put(&skill("acme", "demo.none", "1.0.0", b"mine"));
    assert_eq!(taken.unwrap_err().code, abi::E_ALREADY_EXISTS);
}

/// The child's part: what it has found on the shelf in `dir`.
pub(crate) fn scan(dir: &Path) {
    let request = CreateRequest {
        config_json: format!(r#"{{"read_only_skills": [{dir:?}]}}"#).into_bytes(),
        ..CreateRequest::default()
    };
    match StorageFs::create(Host::for_tests(|_, _, _, _| {}), request) {
        Err(error) => say(&format!("refused {}", error.code)),
        Ok(store) => {
            let found = listed(&store, 5).len();
            say(&format!("found {found} {}", store.health().unwrap().state));
        }
    }
    say("end");
}

/// Of two versions in one directory: that, and of each itself, itself again, its directory of code and its three files.
const OPENS: u32 = 13;

/// What does not let a directory or a file be opened says nothing about what is in it.
#[test]
fn whatever_cannot_be_opened_is_not_taken_for_nothing() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("skills");
    for version in ["1.0.0", "2.0.0"] {
        write_skill(&dir.join("demo.a").join(version), "demo.a", version, "");
    }
    let found = |skills, state| format!("found {skills} {state}");
    let degraded = [0, 1].map(|skills| found(skills, abi::HEALTH_DEGRADED));
    let refused = [format!("refused {}", abi::E_EXHAUSTED)];
    for (error, expected) in [("EACCES", &degraded[..]), ("EMFILE", &refused)] {
        for when in 1..=OPENS + 1 {
            let inject = format!("inject=openat2:error={error}:when={when}");
            let options = ["-e", "trace=openat2", "-e", &inject];
            let null = Path::new("/dev/null");
            let Some(command) = crash::strace_of("shelf", &options, null, &dir) else {
                return;
            };
            let said = crash::run(command);
            assert_eq!(said.last().map(String::as_str), Some("end"), "{said:?}");
            let is_said = |line: &String| said.contains(line);
            // The last one does not come to pass.
            match when > OPENS {
                true => assert!(is_said(&found(2, abi::HEALTH_OK)), "{inject}: {said:?}"),
                false => assert!(expected.iter().any(is_said), "{inject}: {said:?}"),
            }
        }
    }
}
