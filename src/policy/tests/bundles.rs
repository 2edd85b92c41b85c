//! What a bundle may have in it, and where its data may be.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::reload::tests::shortage::alone_as_nobody;

const RULES: (&str, &str) = ("a.rego", "package a");

/// A bundle of these files, beside one of rules.
fn read(files: &[(&str, &str)]) -> Result<Bundle, String> {
    of_files(&[&[RULES], files].concat())
}

fn of_files(files: &[(&str, &str)]) -> Result<Bundle, String> {
    let mut all = Files::default();
    for (path, text) in files {
        let text = text.as_bytes().to_vec();
        all.add((*path).to_owned(), text).unwrap();
    }
    Bundle::new(&all, "b").map_err(|error| error.to_string())
}

#[test]
fn a_root_is_a_whole_name_and_what_is_below() {
    let roots = |text: &str| read(&[(".manifest", text)]).unwrap();
    let below = roots(r#"{ "roots": ["x", "/skills/authz/"] }"#);
    for (package, is_owned) in [
        ("skills.authz", true),
        ("skills.authz.deny", true),
        ("skills.authzx", false),
        ("skills", false),
        ("", false),
        ("xy", false),
        ("x.y", true),
    ] {
        assert_eq!(below.owns(package), is_owned, "{package}");
    }
    for all in [roots(r#"{ "roots": [""] }"#), roots("{}")] {
        assert!(all.owns("skills") && all.owns("skills.authz"));
    }
    assert!(!roots(r#"{ "roots": [] }"#).owns("skills"));
}

#[test]
fn data_lies_below_the_roots_or_leads_there() {
    let manifest = (".manifest", r#"{ "roots": ["a/b/c"] }"#);
    for (path, data, is_taken) in [
        ("data.json", r#"{ "a": { "b": { "c": 1 } } }"#, true),
        ("data.json", r#"{ "a": { "b": {} } }"#, true),
        ("a/data.json", r#"{ "b": { "c": {} } }"#, true),
        ("a/b/c/data.json", r#"{ "x": 1 }"#, true),
        ("data.json", r#"{ "a": { "b": { "d": 1 } } }"#, false),
        ("data.json", r#"{ "a": { "b": 1 } }"#, false),
        ("data.json", r#"{ "a": 1 }"#, false),
        ("data.json", r#"{ "d": {} }"#, false),
        ("data.json", r#"{ "a": { "bc": {} } }"#, false),
        ("a/b/data.json", r#"{ "cd": 1 }"#, false),
    ] {
        let said = read(&[manifest, (path, data)]);
        assert_eq!(said.is_ok(), is_taken, "{path}: {data}");
        if let Err(said) = said {
            assert!(said.contains("outside the roots"), "{said}");
        }
    }
}

/// What would be left out in silence, were it not refused, is a part of the rules.
#[test]
fn what_is_not_read_is_refused_by_name() {
    let long = |bytes: usize| format!("package a\n{}", "#".repeat(bytes - 10));
    let (longest, longer) = (long(1024 * 1024), long(1024 * 1024 + 1));
    for (path, text, why) in [
        ("b.rego", longer.as_str(), "has 1048577 bytes"),
        ("data.json", "[]", "is no JSON object"),
        ("data.yaml", "a: 1", "YAML is not read"),
        ("x/data.yml", "a: 1", "YAML is not read"),
        ("policy.wasm", "", "compiled and delta"),
        ("plan.json", "{}", "compiled and delta"),
        ("x/patch.json", "{}", "compiled and delta"),
        (".manifest", r#"{ "rego_version": 0 }"#, "only Rego v1"),
        (
            ".manifest",
            r#"{ "metadata": { "sequence": "7" } }"#,
            "not a whole number",
        ),
        (
            ".manifest",
            r#"{ "metadata": { "sequence": 1.5 } }"#,
            "not a whole number",
        ),
        (
            ".manifest",
            r#"{ "metadata": { "input_schema": "skills.policy.input/v2" } }"#,
            r#"b/.manifest: metadata.input_schema is "skills.policy.input/v2", and this gateway has "skills.policy.input/v1""#,
        ),
        (
            ".manifest",
            r#"{ "metadata": { "decision_schema": "skills.policy.decision/v2" } }"#,
            "install the version that they are for",
        ),
        (
            ".manifest",
            r#"{ "metadata": { "input_schema": 1 } }"#,
            "metadata.input_schema is 1, and",
        ),
        (
            ".manifest",
            r#"{ "metadata": { "entrypoint": "data.acme.decision" } }"#,
            r#"metadata.entrypoint is "data.acme.decision", and this gateway has "data.skills.authz.decision": no other rule is asked"#,
        ),
        ("tests/decisions/a.json", "words", "expected value"),
    ] {
        let said = read(&[(path, text)]).unwrap_err();
        assert!(said.contains(why), "{path}: {said}");
    }
    let tests = [("a_test.rego", "package a"), ("data.json", "{}")];
    let said = of_files(&tests).unwrap_err();
    assert!(said.contains("no .rego file"), "{said}");
    for (path, text) in [
        ("b.rego", longest.as_str()),
        ("tests/decisions/README.md", "words"),
        (".signatures.json", "words"),
        (
            ".manifest",
            r#"{ "rego_version": 1, "metadata": { "sequence": 7 } }"#,
        ),
        (
            ".manifest",
            r#"{ "metadata": { "input_schema": "skills.policy.input/v1", "decision_schema": "skills.policy.decision/v1", "entrypoint": "data.skills.authz.decision" } }"#,
        ),
    ] {
        let bundle = read(&[(path, text)]).unwrap();
        assert!(bundle.left_out().is_empty(), "{path}");
    }
}

/// A decision names it.
#[test]
fn a_bundle_without_a_revision_is_named_by_its_content() {
    let of = |manifest: &str| {
        let bundle = read(&[(".manifest", manifest)]).unwrap();
        (bundle.revision().to_owned(), bundle.digest().to_owned())
    };
    assert_eq!(of(r#"{ "revision": "r7" }"#).0, "r7");
    let (revision, digest) = of("{}");
    assert_eq!(revision, format!("sha256:{}", &digest[..12]));
}

#[test]
fn where_no_file_can_be_opened_a_bundle_is_not_refused_for_good() {
    alone_as_nobody("policy::tests::bundles::child_without_files");
}

#[test]
#[ignore = "run by where_no_file_can_be_opened_a_bundle_is_not_refused_for_good, in a process of its own"]
fn child_without_files() {
    let home = tempfile::tempdir().unwrap();
    let (directory, file) = (home.path().join("b"), home.path().join("b.tar.gz"));
    std::fs::create_dir_all(directory.join("c")).unwrap();
    std::fs::write(directory.join("c/a.rego"), "package a").unwrap();
    std::fs::write(&file, "no archive").unwrap();
    for (path, in_the_end) in [
        (&directory, None),
        (&file, Some("is no .tar.gz")),
        (&home.path().join("nowhere"), Some("No such file")),
    ] {
        let limit = getrlimit(Resource::Nofile);
        let mut errors = Vec::new();
        let read = loop {
            let current = Some(errors.len() as u64);
            setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
            match Files::read(path) {
                Err(error) if error.is_passing => errors.push(error.message),
                read => break read,
            }
        };
        setrlimit(Resource::Nofile, limit).unwrap();
        let is_open = |error: &String| error.contains("Too many open files");
        assert!(errors.iter().all(is_open), "{errors:?}");
        // To look whether it is there takes none.
        assert_eq!(errors.is_empty(), !path.exists(), "{path:?}");
        match (read, in_the_end) {
            (Ok(_), None) => {}
            (Err(error), Some(why)) => assert!(error.message.contains(why), "{error}"),
            (read, _) => panic!("{read:?}"),
        }
    }
}
