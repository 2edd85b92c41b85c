//! Repository rules that can be checked by reading the tree; `src/lib.rs` says why each is there.

#![allow(clippy::unwrap_used, reason = "a test says what was wrong by failing")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "support/cargo.rs"]
mod cargo;

/// Longest source file, in lines. A longer one is two rooms.
const LINES_MAX: usize = 600;
/// Longest file of tests, in lines: a table of cases is one thing.
const TEST_LINES_MAX: usize = 800;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `dir` with one of these endings, as (path from the root, text).
fn files(dir: &str, endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut todo = vec![root().join(dir)];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if name == "target" || (name.starts_with('.') && path != root()) {
                continue;
            }
            todo.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if endings
            .iter()
            .any(|ending| path.to_string_lossy().ends_with(ending))
        {
            let name = path
                .strip_prefix(root())
                .unwrap()
                .to_string_lossy()
                .into_owned();
            let text = fs::read_to_string(&path);
            let text = text.unwrap_or_else(|error| panic!("{name}: {error}"));
            found.push((name, text));
        }
    }
    found.sort();
    found
}

/// Without comments and without the tests at a file's end: what a rule is about.
fn code(text: &str) -> String {
    let body = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    body.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

fn is_test(name: &str) -> bool {
    name.ends_with("tests.rs") || name.contains("/tests/")
}

/// No file whose path starts with one of `rooms` may have one of `words` in its code.
fn must_not_know(rooms: &[&str], words: &[&str]) {
    let mut sins = Vec::new();
    let mut empty = rooms.to_vec();
    for (name, text) in files("src", &[".rs"]) {
        let is_in = |room: &&&str| {
            name == format!("src/{room}.rs") || name.starts_with(&format!("src/{room}/"))
        };
        let room = rooms.iter().find(is_in);
        let Some(room) = room.filter(|_| !is_test(&name)) else {
            continue;
        };
        empty.retain(|it| it != room);
        let code = code(&text);
        sins.extend(
            words
                .iter()
                .filter(|word| code.contains(**word))
                .map(|word| format!("{name} knows {word:?}")),
        );
    }
    assert!(empty.is_empty(), "no such rooms: {empty:?}");
    assert!(sins.is_empty(), "{}", sins.join("\n"));
}

#[test]
fn unsafe_code_has_an_address() {
    for library in [
        "src/lib.rs",
        "plugins/skill/src/lib.rs",
        "plugins/guest/src/lib.rs",
        "plugins/storage-fs/src/lib.rs",
    ] {
        let text = fs::read_to_string(root().join(library)).unwrap();
        assert!(
            text.contains("#![forbid(unsafe_code)]"),
            "{library} forbids unsafe code"
        );
    }
    let may = [
        "plugins/abi/",
        "plugins/sdk/",
        "plugins/host/",
        "plugins/sandbox-process/",
        "plugins/check/src/raw",
        // Of its tests one, which needs a thread with descriptors of its own.
        "plugins/check/src/process_state.rs",
        "plugins/check/tests/saboteur/",
    ];
    let words = [
        "unsafe {",
        "unsafe fn",
        "unsafe impl",
        "unsafe extern",
        "unsafe trait",
        "#[unsafe(",
    ];
    for (name, text) in files(".", &[".rs"]) {
        if may.iter().any(|room| name.starts_with(room)) || name == "tests/tidy.rs" {
            continue;
        }
        // In tests too, and where no rule but this one would see it.
        let found = words.iter().find(|word| text.contains(**word));
        assert_eq!(found, None, "{name} has unsafe code");
    }
}

#[test]
fn rooms_do_not_know_what_they_must_not() {
    must_not_know(
        &["rpc"],
        &[
            "catalog",
            "methods",
            "crate::runs",
            "crate::blobs",
            "skillgate_skill",
        ],
    );
    must_not_know(
        &["methods"],
        &["http::", "hyper", "StatusCode", "ErrorObject", "rescue"],
    );
    must_not_know(
        &["catalog", "blobs", "runs", "audit", "secrets"],
        &["crate::rpc", "http::", "hyper", "rescue", "crate::methods"],
    );
    must_not_know(
        &["gate"],
        &["crate::rpc", "rescue", "crate::methods", "crate::policy"],
    );
    must_not_know(
        &["auth", "limit", "door", "policy"],
        &["crate::methods", "crate::runs", "plugin_host"],
    );
}

/// Rooms from the top down.
const LADDER: [&str; 17] = [
    "cli", "app", "stack", "admin", "faces", "methods", "limit", "rpc", "policy", "auth", "door",
    "runs", "catalog", "blobs", "gate", "secrets", "audit",
];
/// What every room may use; these use each other alone. `rescue` knows the errors of all.
const WORDS: [&str; 8] = [
    "server",
    "rescue",
    "json",
    "slots",
    "pace",
    "telemetry",
    "reload",
    "config",
];
const WORDS_OF_ROOMS: [&str; 3] = ["auth::Caller", "auth::Lapsed", "policy::Permit"];

/// Each `crate::room::...` of a file, up to where it branches.
fn uses(code: &str) -> Vec<&str> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let path = |text: &str| text.find(|c| !is_path(c)).unwrap_or(text.len());
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let several = rest.strip_prefix('{').and_then(|all| all.split_once('}'));
        let each = several.map_or(vec![rest], |(all, _)| all.split(',').collect());
        let each = each.into_iter().map(str::trim);
        found.extend(
            each.map(|one| &one[..path(one)])
                .filter(|one| !one.is_empty()),
        );
    }
    found
}

