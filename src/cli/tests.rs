//! The program from its arguments to its output and exit code, without a process of its own.

mod reader;
mod terminal;

use super::*;

use std::path::Path;

use clap::CommandFactory as _;
use serde_json::{Value, json};

use crate::audit::LINE_BYTES_MAX;

/// Runs one command line: exit code, stdout, stderr.
fn skillgate(args: &[&str]) -> (Exit, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once("skillgate")
        .chain(args.iter().copied())
        .map(OsString::from);
    let exit = run(args, &mut out, &mut err);
    (
        exit,
        String::from_utf8(out).unwrap(),
        String::from_utf8(err).unwrap(),
    )
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_definition_of_the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn usage_errors_are_exit_code_2_and_help_is_an_answer() {
    for args in [
        &["bogus"][..],
        &["--lisen", "x"],
        &["skill", "validate"],
        &["skill", "new", "Not.A.Name"],
        &["skill", "new", "a", "--kind", "thing"],
        &["skill", "run", ".", "--args", "[]"],
        &["skill", "run", ".", "--args", "{"],
        &["skill", "run", ".", "--args", r#"{"a":{"b":1,"b":2}}"#],
        &["skill", "run", ".", "--timeout-ms", "0"],
        &["version", "--output", "xml"],
        &["--config", "x", "version"],
        &["config", "show", "--default", "--origins"],
    ] {
        let (exit, out, err) = skillgate(args);
        assert_eq!((exit, out.as_str()), (Exit::Usage, ""), "{args:?}");
        assert!(err.starts_with("error: "), "{args:?}: {err}");
    }
    let (exit, out, err) = skillgate(&["--help"]);
    assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
    for command in [
        "serve",
        "config",
        "skill",
        "plugin",
        "token",
        "doctor",
        "version",
        "completions",
    ] {
        assert!(out.contains(&format!("\n  {command} ")), "{command}");
    }
    assert!(
        skillgate(&["--lisen", "x"]).2.contains("'--listen'"),
        "a near option is suggested"
    );
}

#[test]
fn without_a_command_it_serves() {
    let cli = Cli::try_parse_from(["skillgate", "--listen", "127.0.0.1:0", "--config", "x.toml"])
        .unwrap();
    assert!(cli.command.is_none());
    assert!(format!("{:?}", cli.serve).contains("127.0.0.1:0"));
    // What is wrong with the configuration is said before anything starts.
    let (exit, out, err) = skillgate(&["serve", "--config", "/nowhere/skillgate.toml"]);
    assert_eq!((exit, out.as_str()), (Exit::Configuration, ""));
    assert!(err.starts_with(
        "error: cannot read the configuration file /nowhere/skillgate.toml, named by --config: "
    ));
    assert_eq!(err.lines().count(), 1);
}

#[test]
fn version_and_completions() {
    let (exit, out, _) = skillgate(&["version"]);
    assert_eq!(exit, Exit::Fine);
    assert!(
        out.starts_with(concat!("skillgate ", env!("CARGO_PKG_VERSION"), " (")),
        "{out}"
    );
    let (_, out, _) = skillgate(&["version", "--output", "json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap()["version"],
        env!("CARGO_PKG_VERSION")
    );
    for shell in ["bash", "zsh", "fish"] {
        let (exit, out, _) = skillgate(&["completions", shell]);
        assert!(
            exit == Exit::Fine && out.contains("skillgate") && out.contains("doctor"),
            "{shell}"
        );
    }
}

// === config ===

#[test]
fn config_check_says_what_is_wrong_and_where() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gate.toml");
    std::fs::write(&file, "[server]\nlisen = 1\nmax_batch = 0\n").unwrap();
    let (exit, out, err) = skillgate(&["config", "check", "--config", text(&file)]);
    let place = text(&file);
    assert_eq!(exit, Exit::Configuration);
    assert_eq!(
        out,
        format!(
            "{place}:2:1: server.lisen: unknown key; did you mean `listen`?\n\
             {place}:3:13: server.max_batch: 0 does not fit here, expected 1 to 10000\n"
        )
    );
    assert_eq!(err, "error: the configuration has 2 problems\n");

    let (exit, out, err) = skillgate(&["config", "check", "--config", place, "--output", "json"]);
    assert_eq!((exit, err.as_str()), (Exit::Configuration, ""));
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["ok"], false);
    assert_eq!(
        answer["problems"][0],
        json!({
            "from": "file", "file": place, "line": 2, "column": 1,
            "key": "server.lisen", "message": "unknown key; did you mean `listen`?",
        })
    );

    // Other commands say the same as an error.
    let (exit, out, err) = skillgate(&["config", "show", "--config", place]);
    assert_eq!((exit, out.as_str()), (Exit::Configuration, ""));
    assert!(
        err.starts_with("error: the configuration has 2 problems\n  "),
        "{err}"
    );

    std::fs::write(&file, "[server]\nmax_batch = 7\n").unwrap();
    let (exit, out, err) = skillgate(&["config", "check", "--config", place]);
    assert_eq!(
        (exit, out, err.as_str()),
        (Exit::Fine, format!("{place}: fine\n"), "")
    );
    let (_, out, _) = skillgate(&["config", "show", "--origins", "--config", place]);
    assert!(
        out.contains(&format!("max_batch = 7  # {place}:2:13\n")),
        "{out}"
    );
    let (_, out, _) = skillgate(&["config", "show", "--output", "json", "--config", place]);
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap()["server"]["max_batch"],
        7
    );
}

