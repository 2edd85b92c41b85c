//! Commands of the operator, beside a gateway that serves and without one.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::alone;
use crate::disk::Ends;
use crate::examples::{changed, instead, waiting_store};
use crate::stopping::SLEEPS;
use crate::support::gateway::{House, Settings, must_not_start};
use crate::support::{eventually, heeding, tools};

/// What a command that has to succeed prints, and what it says beside.
fn succeeded(mut command: Command) -> (String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let [printed, said] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(status.success(), "{status}: {said}");
    (printed, said)
}

pub(crate) fn skill_list(house: &House) -> (Vec<String>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skillgate"));
    command.args(["skill", "list", "--output", "json", "--config"]);
    command.arg(house.config());
    house.clean(&mut command);
    let (stdout, said) = succeeded(command);
    let listed: Value = serde_json::from_str(&stdout).unwrap();
    let name = |skill: &Value| skill["name"].as_str().unwrap().to_owned();
    let names = listed["skills"].as_array().unwrap().iter().map(name);
    (names.collect(), said)
}

#[test]
fn skills_are_listed_beside_a_gateway_and_without_one() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let published = json!({
        "manifest": { "name": "acme.published", "version": "1.0.0", "namespace": "acme", "kind": "instruction",
            "description": "Is in the store." },
        "skill_md": "---\nname: acme.published\ndescription: Is in the store.\n---\n# Published\n",
    });
    let answer = gateway.client().call("create_skill", published).unwrap();
    assert!(answer["result"].is_object(), "{answer}");

    let (names, said) = skill_list(&house);
    assert!(names.contains(&"hello.world".to_owned()), "{names:?}");
    assert!(!names.contains(&"acme.published".to_owned()), "{names:?}");
    assert_eq!(
        names.iter().filter(|name| *name == "hello.world").count(),
        1
    );
    assert!(
        said.contains("in use by another skillgate") && said.contains("list_skills"),
        "{said}"
    );
    gateway.stop();

    // A sandbox that would not start is not asked.
    house.configure(Settings {
        sandbox: Some("{ no_such_key = 1 }"),
        ..Settings::default()
    });
    let (names, said) = skill_list(&house);
    for name in ["hello.world", "acme.published"] {
        assert!(names.contains(&name.to_owned()), "{names:?}: {said}");
    }
    assert!(!said.contains("left out"), "{said}");
}

/// A vendor's store need not know who else has its data: what would make it a second time is refused.
#[test]
fn no_second_instance_of_a_store_is_made_beside_a_gateway() {
    let _alone = alone();
    let house = House::new(Settings {
        server: "reload_watch_ms = 0",
        ..Settings::default()
    });
    // It writes down when it is made.
    let journal = house.path().join("journal");
    let made = format!(
        "    {{ FILE *f = fopen({journal:?}, \"a\"); if (f != NULL && fputs(\"made\\n\", f) >= 0) fclose(f); }}\n"
    );
    let begin = "    s->host = host;\n";
    let store = changed(&house, "store", &[(begin, &format!("{made}{begin}"))]);
    let text = fs::read_to_string(house.config()).unwrap();
    let text = instead(&text, r#"name = "storage-fs""#, &store);
    fs::write(house.config(), text).unwrap();
    let times_made = || fs::read_to_string(&journal).unwrap().lines().count();
    let mut gateway = house.start();
    assert_eq!(times_made(), 1);
    let by_whom = format!(
        "state (plugins.state_dir) is in use by another skillgate (process {})",
        gateway.pid
    );

    let (names, said) = skill_list(&house);
    assert!(names.contains(&"hello.world".to_owned()), "{names:?}");
    assert!(
        said.contains(&by_whom) && said.contains("list_skills"),
        "{said}"
    );
    assert_eq!(times_made(), 1);

    let mut second = house.command();
    second.env("SKILLGATE_AUDIT__PATH", house.path().join("second.jsonl"));
    let (code, said) = must_not_start(second);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains(&by_whom), "{said}");
    assert_eq!(times_made(), 1);

    // What it has started may live a moment longer, and has nothing of its name.
    gateway.kill();
    let gateway = house.start();
    assert_eq!(times_made(), 2);
    gateway.stop();
}