#[test]
fn use_goes_down() {
    let step = |room: &str| LADDER.iter().position(|known| *known == room);
    let (mut sins, mut looked) = (Vec::new(), 0);
    for (name, text) in files("src", &[".rs"]) {
        let room = name["src/".len()..].split(['/', '.']).next().unwrap();
        if is_test(&name) || ["lib", "main", "rescue"].contains(&room) {
            continue;
        }
        let text = code(&text);
        for used in uses(&text) {
            looked += 1;
            let other = used.split("::").next().unwrap();
            let is_word = WORDS.contains(&other) || WORDS_OF_ROOMS.contains(&used);
            let is_down = match (step(room), step(other)) {
                _ if other == room || is_word => true,
                (Some(of), Some(to)) => of < to,
                _ => false,
            };
            if !is_down {
                sins.push(format!("{name} uses crate::{used}"));
            }
        }
    }
    assert!(looked > 200, "{looked} uses of rooms");
    assert!(sins.is_empty(), "{}", sins.join("\n"));
}

#[test]
fn only_config_reads_settings_and_only_the_host_opens_libraries() {
    for (name, text) in files("src", &[".rs"]) {
        let code = code(&text);
        if !name.starts_with("src/config") && !name.starts_with("src/cli") && !is_test(&name) {
            assert!(!code.contains("env::var"), "{name} reads the environment");
        }
        // A bundle is tried by this program in a process that may be lost, and process 1 starts the gateway; see there.
        let starts = code.contains("process::{Command") || code.contains("process::Command");
        assert!(
            !code.contains("libloading")
                && (!starts
                    || is_test(&name)
                    || ["src/policy/child.rs", "src/cli/init.rs"].contains(&name.as_str())),
            "{name} opens a library or starts a process"
        );
    }
}

#[test]
fn only_auth_makes_callers_and_only_policy_makes_permits() {
    for (name, text) in files("src", &[".rs"]) {
        let code = code(&text);
        if name != "src/auth.rs" {
            assert!(
                !code.contains("Caller {\n") && !code.contains("Caller { subject"),
                "{name} makes a Caller"
            );
        }
        if name != "src/policy.rs" {
            assert!(
                !code.contains("Permit {") && !code.contains("Permitted {"),
                "{name} makes a Permit"
            );
        }
    }
}

#[test]
fn files_are_rooms_not_halls() {
    let mut long = Vec::new();
    for (name, text) in files(".", &[".rs", ".py"]) {
        let lines = text.lines().count();
        let max = if name.contains("tests/") {
            TEST_LINES_MAX
        } else {
            LINES_MAX
        };
        if lines > max {
            long.push(format!("{lines} lines: {name}"));
        }
        let stem = PathBuf::from(&name)
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        assert!(
            !["utils", "util", "common", "types", "misc", "helpers"].contains(&stem.as_str()),
            "{name}: a name that says nothing"
        );
    }
    assert!(long.is_empty(), "too long:\n{}", long.join("\n"));
}