#[test]
fn config_check_looks_at_what_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gate.toml");
    let gone = dir.path().join("gone");
    let gone = text(&gone);
    let config = format!(
        "[skills]\npaths = [{:?}, {gone:?}]\n[policy]\npath = {gone:?}\n[secrets]\nprovider = \"dir\"\ndir = {gone:?}\n\
         [plugins.storage]\npath = {gone:?}\nallow_unsigned = true\n",
        text(dir.path())
    );
    std::fs::write(&file, config).unwrap();
    let (exit, out, err) = skillgate(&["config", "check", "--config", text(&file)]);
    assert_eq!(exit, Exit::Configuration, "{err}");
    let said: Vec<&str> = out.lines().collect();
    let keys = [
        "skills.paths[1]",
        "policy.path",
        "secrets.dir",
        "plugins.storage.path",
    ];
    assert_eq!(said.len(), keys.len(), "{out}");
    for (line, key) in said.iter().zip(keys) {
        let why = format!(": {key}: cannot read {gone}: No such file or directory");
        assert!(
            line.starts_with(text(&file)) && line.contains(&why),
            "{out}"
        );
    }
}

/// Only who listens, or asks whether the gateway would, is told who could reach it.
#[test]
fn what_serves_with_insecure_no_auth_is_taken_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gate.toml");
    std::fs::write(&file, "[server]\nlisten = \"0.0.0.0:0\"\n").unwrap();
    let with = |args: &[&str]| skillgate(&[args, &["--config", text(&file)]].concat());
    for refuses in [&["config", "check"][..], &["serve"]] {
        let (exit, out, err) = with(refuses);
        assert_eq!(exit, Exit::Configuration, "{refuses:?}");
        assert!(
            format!("{out}{err}").contains("start with --insecure-no-auth"),
            "{out}{err}"
        );
    }
    let (exit, out, err) = with(&["config", "check", "--insecure-no-auth"]);
    let fine = format!("{}: fine\n", text(&file));
    assert_eq!((exit, out, err.as_str()), (Exit::Fine, fine, ""));
    let (exit, out, err) = with(&["config", "show"]);
    assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
    assert!(out.contains("listen = \"0.0.0.0:0\""), "{out}");
    // An input that is not there, of a configuration that is taken.
    let (exit, _, err) = with(&["policy", "eval", "--input", "/nowhere/input.json"]);
    assert_ne!(exit, Exit::Configuration, "{err}");
}

#[test]
fn the_printed_defaults_are_a_file_to_start_from() {
    let (exit, out, _) = skillgate(&["config", "show", "--default"]);
    assert_eq!(exit, Exit::Fine);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("skillgate.toml");
    std::fs::write(&file, out).unwrap();
    let (exit, out, err) = skillgate(&["config", "check", "--config", text(&file)]);
    assert_eq!((exit, err.as_str()), (Exit::Fine, ""), "{out}");
}

// === skill ===

