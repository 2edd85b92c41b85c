use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{Content, Error, PutSkill, Skill, SkillKey, SkillQuery};
use skillgate_storage_fs::StorageFs;

use crate::support::*;

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    result.unwrap_err().code
}

fn list(store: &StorageFs, tenant: &str, namespace: &str, limit: u32) -> Vec<String> {
    let mut query = SkillQuery {
        limit,
        tenant: tenant.into(),
        namespace: namespace.into(),
        after: SkillKey::default(),
    };
    let mut all = Vec::new();
    loop {
        let page = store.skill_list(&query).unwrap();
        assert!(page.skills.len() <= limit as usize);
        all.extend(
            page.skills
                .iter()
                .map(|skill| format!("{}@{}", skill.name, skill.version)),
        );
        let Some(last) = page.skills.last().filter(|_| page.more) else {
            assert!(!page.more);
            return all;
        };
        query.after = key(last);
    }
}

fn key(skill: &Skill) -> SkillKey {
    SkillKey {
        namespace: skill.namespace.clone(),
        name: skill.name.clone(),
        version: skill.version.clone(),
    }
}

fn get_file(
    store: &StorageFs,
    tenant: &str,
    name: &str,
    version: &str,
    path: &str,
) -> Result<Vec<u8>, Error> {
    store.skill_read(tenant, name, version, path).map(data)
}

#[test]
fn a_published_skill_is_there_whole_and_stays_after_a_restart() {
    let bench = Bench::new();
    let mut store = bench.store();
    let put = skill("acme", "sales.leads.sync", "1.2.0", b"print()\n");
    let answer = store.skill_put(&put).unwrap();
    for life in 0..2 {
        let got = store
            .skill_get("acme", "sales.leads.sync", "1.2.0")
            .unwrap();
        assert_eq!(got, answer, "{life}");
        assert_eq!(got.manifest_json, put.manifest_json);
        assert_eq!(
            (
                got.namespace.as_str(),
                got.kind.as_str(),
                got.description.as_str()
            ),
            ("sales", "action", "does x")
        );
        assert_eq!((got.publisher.as_str(), got.read_only), ("alice", false));
        assert_eq!(got.tree_sha256, put.tree_sha256);
        assert_eq!(read_skill(&store, "acme", &got), put.files);
        let page = store
            .skill_list(&SkillQuery {
                limit: 10,
                tenant: "acme".into(),
                ..SkillQuery::default()
            })
            .unwrap();
        let head = Skill {
            manifest_json: Vec::new(),
            files: Vec::new(),
            ..got
        };
        assert_eq!((page.more, page.skills), (false, vec![head]));
        drop(store);
        store = bench.store();
    }
    assert_eq!(bench.in_tmp(), 0);
}

#[test]
fn the_tree_is_a_directory_to_mount() {
    let bench = Bench::new();
    let store = bench.store();
    store
        .skill_put(&skill("acme", "a.b", "1.0.0", b"x = 5\n"))
        .unwrap();
    let Content::Dir(fd) = store.skill_tree("acme", "a.b", "").unwrap() else {
        panic!()
    };
    let flags = rustix::fs::OFlags::RDONLY;
    let file = rustix::fs::openat(&fd, "code/main.py", flags, rustix::fs::Mode::empty()).unwrap();
    let mut text = String::new();
    std::fs::File::from(file).read_to_string(&mut text).unwrap();
    assert_eq!(text, "x = 5\n");
    // Readable, not only a path.
    let names: BTreeSet<String> = rustix::fs::Dir::read_from(&fd)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert_eq!(
        names,
        ["SKILL.md", "code", "skill.toml"].map(str::to_owned).into()
    );
}