#[test]
fn nothing_is_left_unfinished() {
    for (name, text) in files(".", &[".rs", ".py", ".c", ".h", ".toml"]) {
        if name == "tests/tidy.rs" {
            continue;
        }
        for word in ["todo!(", "unimplemented!(", "TODO", "FIXME", "dbg!("] {
            assert!(!text.contains(word), "{name} has {word}");
        }
    }
}

#[test]
fn the_map_lists_every_room() {
    let map = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    for entry in fs::read_dir(root().join("src")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.extension().is_some_and(|ending| ending == "rs")
            && !["lib", "main"].contains(&name.as_str())
        {
            // Public where somebody outside of the library names it.
            let named = [format!("mod {name};"), format!("pub mod {name};")];
            assert!(
                map.lines().any(|line| named.iter().any(|it| it == line)),
                "src/lib.rs does not name {name}"
            );
        }
    }
}

/// To a shell `<` and `>` are files.
#[test]
fn the_filters_of_the_operators_page_are_quoted_for_a_shell() {
    let page = std::fs::read_to_string(root().join("OPERATING.md")).unwrap();
    let filters = page.split(" -F ").skip(1);
    let words: Vec<&str> = filters
        .filter_map(|f| f.split_whitespace().next())
        .collect();
    assert!(!words.is_empty());
    for word in words {
        let is_quoted = word.starts_with('\'');
        assert!(is_quoted || !word.contains(['<', '>']), "-F {word}");
    }
}

/// systemd's own way is to end every process of a service at once, the interpreters of runs among them.
#[test]
fn services_of_the_operators_page_let_runs_finish() {
    let page = std::fs::read_to_string(root().join("OPERATING.md")).unwrap();
    let units: Vec<&str> = page
        .split("```ini")
        .skip(1)
        .map(|unit| unit.split("```").next().unwrap())
        .filter(|unit| unit.lines().any(|line| line == "[Service]"))
        .collect();
    assert!(!units.is_empty());
    for unit in units {
        for line in ["KillMode=mixed", "ExecReload=/bin/kill -HUP $MAINPID"] {
            assert!(
                unit.lines().any(|l| l == line),
                "{line} is missing in{unit}"
            );
        }
    }
}

#[test]
fn the_lock_file_is_complete_and_dependencies_are_from_the_registry_or_here() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    assert!(
        !lock.contains("git+"),
        "a dependency from a repository cannot be reproduced"
    );
    for (name, text) in files(".", &["Cargo.toml"]) {
        assert!(!text.contains("git = "), "{name} has a git dependency");
    }
}

/// All packages of which a build on this machine is made.
fn packages() -> serde_json::Value {
    let cargo = Command::new(env!("CARGO")).arg("-vV").output().unwrap();
    let said = String::from_utf8(cargo.stdout).unwrap();
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.expect("cargo says which machine it is for");
    cargo::metadata(root(), &["--locked", "--filter-platform", host])
}

/// What may be part of a program that a company runs and hands on without asking a lawyer: each asks for a notice at most.
const LICENCES: [&str; 9] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Of each part of an SPDX expression that is joined by AND, one alternative is among [`LICENCES`].
fn is_free_to_use(expression: &str) -> bool {
    let alternatives = |part: &str| {
        let part = part.trim_matches(['(', ')']).replace('/', " OR ");
        part.split(" OR ")
            .any(|one| LICENCES.contains(&one.trim_matches(['(', ')'])))
    };
    expression.split(" AND ").all(alternatives)
}

#[test]
fn every_dependency_may_be_used_and_handed_on() {
    assert!(is_free_to_use("(MIT OR GPL-3.0-only) AND Unicode-3.0"));
    assert!(is_free_to_use("GPL-2.0/MIT"));
    assert!(!is_free_to_use("MIT AND GPL-3.0-only"));
    let found = packages();
    for package in found["packages"].as_array().unwrap() {
        let licence = package["license"].as_str().unwrap_or_default();
        let (name, version) = (&package["name"], &package["version"]);
        assert!(
            is_free_to_use(licence),
            "{name} {version} is under {licence:?}: see whether it can be handed on, and name its licence in LICENCES, or do without it"
        );
    }
}

/// As long as a newer compiler is at hand, nobody sees that a dependency has left behind the one that is promised.
#[test]
fn the_oldest_compiler_that_is_promised_is_enough_on_this_machine() {
    let named = cargo::oldest_compiler(&packages());
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let promise = format!("Rust ({named} or newer)");
    assert!(page.contains(&promise), "README.md does not say {promise}");
}