#[test]
fn a_new_skill_validates() {
    let dir = tempfile::tempdir().unwrap();
    let place = text(dir.path());
    let (exit, out, err) = skillgate(&["skill", "new", "acme.count-words", "--dir", place]);
    assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
    assert!(
        out.starts_with(&format!("{place}/acme.count-words\n")),
        "{out}"
    );
    assert!(out.contains("\nserve it:  "), "{out}");
    let spaced = format!("{place}/two words");
    let (_, out, _) = skillgate(&["skill", "new", "acme.words", "--dir", &spaced]);
    let command = format!("skillgate skill validate '{spaced}/acme.words'\n");
    assert!(out.contains(&command), "{out}");
    std::fs::remove_dir_all(&spaced).unwrap();

    let nested = format!("{place}/more/skills");
    assert_eq!(
        skillgate(&[
            "skill",
            "new",
            "acme.guide",
            "--kind",
            "instruction",
            "--dir",
            &nested
        ])
        .0,
        Exit::Fine
    );

    let (exit, out, err) = skillgate(&["skill", "validate", place, &nested]);
    assert_eq!((exit, err.as_str()), (Exit::Fine, ""), "{out}");
    let expected = format!(
        "{place}/acme.count-words: acme.count-words 0.1.0 is fine\n{nested}/acme.guide: acme.guide 0.1.0 is fine\n"
    );
    assert_eq!(out, expected, "no warnings either");

    let before = std::fs::read_to_string(dir.path().join("acme.count-words/skill.toml")).unwrap();
    let (exit, out, err) = skillgate(&[
        "skill",
        "new",
        "acme.count-words",
        "--kind",
        "instruction",
        "--dir",
        place,
    ]);
    assert_eq!((exit, out.as_str()), (Exit::Runtime, ""));
    assert_eq!(
        err,
        format!(
            "error: {place}/acme.count-words is there already\nhint: choose another name, or another --dir\n"
        )
    );
    assert_eq!(
        std::fs::read_to_string(dir.path().join("acme.count-words/skill.toml")).unwrap(),
        before
    );
}

#[test]
fn what_is_said_of_a_new_plugin_can_be_pasted_into_a_shell() {
    let dir = tempfile::tempdir().unwrap();
    let place = format!("{}/two words", text(dir.path()));
    for (language, build) in [
        ("c", format!("make -C '{place}/a-c'")),
        (
            "rust",
            format!("cargo build --release --manifest-path '{place}/a-rust/Cargo.toml'"),
        ),
    ] {
        let name = format!("a-{language}");
        let kind = ["--kind", "storage", "--language", language];
        let (exit, out, _) =
            skillgate(&[&["plugin", "new", &name, "--dir", &place][..], &kind].concat());
        assert_eq!(exit, Exit::Fine);
        assert!(out.contains(&format!("build it:    {build}\n")), "{out}");
        let check = format!("skillgate plugin check '{place}/a-{language}/");
        assert!(out.contains(&check), "{out}");
    }
}

#[test]
fn what_a_new_plugin_says_of_the_configuration_names_its_file_from_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    // From here, and not made yet.
    let here = std::env::current_dir().unwrap();
    let up = "../".repeat(here.components().count());
    let place = format!("{up}{}/so \"new\"", text(dir.path()));
    let kind = ["--kind", "storage", "--language", "c"];
    let (exit, _, err) =
        skillgate(&[&["plugin", "new", "named", "--dir", &place][..], &kind].concat());
    assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
    let made = dir.path().join("so \"new\"/named");
    let readme = std::fs::read_to_string(made.join("README.md")).unwrap();
    let toml = readme.split("```").nth(1).unwrap();
    let toml = toml.strip_prefix("toml\n").unwrap();
    let config: toml::Table = toml.parse().unwrap();
    let path = config["plugins"]["storage"]["path"].as_str().unwrap();
    let path = std::path::Path::new(path);
    assert!(
        path.is_absolute() && path.ends_with("named/named.so"),
        "{path:?}"
    );
    let parent = path.parent().unwrap().canonicalize().unwrap();
    assert_eq!(parent, made.canonicalize().unwrap());
}