#[test]
fn the_same_again_succeeds_and_something_else_is_refused() {
    let bench = Bench::new();
    let store = bench.store();
    let first = skill("acme", "a.b", "1.0.0", b"x");
    let answer = store.skill_put(&first).unwrap();
    let again = PutSkill {
        publisher: "bob".into(),
        ..first.clone()
    };
    assert_eq!(
        store.skill_put(&again).unwrap(),
        answer,
        "nothing has changed, the publisher neither"
    );
    let other = skill("acme", "a.b", "1.0.0", b"y");
    assert_eq!(code(store.skill_put(&other)), abi::E_ALREADY_EXISTS);
    drop(store);
    let store = bench.store();
    assert_eq!(store.skill_put(&first).unwrap(), answer);
    assert_eq!(code(store.skill_put(&other)), abi::E_ALREADY_EXISTS);
    // Another version, and another tenant, are other things.
    store
        .skill_put(&skill("acme", "a.b", "1.0.0+2", b"y"))
        .unwrap();
    store
        .skill_put(&skill("zeta", "a.b", "1.0.0", b"y"))
        .unwrap();
    assert_eq!(list(&store, "acme", "", 10), ["a.b@1.0.0+2", "a.b@1.0.0"]);
    assert_eq!(list(&store, "zeta", "", 10), ["a.b@1.0.0"]);
    assert_eq!(
        get_file(&store, "zeta", "a.b", "", "code/main.py").unwrap(),
        b"y"
    );
    assert_eq!(bench.in_tmp(), 0);
}