/// A version stays as it is: whoever publishes one is told at once.
#[test]
fn a_key_that_nobody_knows_is_published_and_said() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    let mut publish = |name: &str, key: &str| {
        let mut skill = json!({
            "manifest": { "name": name, "version": "1.0.0", "namespace": "acme", "kind": "instruction", "description": "x" },
            "skill_md": "# x\n",
        });
        skill["manifest"][key] = json!({ "network": ["https://api.example.com"] });
        client.result("create_skill", skill).unwrap()
    };
    let plain = json!({ "name": "acme.plain", "version": "1.0.0" });
    assert_eq!(publish("acme.plain", "permissions"), plain);
    let answer = publish("acme.slip", "permision");
    assert_eq!(answer["name"], "acme.slip", "{answer}");
    let said = answer["warnings"][0].as_str().unwrap_or_default();
    assert!(said.ends_with("did you mean permissions?"), "{answer}");
    gateway.stop();
}

/// Who puts a skill on the shelf need not have asked `skill validate`.
#[test]
fn what_is_hardly_meant_is_said_of_the_shelf_at_the_start() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let shelf = house.path().join("shelf");
    // Also where there is a later version, in which it has been mended.
    for (version, slip) in [("1.0.0", "[permision]\nnetwork = []\n"), ("1.1.0", "")] {
        let skill = shelf.join("acme.slip").join(version);
        fs::create_dir_all(&skill).unwrap();
        let manifest = format!(
            "name = \"acme.slip\"\nversion = {version:?}\ndescription = \"d\"\nkind = \"instruction\"\n{slip}"
        );
        fs::write(skill.join("skill.toml"), manifest).unwrap();
        fs::write(skill.join("SKILL.md"), "# A\n").unwrap();
    }
    // And one that no run could begin with.
    let broken = shelf.join("acme.torn");
    fs::create_dir_all(broken.join("code")).unwrap();
    let manifest = "name = \"acme.torn\"\nversion = \"2.0.0\"\ndescription = \"d\"\nkind = \"action\"\n[runtime]\nlanguage = \"python\"\nentrypoint = \"code/main.py\"\nexport = \"main\"\n";
    fs::write(broken.join("skill.toml"), manifest).unwrap();
    fs::write(broken.join("SKILL.md"), "# B\n").unwrap();
    let code = "def main(args):\n    return {\n";
    fs::write(broken.join("code/main.py"), code).unwrap();
    house.shelve(&shelf);
    let gateway = house.start();
    let log = gateway.log();
    let said: Vec<_> = log
        .lines()
        .filter(|it| it.contains("hardly what was meant"))
        .collect();
    assert_eq!(said.len(), 2, "{log}");
    for (said, parts) in said.iter().zip([
        [
            "acme.slip",
            "1.0.0",
            "permision",
            "did you mean permissions?",
        ],
        [
            "acme.torn",
            "2.0.0",
            "code/main.py:2",
            "`{` is never closed",
        ],
    ]) {
        for part in ["WARN"].iter().chain(&parts) {
            assert!(said.contains(part), "{log}");
        }
    }
    gateway.stop();
}

/// What a command with this configuration prints, and ends with.
pub(crate) fn said(house: &House, arguments: &[&str], code: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skillgate"));
    command.args(arguments).arg("--config").arg(house.config());
    house.clean(&mut command);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Before the restart that would refuse it.
#[test]
fn the_doctor_hears_of_a_slip_in_the_stores_section() {
    let _alone = alone();
    let house = House::new(Settings {
        store: ", fsnc = false",
        ..Settings::default()
    });
    let said = said(&house, &["doctor"], 1);
    assert!(said.contains("unknown field `fsnc`"), "{said}");
}

/// Nor does it call a store good that the gateway could not open.
#[test]
fn the_doctor_looks_at_where_the_store_is_to_be() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let fine = said(&house, &["doctor"], 0);
    let told = format!("what {} has", house.store().display());
    assert!(fine.contains(&told), "{fine}");
    assert!(!house.store().exists());
    fs::write(house.store(), "somebody's").unwrap();
    let refused = said(&house, &["doctor"], 1);
    assert!(refused.contains("is no directory"), "{refused}");
    if rustix::process::geteuid().is_root() {
        return tools::left_out("root writes where it likes");
    }
    fs::remove_file(house.store()).unwrap();
    let keep = fs::metadata(house.path()).unwrap().permissions();
    fs::set_permissions(house.path(), Permissions::from_mode(0o555)).unwrap();
    let refused = said(&house, &["doctor"], 1);
    fs::set_permissions(house.path(), keep).unwrap();
    assert!(refused.contains("cannot be written"), "{refused}");
}