#[test]
fn skill_validate_says_file_line_and_column() {
    let dir = tempfile::tempdir().unwrap();
    let skill = dir.path().join("bad");
    std::fs::create_dir(&skill).unwrap();
    std::fs::write(
        skill.join("skill.toml"),
        "name = \"a.b\"\nversion = \"1.0\"\ndescription = \"x\"\nkind = \"instruction\"\n",
    )
    .unwrap();
    std::fs::write(skill.join("SKILL.md"), "---\nname: A\n---\n").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", skill.join("link")).unwrap();
    let (exit, out, err) = skillgate(&["skill", "validate", text(&skill)]);
    assert_eq!((exit, err.as_str()), (Exit::Findings, ""));
    let place = text(&skill);
    assert_eq!(
        out,
        format!("{place}/link: error: is a symbolic link, and a skill has files only\n")
    );

    std::fs::remove_file(skill.join("link")).unwrap();
    let (exit, out, _) = skillgate(&["skill", "validate", text(&skill)]);
    assert_eq!(exit, Exit::Findings);
    assert!(out.starts_with(&format!("{place}/skill.toml:2:")), "{out}");
    let (exit, out, _) = skillgate(&["skill", "validate", text(&skill), "--output", "json"]);
    assert_eq!(exit, Exit::Findings);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&answer["ok"], &answer["skills"][0]["problems"][0]["line"]),
        (&json!(false), &json!(2))
    );

    let (exit, _, err) = skillgate(&["skill", "validate", "/nowhere"]);
    assert_eq!(exit, Exit::Runtime);
    assert!(err.starts_with("error: cannot read /nowhere: "), "{err}");
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let (exit, _, err) = skillgate(&["skill", "validate", text(&dir.path().join("empty"))]);
    assert_eq!(exit, Exit::Usage);
    assert!(
        err.contains("no skill.toml in ") && err.contains("\nhint: "),
        "{err}"
    );
}

/// Else what is fine here would be refused when it is published.
#[test]
fn a_skill_is_validated_within_the_gateways_limits() {
    let dir = tempfile::tempdir().unwrap();
    let skill = dir.path().join("acme.words");
    std::fs::create_dir(&skill).unwrap();
    let manifest =
        "name = \"acme.words\"\nversion = \"1.0.0\"\ndescription = \"d\"\nkind = \"instruction\"\n";
    std::fs::write(skill.join("skill.toml"), manifest).unwrap();
    std::fs::write(skill.join("SKILL.md"), "# Words\n").unwrap();
    std::fs::write(skill.join("words.txt"), "x".repeat(2000)).unwrap();
    let file = dir.path().join("gate.toml");
    let within = |limits: &str| {
        std::fs::write(&file, format!("[skills]\n{limits}\n")).unwrap();
        let arguments = ["skill", "validate", text(&skill), "--config", text(&file)];
        let (exit, out, err) = skillgate(&arguments);
        assert!(err.is_empty(), "{err}");
        (exit, out)
    };
    assert_eq!(within("").0, Exit::Fine);
    for (limits, said) in [
        (
            "max_bytes = 1024",
            "more than 1024 bytes together (skills.max_bytes)",
        ),
        ("max_files = 2", "more than 2 files (skills.max_files)"),
    ] {
        let (exit, out) = within(limits);
        assert_eq!(exit, Exit::Findings, "{out}");
        assert!(out.contains(said), "{out}");
    }
}

#[test]
fn a_directory_without_end_is_no_skill() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for i in 0..1002 {
        std::fs::write(root.join(format!("f{i}")), "").unwrap();
    }
    let message = |root: &Path| {
        skill_dir::read(root, 1000, 16 << 20)
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        message(root),
        ["f998: error: the skill has more than 1000 files (skills.max_files)"]
    );

    let large = root.join("large");
    std::fs::create_dir(&large).unwrap();
    let file = std::fs::File::create(large.join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(
        message(&large),
        [
            "sparse: error: the skill's files have more than 16777216 bytes together (skills.max_bytes)"
        ]
    );
    assert_eq!(message(&root.join("gone")).len(), 1);
}

// === what is printed ===

