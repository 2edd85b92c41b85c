//! How much of each thing a manifest may have, and what its author is told, and where.

use super::*;

#[test]
fn who_forgets_a_key_is_told_what_to_write() {
    let text = r#"{"tags":1,"runtime":{},"permissions":{"network":1,"secrets":1}}"#;
    let e = Manifest::from_json(text).unwrap_err();
    for (pointer, help) in [
        ("/name", "add name = "),
        ("/version", "add version = "),
        ("/description", "add description = "),
        ("/kind", "add kind = "),
        ("/tags", "write tags = "),
        ("/runtime/language", "add language = "),
        ("/runtime/entrypoint", "add entrypoint = "),
        ("/runtime/export", "add export = "),
        ("/permissions/network", "write network = "),
        ("/permissions/secrets", "write secrets = "),
    ] {
        let told = e.problems().iter().find(|p| p.pointer == pointer);
        let told = told.and_then(|p| p.help.as_deref()).unwrap_or_default();
        assert!(told.starts_with(help), "{pointer}: {told}");
    }
}

#[test]
fn what_is_of_another_type_is_named_with_its_key_and_type() {
    for (value, is) in [
        ("null", "null"),
        ("true", "a boolean"),
        ("1", "a number"),
        ("[]", "a list"),
        ("{}", "a table"),
    ] {
        let e = Manifest::from_json(&format!(r#"{{"tags":[{value}]}}"#)).unwrap_err();
        let want = format!("tags/0 must be a string, not {is}");
        assert!(e.problems().iter().any(|p| p.message == want), "{e:?}");
    }
}

#[test]
fn errors_push_warnings_out_and_not_the_other_way_round() {
    use crate::problem::PROBLEMS_MAX;
    // Each of these inputs is worth a warning; that the action has no runtime is found after them.
    let inputs: String = (0..PROBLEMS_MAX).map(|n| format!("i{n} = 1\n")).collect();
    let head = "name = \"a\"\nversion = \"1.0.0\"\ndescription = \"x\"\nkind = \"action\"\n";
    let e = Manifest::from_toml(&format!("{head}[inputs]\n{inputs}")).unwrap_err();
    let errors = e.problems().iter().filter(|p| p.is_error());
    assert_eq!(
        errors.map(|p| p.pointer.as_str()).collect::<Vec<_>>(),
        ["/runtime"]
    );
    assert_eq!(e.problems().len(), PROBLEMS_MAX);

    let tags = "1,".repeat(PROBLEMS_MAX + 1);
    let e = Manifest::from_toml(&with(&format!("tags = [{tags}]"), "", "[inputs]\ni = 1"));
    let problems = e.unwrap_err().into_problems();
    assert_eq!(problems.len(), PROBLEMS_MAX);
    for (n, problem) in problems.iter().enumerate() {
        assert_eq!(problem.pointer, format!("/tags/{n}"), "{problem}");
    }
}

#[test]
fn what_is_as_long_as_it_may_be_is_taken() {
    let of = |count: usize, entry: &dyn Fn(usize) -> String| {
        let entries: Vec<String> = (0..count).map(entry).collect();
        format!("[{}]", entries.join(","))
    };
    let tag = |n: usize| format!("\"t{n}\"");
    let pattern = |n: usize| format!("\"https://h{n}.example.com\"");
    let secret = |n: usize| format!("\"S{n}\"");
    for (more, fits) in [(0, true), (1, false)] {
        let texts = [
            with(&format!("tags = {}", of(TAGS_MAX + more, &tag)), "", ""),
            with(
                &format!("tags = [\"{}\"]", "t".repeat(TAG_BYTES_MAX + more)),
                "",
                "",
            ),
            with(
                &format!(
                    "description = \"{}\"",
                    "d".repeat(DESCRIPTION_BYTES_MAX + more)
                ),
                "",
                "",
            ),
            with(&format!("{} = 1", "k".repeat(KEY_BYTES_MAX + more)), "", ""),
            with(
                "",
                "",
                &format!(
                    "[permissions]\nnetwork = {}",
                    of(NETWORK_PATTERNS_MAX + more, &pattern)
                ),
            ),
            with(
                "",
                "",
                &format!(
                    "[permissions]\nsecrets = {}",
                    of(SECRETS_MAX + more, &secret)
                ),
            ),
        ];
        for text in texts {
            match Manifest::from_toml(&text) {
                Ok(_) => assert!(fits, "{text}"),
                Err(e) => {
                    assert!(!fits, "{e}");
                    assert_eq!(e.first().code, Code::TooLarge, "{e}");
                }
            }
        }
        // JSON has a reader of its own.
        let key = "k".repeat(KEY_BYTES_MAX + more);
        let text = format!(
            r#"{{"name":"a","version":"1.0.0","description":"x","kind":"instruction","x":{{"{key}":1}}}}"#
        );
        let read =
            Manifest::from_json(&text).map_err(|e| (e.first().code, e.first().pointer.clone()));
        let want = (Code::TooLarge, "/x".to_owned());
        assert_eq!(read.err(), (!fits).then_some(want));
    }
}

#[test]
fn a_key_in_the_wrong_table_is_told_its_place() {
    for (runtime, help) in [
        ("tags = []", "move tags above the first [table]"),
        ("exprot = \"x\"", "did you mean export?"),
        (
            "license = \"MIT\"",
            "known here: language, entrypoint, export",
        ),
    ] {
        let m = Manifest::from_toml(&with("", "", runtime)).unwrap();
        assert_eq!(m.warnings()[0].help.as_deref(), Some(help));
    }
    // At the top other keys are an author's own.
    let m = Manifest::from_toml(&with("license = \"MIT\"", "", "")).unwrap();
    assert_eq!(m.warnings(), []);
}

#[test]
fn an_action_whose_runtime_is_wrong_does_not_lack_one() {
    let e = Manifest::from_json(
        r#"{"name":"a","version":"1.0.0","description":"x","kind":"action","runtime":1}"#,
    )
    .unwrap_err();
    assert_eq!(
        e.to_string(),
        "manifest:/runtime: error: runtime must be a table, not a number"
    );
}

#[test]
fn a_place_is_a_line_and_a_column_of_characters() {
    for (text, want) in [
        // Columns are characters; far into a line nobody counts them, and they are bytes.
        (
            &format!("{}x = [\"éé\", nan]", "\n".repeat(1024)),
            "skill.toml:1025:12: error: a number that is infinite or not a number is not allowed",
        ),
        (
            &format!("\nx = [\"é{}\", nan]", "e".repeat(1024)),
            "skill.toml:2:1036: error: a number that is infinite or not a number is not allowed",
        ),
        (
            &with("tags = [\"\\u2066\"]", "", ""),
            "skill.toml:5:9: error: a tag has the character U+2066, which a reader cannot see",
        ),
    ] {
        let e = Manifest::from_toml(text).unwrap_err();
        assert_eq!(e.to_string(), want, "{text}");
    }
}

#[test]
fn description_and_kind_are_as_written() {
    let m = Manifest::from_toml(MINIMAL).unwrap();
    assert_eq!(m.description(), "A simple hello world skill.");
    assert_eq!(m.kind().to_string(), "action");
}