/// Before the restart that would refuse it.
#[test]
fn config_check_looks_into_the_plugins_own_sections() {
    let _alone = alone();
    let house = House::new(Settings {
        store: ", fsnc = false",
        sandbox: Some("{ pool_max = 3000, pace_us = 50 }"),
        ..Settings::default()
    });
    let said = said(&house, &["config", "check"], 3);
    for problem in [
        ": plugins.storage.config.fsnc: the plugin has no such key; did you mean `fsync`?\n",
        ": plugins.sandbox.config.pool_max: the plugin expects at most 1024\n",
        ": plugins.sandbox.config.pace_us: the plugin expects at least 100\n",
    ] {
        assert!(said.contains(problem), "{said}");
    }
}

/// Most skills that take a blob are told its id by an argument.
#[test]
fn a_file_is_given_to_a_skill_as_the_blob_that_an_argument_names() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let sheet = house.path().join("a=sheet.csv");
    fs::write(&sheet, "name,amount\nAda,3\n").unwrap();
    let skills = Path::new(env!("CARGO_MANIFEST_DIR")).join("skills");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skillgate"));
        command.args(["skill", "run", "--output", "json", "--config"]);
        command.arg(house.config()).arg(skills.join("csv.stats"));
        command.args(args);
        house.clean(&mut command);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), result, said)
    };
    let sheet = sheet.to_str().unwrap();
    let (code, result, said) = run(&["--blob", &format!("csv_blob={sheet}")]);
    assert_eq!(code, Some(0), "{result} {said}");
    assert_eq!(result["output"]["rows"], 1, "{result}");
    // Without an argument's name it is there all the same, as before, and a path may have a = in it.
    let (code, result, _) = run(&["--blob", sheet]);
    assert_eq!(code, Some(1), "{result}");
    assert!(
        result.to_string().contains("csv_blob is missing"),
        "{result}"
    );
    let twice = [
        "--blob",
        &format!("csv_blob={sheet}"),
        "--args",
        r#"{"csv_blob": "blob:x"}"#,
    ];
    let (code, _, said) = run(&twice);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("csv_blob is given twice"), "{said}");
}

/// An answer of the command line has the bounds of no wire.
#[test]
fn skills_are_listed_where_an_answer_on_the_wire_would_be_too_large() {
    let _alone = alone();
    let house = House::new(Settings {
        server: "max_body_bytes = 1024",
        ..Settings::default()
    });
    let (names, said) = skill_list(&house);
    for name in ["hello.world", "csv.stats"] {
        assert!(names.contains(&name.to_owned()), "{names:?}: {said}");
    }
}