#[test]
fn a_run_is_printed_without_what_a_terminal_obeys() {
    let result = json!({
        "run_id": "run_1", "status": "failed", "logs_preview": "one\n\u{1b}[31mtwo",
        "usage": { "wall_ms": 3 }, "summary": "s\u{202e}", "output_blobs": ["blob:1"],
        "error": { "type": "ValueError", "message": "Traceback:\n  x" }, "output": { "a": [1, "\u{9b}31m\u{202e}\u{7f}é"] },
    });
    let mut out = Vec::new();
    let result = serde_json::value::to_raw_value(&result).unwrap();
    skill_run::print(&result, &mut out).unwrap();
    let expected = "run_1 failed\nusage: wall_ms 3\nsummary: s\\u{202e}\nlogs:\n  one\n  \\u{1b}[31mtwo\nblob: blob:1\n\
                    error: ValueError\n  Traceback:\n    x\noutput:\n{\n  \"a\": [\n    1,\n    \"\\u009b31m\\u202e\\u007fé\"\n  ]\n}\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn the_doctor_prints_what_to_do() {
    let report = crate::app::DoctorReport {
        layers: vec![
            json!({ "layer": "landlock", "state": "enforced", "detail": "ABI 5", "advice": "" }),
            json!({ "layer": "user_ns", "state": "missing", "detail": "EPERM", "advice": "allow them" }),
        ],
        plugins: vec![
            json!({ "id": "x", "role": "sandbox", "version": "1", "state": "refuses", "message": "no" }),
        ],
        ok: false,
    };
    let mut out = Vec::new();
    doctor::print(&report, &mut out).unwrap();
    let expected = "LAYER     STATE     DETAIL\nlandlock  enforced  ABI 5\nuser_ns   missing   EPERM\n\n\
                    PLUGIN  ROLE     VERSION  STATE    MESSAGE\nx       sandbox  1        refuses  no\n\n\
                    what to do:\n  user_ns: allow them\n\nthe gateway would refuse to start on this host\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn a_plugin_file_is_inspected_without_being_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plugin.so");
    std::fs::write(&file, "not ELF").unwrap();
    let (exit, out, err) = skillgate(&["plugin", "inspect", text(&file)]);
    assert_eq!((exit, out.as_str()), (Exit::Findings, ""));
    assert!(
        err.starts_with("error: ") && err.contains("plugin.so"),
        "{err}"
    );
    let (exit, _, err) = skillgate(&["plugin", "inspect", "/nowhere/plugin.so"]);
    assert_eq!(exit, Exit::Runtime, "{err}");
    let exe = std::env::current_exe().unwrap();
    let (exit, out, _) = skillgate(&["plugin", "inspect", text(&exe), "--output", "json"]);
    assert_eq!(exit, Exit::Findings, "a program is no plugin");
    assert!(
        !serde_json::from_str::<Value>(&out).unwrap()["refusals"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_replay_says_what_it_could_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.jsonl");
    let record =
        |more: &str| format!("{{\"kind\":\"decision\",\"decision_id\":\"dec_1\"{more}}}\n");
    let deep = format!(",\"input\":{}1{}", "[".repeat(130), "]".repeat(130));
    // JSON, but no record is so long.
    let long = record(&" ".repeat(LINE_BYTES_MAX));
    let lines = [record(""), record(&deep), record(","), long];
    let not_text = b"{\"kind\":\"decision\",\"decision_id\":\"\xff\"}\n";
    std::fs::write(&log, [lines.concat().as_bytes(), not_text].concat()).unwrap();
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    let replay = |more: &[&str]| {
        let args = [
            "policy",
            "simulate",
            "--against",
            text(&bundled),
            text(&log),
        ];
        skillgate(&[&args, more].concat())
    };
    let (exit, out, err) = replay(&[]);
    assert_eq!(exit, Exit::Fine, "{err}");
    let note = "note: 4 lines of the log could not be read and were left out\n";
    assert!(out.contains(note), "{out}");
    let (_, out, _) = replay(&["--output", "json"]);
    let replay = &serde_json::from_str::<Value>(&out).unwrap()["replay"];
    assert_eq!(
        (&replay["unreadable"], &replay["without_input"]),
        (&json!(4), &json!(1))
    );
}

#[test]
fn where_a_reason_is_said_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let (log, rules) = (dir.path().join("audit.jsonl"), dir.path().join("rules"));
    let record = r#"{"kind":"decision","decision_id":"dec_1","input":{},"result":{"allow":false}}"#;
    std::fs::write(&log, format!("{record}\n")).unwrap();
    std::fs::create_dir(&rules).unwrap();
    // Of two hosts that are not granted, for example.
    let source = "package skills.authz\n\ncode := \"custom.host\"\n\n\
        decision := {\"allow\": false, \"reasons\": [{\"code\": code, \"message\": m} | some m in [\"a\", \"b\"]]}\n";
    std::fs::write(rules.join("rules.rego"), source).unwrap();
    let args = [
        "policy",
        "explain",
        "dec_1",
        text(&rules),
        "--audit",
        text(&log),
    ];
    let (exit, out, err) = skillgate(&args);
    assert_eq!(exit, Exit::Fine, "{err}");
    assert_eq!(out.matches("custom.host is said by").count(), 1, "{out}");
}