#[test]
fn of_two_at_once_exactly_one_wins() {
    let bench = Bench::new();
    let store = bench.store();
    for round in 0..30 {
        let name = format!("race.r{round}");
        let (threads, start) = (8, Barrier::new(8));
        let answers: Vec<Result<Skill, Error>> = std::thread::scope(|scope| {
            let put = |n: usize| {
                let (store, start, name) = (&store, &start, &name);
                // Four different contents, each put twice.
                move || {
                    start.wait();
                    store.skill_put(&skill("acme", name, "1.0.0", &[b'a' + (n % 4) as u8]))
                }
            };
            let running: Vec<_> = (0..threads).map(|n| scope.spawn(put(n))).collect();
            running
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let winners: BTreeSet<String> = answers
            .iter()
            .flatten()
            .map(|skill| skill.tree_sha256.clone())
            .collect();
        assert_eq!(winners.len(), 1);
        assert_eq!(
            answers.iter().flatten().count(),
            2,
            "who put the same content has it too"
        );
        assert!(answers.iter().all(|answer| {
            answer
                .as_ref()
                .err()
                .is_none_or(|e| e.code == abi::E_ALREADY_EXISTS)
        }));
        let stored = store.skill_get("acme", &name, "").unwrap();
        assert!(winners.contains(&stored.tree_sha256));
        read_skill(&store, "acme", &stored);
    }
    assert_eq!(bench.in_tmp(), 0);
}

#[test]
fn latest_is_found_and_what_is_not_there_is_not_found() {
    let bench = Bench::new();
    let store = bench.store();
    for version in ["1.9.0", "1.10.0", "2.0.0-rc.1"] {
        store
            .skill_put(&skill("acme", "a.b", version, version.as_bytes()))
            .unwrap();
    }
    assert_eq!(
        store.skill_get("acme", "a.b", "").unwrap().version,
        "1.10.0"
    );
    assert_eq!(
        get_file(&store, "acme", "a.b", "", "code/main.py").unwrap(),
        b"1.10.0"
    );
    assert_eq!(
        get_file(&store, "acme", "a.b", "2.0.0-rc.1", "code/main.py").unwrap(),
        b"2.0.0-rc.1"
    );
    let absent = [
        ("other", "a.b", ""),
        ("acme", "a", ""),
        ("acme", "a.b.c", ""),
        ("acme", "a.b", "3.0.0"),
        ("acme", "a.b", "latest"),
        ("acme", "a.b", "1.9"),
        ("acme", "..", ""),
        ("acme", "a.b", ".."),
        ("acme", "../a.b", ""),
        ("acme", "A.b", ""),
        ("acme", "a.b\0", ""),
        ("acme", "", ""),
        ("../acme", "a.b", ""),
    ];
    for (tenant, name, version) in absent {
        assert_eq!(
            code(store.skill_get(tenant, name, version)),
            abi::E_NOT_FOUND,
            "{tenant} {name} {version}"
        );
        assert_eq!(
            code(store.skill_tree(tenant, name, version)),
            abi::E_NOT_FOUND
        );
        assert_eq!(
            code(store.skill_read(tenant, name, version, "SKILL.md")),
            abi::E_NOT_FOUND
        );
    }
}

#[test]
fn no_path_leads_out_of_a_skill() {
    let bench = Bench::new();
    let store = bench.store();
    store
        .skill_put(&skill("acme", "a.b", "1.0.0", b"x"))
        .unwrap();
    std::fs::write(bench.dir.path().join("secret"), "s").unwrap();
    let long = "x/".repeat(300);
    let wide = "y".repeat(256);
    for path in [
        "..",
        "../meta.json",
        "code/../skill.toml",
        "/etc/passwd",
        "code/../../meta.json",
        "a\\b",
        "code/main.py\0",
        ".",
        "./SKILL.md",
        "code//main.py",
        "code/",
        "",
        "C:/x",
        "~/x",
        &long,
        &wide,
        "code\n",
        "/proc/self/environ",
        "../../../../../../../secret",
    ] {
        assert_eq!(
            code(store.skill_read("acme", "a.b", "", path)),
            abi::E_INVALID_ARGUMENT,
            "{path:?}"
        );
        let put = put_of("acme", "a.c", "1.0.0", &[(path, b"x")]);
        assert_eq!(
            code(store.skill_put(&put)),
            abi::E_INVALID_ARGUMENT,
            "{path:?}"
        );
    }
    for path in [
        "nothing",
        "%2e%2e/meta.json",
        "SKILL.md/x",
        "code/main.pyc",
        "skill.TOML",
    ] {
        assert_eq!(
            code(store.skill_read("acme", "a.b", "", path)),
            abi::E_NOT_FOUND,
            "{path:?}"
        );
    }
    for path in ["code", "code/lib"] {
        let error = store.skill_read("acme", "a.b", "", path).unwrap_err();
        assert_eq!(error.code, abi::E_INVALID_ARGUMENT);
        assert!(error.message.contains("is a directory"), "{error}");
    }
    for (name, version) in [
        ("..", "1.0.0"),
        ("a/b", "1.0.0"),
        ("A", "1.0.0"),
        ("a.b", ".."),
        ("a.b", "1"),
        ("", "1.0.0"),
        ("a.b", "../1.0.0"),
    ] {
        assert_eq!(
            code(store.skill_put(&put_of("acme", name, version, &[]))),
            abi::E_INVALID_ARGUMENT,
            "{name} {version}"
        );
    }
    // One file in two spellings, a file that is a directory, a wrong digest, a file that is too large, no JSON.
    let clash = put_of("acme", "a.c", "1.0.0", &[("A", b"x"), ("a", b"x")]);
    assert_eq!(code(store.skill_put(&clash)), abi::E_INVALID_ARGUMENT);
    let clash = put_of("acme", "a.c", "1.0.0", &[("a", b"x"), ("a/b", b"x")]);
    assert_eq!(code(store.skill_put(&clash)), abi::E_INVALID_ARGUMENT);
    let good = skill("acme", "a.c", "1.0.0", b"x");
    let lies = PutSkill {
        tree_sha256: "0".repeat(64),
        ..good.clone()
    };
    assert_eq!(code(store.skill_put(&lies)), abi::E_INVALID_ARGUMENT);
    let text = PutSkill {
        manifest_json: b"{".to_vec(),
        ..good.clone()
    };
    assert_eq!(code(store.skill_put(&text)), abi::E_INVALID_ARGUMENT);
    let large = skill("acme", "a.c", "1.0.0", &vec![0; 16 * 1024 * 1024 + 1]);
    assert_eq!(code(store.skill_put(&large)), abi::E_OUT_OF_RANGE);
    assert_eq!(bench.in_tmp(), 0);
    assert_eq!(list(&store, "acme", "", 10), ["a.b@1.0.0"]);
    store.skill_put(&good).unwrap();
}

#[test]
fn tenants_with_any_name_are_apart() {
    let bench = Bench::new();
    let long = "t".repeat(400);
    let tenants = [
        "acme",
        "Acme",
        "..",
        "a/b",
        ".hidden",
        "ünïcode",
        "a b",
        "%2e",
        "con",
        &long,
    ];
    let store = bench.store();
    for (n, tenant) in tenants.iter().enumerate() {
        store
            .skill_put(&skill(tenant, "a.b", "1.0.0", &[n as u8]))
            .unwrap();
    }
    drop(store);
    let store = bench.store();
    for (n, tenant) in tenants.iter().enumerate() {
        assert_eq!(list(&store, tenant, "", 5), ["a.b@1.0.0"], "{tenant}");
        assert_eq!(
            get_file(&store, tenant, "a.b", "", "code/main.py").unwrap(),
            [n as u8]
        );
    }
    assert_eq!(count(&bench.root().join("tenants")), tenants.len());
    assert_eq!(
        code(store.skill_get("", "a.b", "")),
        abi::E_INVALID_ARGUMENT
    );
}

#[test]
fn what_is_damaged_is_left_out_named_and_not_fatal() {
    let bench = Bench::new();
    let store = bench.store();
    for version in ["1.0.0", "1.1.0", "1.2.0", "1.3.0"] {
        store
            .skill_put(&skill("acme", "a.b", version, b"x"))
            .unwrap();
    }
    drop(store);
    let skills = bench.root().join("tenants/acme/skills");
    std::fs::write(skills.join("a.b/1.1.0/meta.json"), "{}").unwrap();
    std::fs::remove_file(skills.join("a.b/1.2.0/meta.json")).unwrap();
    std::fs::rename(skills.join("a.b/1.3.0"), skills.join("a.b/9.9.9")).unwrap();
    std::fs::create_dir(skills.join("NOT-A-NAME")).unwrap();
    std::fs::create_dir(skills.join("NOT-A-NAME/1.0.0")).unwrap();
    std::fs::write(skills.join("stray"), "").unwrap();
    let store = bench.store();
    assert_eq!(list(&store, "acme", "", 10), ["a.b@1.0.0"]);
    for part in [
        "a.b/1.1.0",
        "a.b/1.2.0",
        "a.b/9.9.9",
        "NOT-A-NAME/1.0.0",
        "stray",
    ] {
        assert!(bench.logged(part), "{part}");
    }
    // 1.1.0, 1.2.0, 9.9.9 and NOT-A-NAME's; a file beside the skills is none of them.
    let health = store.health().unwrap();
    assert_eq!(health.state, abi::HEALTH_DEGRADED);
    assert!(health.message.starts_with("4 "), "{}", health.message);
    assert!(health.metrics_json.contains(r#""skills_unread":4"#));
    // Its place is taken, and nothing is put over it.
    assert_eq!(
        code(store.skill_put(&skill("acme", "a.b", "1.1.0", b"x"))),
        abi::E_CORRUPT
    );
    std::fs::create_dir(skills.join("a.b/5.0.0")).unwrap();
    let empty = store.skill_put(&skill("acme", "a.b", "5.0.0", b"x"));
    assert_eq!(
        code(empty),
        abi::E_CORRUPT,
        "an empty directory is not replaced either"
    );
    // A bit in a file.
    let file = skills.join("a.b/1.0.0/files/code/main.py");
    std::fs::write(&file, "y").unwrap();
    assert_eq!(
        code(store.skill_read("acme", "a.b", "", "code/main.py")),
        abi::E_CORRUPT
    );
    assert!(store.skill_read("acme", "a.b", "", "SKILL.md").is_ok());
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        code(store.skill_read("acme", "a.b", "", "code/main.py")),
        abi::E_CORRUPT
    );
}

/// By hand, or by a backup that was put back into the wrong place: who is shown it is the tenant that it was published for.
#[test]
fn what_lies_under_another_tenant_is_not_shown_there() {
    let bench = Bench::new();
    let store = bench.store();
    for (tenant, name) in [("acme", "a.b"), ("acme", "a.c"), ("other", "c.d")] {
        store
            .skill_put(&skill(tenant, name, "1.0.0", b"x"))
            .unwrap();
    }
    drop(store);
    let [acme, other] = ["acme", "other"].map(|it| bench.root().join("tenants").join(it));
    std::fs::rename(acme.join("skills/a.b"), other.join("skills/a.b")).unwrap();
    let store = bench.store();
    assert_eq!(list(&store, "other", "", 10), ["c.d@1.0.0"]);
    assert_eq!(list(&store, "acme", "", 10), ["a.c@1.0.0"]);
    for gone in ["other", "acme"] {
        assert_eq!(code(store.skill_get(gone, "a.b", "")), abi::E_NOT_FOUND);
    }
    assert!(bench.logged("tenants/other/skills/a.b/1.0.0"));
    assert!(bench.logged("it is about another skill, version or tenant"));
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
fn the_last_page_costs_what_the_first_does() {
    const NAMES: usize = 100;
    const VERSIONS: usize = 100;
    let bench = Bench::in_memory();
    let store = bench.store();
    let mut expected = Vec::new();
    for n in 0..NAMES {
        let name = format!("ns{:02}.skill-{n:03}.do", n / 10);
        for v in 0..VERSIONS {
            let version = format!("1.{v}.0");
            store
                .skill_put(&put_of("acme", &name, &version, &[("SKILL.md", b"x")]))
                .unwrap();
        }
        expected.extend((0..VERSIONS).rev().map(|v| format!("{name}@1.{v}.0")));
    }
    drop(store);
    let started = Instant::now();
    let store = bench.store();
    let loaded = started.elapsed();
    assert!(list(&store, "acme", "", 50) == expected);
    assert!(list(&store, "acme", "", 1000) == expected);
    assert!(list(&store, "acme", "ns07", 50) == expected[7 * 1000..8 * 1000]);

    let mut places = vec![SkillKey::default()];
    let mut query = SkillQuery {
        limit: 50,
        tenant: "acme".into(),
        ..SkillQuery::default()
    };
    loop {
        let page = store.skill_list(&query).unwrap();
        if !page.more {
            break;
        }
        query.after = key(page.skills.last().unwrap());
        places.push(query.after.clone());
    }
    assert_eq!(places.len(), NAMES * VERSIONS / 50);
    // Pages in turn, many times over, so that a busy moment of the machine meets all of them.
    let mut times = vec![Vec::new(); places.len()];
    for _ in 0..31 {
        for (place, times) in places.iter().zip(&mut times) {
            query.after = place.clone();
            let started = Instant::now();
            let page = store.skill_list(&query).unwrap();
            times.push(started.elapsed());
            assert_eq!(page.skills.len(), 50);
        }
    }
    let medians: Vec<Duration> = times.into_iter().map(median).collect();
    let (first, slowest) = (medians[0], *medians.iter().max().unwrap());
    println!(
        "loaded 10,000 versions in {loaded:?}; first page {first:?}, slowest of {} {slowest:?}",
        medians.len()
    );
    assert!(slowest <= first * 2, "{slowest:?} against {first:?}");
    // Generous: a debug build on a busy machine.
    assert!(loaded < Duration::from_secs(5), "{loaded:?}");
}

#[test]
fn a_limit_outside_its_range_and_a_place_that_is_none_are_refused() {
    let bench = Bench::new();
    let store = bench.store();
    let query = |limit, version: &str| SkillQuery {
        limit,
        tenant: "acme".into(),
        namespace: String::new(),
        after: SkillKey {
            namespace: "a".into(),
            name: "a.b".into(),
            version: version.into(),
        },
    };
    for (limit, version, fine) in [
        (0, "1.0.0", false),
        (1, "1.0.0", true),
        (1000, "", true),
        (1001, "", false),
        (5, "x", false),
    ] {
        let result = store.skill_list(&query(limit, version));
        assert_eq!(
            result.as_ref().err().map(|e| e.code),
            (!fine).then_some(abi::E_INVALID_ARGUMENT),
            "{limit} {version}"
        );
    }
}