/// As from `/rpc`: names in their order, and a number with all of its digits, in both directions.
#[test]
fn a_skill_that_is_run_gets_its_arguments_as_they_are_written() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let skill = house.path().join("acme.exact");
    fs::create_dir_all(skill.join("code")).unwrap();
    let manifest = "name = \"acme.exact\"\nversion = \"1.0.0\"\ndescription = \"d\"\nkind = \"action\"\n[runtime]\nlanguage = \"python\"\nentrypoint = \"code/main.py\"\nexport = \"main\"\n";
    fs::write(skill.join("skill.toml"), manifest).unwrap();
    fs::write(skill.join("SKILL.md"), "# Exact\n").unwrap();
    let code = "def main(args):\n    n = 12345678901234567890123\n    return [list(args), args[\"n\"] == n, {\"z\": n, \"a\": \"{,}\", \"e\": [{}]}]\n";
    fs::write(skill.join("code/main.py"), code).unwrap();
    let blob = house.path().join("blob");
    fs::write(&blob, "x").unwrap();
    let run = |args: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skillgate"));
        command.args(["skill", "run", "--config"]);
        command.arg(house.config()).arg(&skill);
        command.args(["--args", args]).args(more);
        house.clean(&mut command);
        succeeded(command).0
    };
    let compact = |text: &str| text.replace(char::is_whitespace, "");
    let written = r#"{"z":12345678901234567890123,"a":"{,}","e":[{}]}"#;
    let blob = format!("b\"={}", blob.display());
    let (json, blob) = (["--output", "json"], ["--blob", &blob]);

    let said = run(r#"{"z":1,"n":12345678901234567890123,"a":2}"#, &[]);
    let (_, output) = said.split_once("output:\n").unwrap();
    assert_eq!(
        compact(output),
        format!(r#"[["z","n","a"],true,{written}]"#)
    );
    assert!(output.contains("\n    \"z\",\n"), "for people: {output}");

    let said = run(
        r#"{ "z": 1, "n": 12345678901234567890123 } "#,
        &[json, blob].concat(),
    );
    let output = format!(r#""output":[["z","n","b\""],true,{written}]"#);
    assert!(compact(&said).contains(&output), "{said}");
    let said = run(
        "{ }",
        &[&json[..], &blob, &["--blob", "n=/dev/null"]].concat(),
    );
    let output = format!(r#""output":[["b\"","n"],false,{written}]"#);
    assert!(compact(&said).contains(&output), "{said}");
}

/// What ends the start, by a secret's variable or its file; and what a secret is stays out of it.
#[test]
fn config_check_looks_at_the_secrets() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let refused = |arguments: &[&str], secret: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skillgate"));
        command.args(arguments).arg("--config").arg(house.config());
        house.clean(&mut command);
        command.envs(secret.map(|value| ("SKILLGATE_SECRET_PIN", value)));
        let (code, said) = must_not_start(command);
        assert_eq!(code, Some(3), "{arguments:?}: {said}");
        said
    };
    for command in [&["serve"][..], &["config", "check"]] {
        let said = refused(command, Some("s3cr3t"));
        let place = "environment variable SKILLGATE_SECRET_PIN: the value has fewer than 8 bytes";
        assert!(
            said.contains(place) && !said.contains("s3cr3t"),
            "{command:?}: {said}"
        );
    }
    let said = refused(&["config", "check"], Some("s3cr3t"));
    assert!(said.contains(": secrets.provider: "), "{said}");

    let dir = house.path().join("secrets");
    fs::create_dir_all(dir.join("TOKEN")).unwrap();
    fs::write(dir.join("PIN"), "s3cr3t").unwrap();
    fs::write(dir.join("LD_PRELOAD"), "s3cr3t-s3cr3t").unwrap();
    house.configure(Settings {
        extra: &format!("[secrets]\nprovider = \"dir\"\ndir = {dir:?}\n"),
        ..Settings::default()
    });
    for command in [&["serve"][..], &["config", "check"]] {
        let said = refused(command, None);
        for (name, why) in [
            ("TOKEN", "cannot be read: it is not a file"),
            ("PIN", "the value has fewer than 8 bytes"),
            ("LD_PRELOAD", ""),
        ] {
            let place = format!("{}: {why}", dir.join(name).display());
            assert!(said.contains(&place), "{command:?}: {place}: {said}");
        }
        assert!(!said.contains("s3cr3t"), "{command:?}: {said}");
    }
    let said = refused(&["config", "check"], None);
    assert_eq!(said.matches(": secrets.dir: ").count(), 3, "{said}");
}

/// What it was given and what it makes is somebody's data, and nobody would look for it there.
#[test]
fn a_run_of_the_command_line_that_is_ended_by_a_signal_leaves_nothing() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let skill = house.path().join("acme.waits");
    fs::create_dir_all(skill.join("code")).unwrap();
    let manifest = "name = \"acme.waits\"\nversion = \"1.0.0\"\ndescription = \"d\"\nkind = \"action\"\n[runtime]\nlanguage = \"python\"\nentrypoint = \"code/main.py\"\nexport = \"main\"\n";
    fs::write(skill.join("skill.toml"), manifest).unwrap();
    fs::write(skill.join("SKILL.md"), "# Waits\n").unwrap();
    fs::write(skill.join("code/main.py"), SLEEPS).unwrap();
    let [blob, scratch, log] = ["blob", "scratch", "log"].map(|name| house.path().join(name));
    fs::write(&blob, "somebody's").unwrap();
    fs::create_dir(&scratch).unwrap();
    for (before, signals, code) in [
        (None, &[Signal::HUP][..], 129),
        (None, &[Signal::INT], 130),
        (None, &[Signal::TERM], 143),
        // A second one would end it at once, and leave what there is.
        (Some("nohup"), &[Signal::HUP, Signal::TERM], 143),
    ] {
        let program = env!("CARGO_BIN_EXE_skillgate");
        let mut command = heeding(before.unwrap_or(program));
        command.args(before.map(|_| program));
        command.args(["skill", "run", "--config"]);
        command.arg(house.config()).arg(&skill);
        command.arg("--blob").arg(&blob);
        house.clean(&mut command);
        command.env("TMPDIR", &scratch);
        command.env("SKILLGATE_LOG__FILTER", "info");
        command.stdout(Stdio::null());
        command.stderr(File::create(&log).unwrap());
        let mut run = Ends(command.spawn().unwrap());
        let said = || fs::read_to_string(&log).unwrap();
        eventually("it runs", Duration::from_secs(20), || {
            said().contains("run started")
        });
        assert!(!entries(&scratch).is_empty());
        for signal in signals {
            kill_process(Pid::from_child(&run.0), *signal).unwrap();
        }
        let ended = run.status();
        assert_eq!(ended.code(), Some(code), "{signals:?}: {ended}: {}", said());
        assert_eq!(entries(&scratch), [""; 0], "{signals:?}: {}", said());
    }
}

/// The same of those that only look, here at a store that answers late.
#[test]
fn a_command_that_is_ended_by_a_signal_leaves_no_directory() {
    let _alone = alone();
    for (arguments, function) in [
        (&["doctor"][..], "health"),
        (&["skill", "list"], "skill_list"),
    ] {
        let house = House::new(Settings::default());
        let text = fs::read_to_string(house.config()).unwrap();
        let (store, pipe) = waiting_store(&house, function);
        let text = instead(&text, r#"name = "storage-fs""#, &store);
        fs::write(house.config(), text).unwrap();
        let scratch = house.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        let mut command = heeding(env!("CARGO_BIN_EXE_skillgate"));
        command.args(arguments).arg("--config").arg(house.config());
        house.clean(&mut command);
        command.env("TMPDIR", &scratch);
        let mut ends = Ends(command.stdout(Stdio::null()).spawn().unwrap());
        eventually("it has its directory", Duration::from_secs(20), || {
            !entries(&scratch).is_empty()
        });
        kill_process(Pid::from_child(&ends.0), Signal::INT).unwrap();
        // Also a reader, so that it can be written into before somebody waits.
        let mut pipe = File::options().read(true).write(true).open(pipe).unwrap();
        pipe.write_all(&[b'x'; 64]).unwrap();
        let ended = ends.status();
        assert_eq!(ended.code(), Some(130), "{arguments:?}: {ended}");
        assert_eq!(entries(&scratch), [""; 0], "{arguments:?}");
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// As on a disk that is full: the second try is not told that what the first one has left is there already.
#[test]
fn what_could_not_be_written_is_not_in_the_way() {
    let house = House::new(Settings::default());
    for words in [
        "skill new acme.report",
        "plugin new acme-store --kind storage --language c",
        "token keygen acme.pem",
        "token keygen acme.pem --jwks acme.json",
    ] {
        let dir = tempfile::tempdir_in(house.path()).unwrap();
        let try_it = |limit: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("trap '' XFSZ; {limit} exec \"$0\" \"$@\"")]);
            command.arg(env!("CARGO_BIN_EXE_skillgate"));
            command.args(words.split(' '));
            house.clean(&mut command);
            command.current_dir(dir.path()).output().unwrap()
        };
        let refused = try_it("ulimit -f 0;");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains("File too large"),
            "{words}: {said}"
        );
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert!(left.is_empty(), "{words}: {left:?}");
        let taken = try_it("");
        let said = String::from_utf8_lossy(&taken.stderr);
        assert!(taken.status.success(), "{words}: {said}");
    }
}
