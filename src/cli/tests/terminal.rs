//! What others have written reaches the terminal as text, and never as what a terminal obeys or hides.

use skillgate_skill::text::{is_deceptive, is_hidden};

use super::*;

#[test]
fn a_failure_is_told_without_what_a_terminal_obeys() {
    let failure = Failure::new(Exit::Runtime, "a\u{1b}[2J\rb\u{9b}\u{202e}\n\tc").hint("\u{7}");
    let expected = "error: a\\u{1b}[2J\\u{d}b\\u{9b}\\u{202e}\n  \tc\nhint: \\u{7}\n";
    assert_eq!(failure.to_string(), expected);
    // What is visible already stays as it is.
    let again = Failure::new(Exit::Runtime, plain("\u{1b}")).hint("a\\u{1b}");
    assert_eq!(again.to_string(), "error: \\u{1b}\nhint: a\\u{1b}\n");
}

#[test]
fn what_is_wrong_with_a_configuration_is_a_line_each() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("\u{1b}[2J\u{202e}\n.toml");
    let check = |content: &str| {
        std::fs::write(&file, content).unwrap();
        skillgate(&["config", "check", "--config", text(&file)])
    };
    let (exit, out, _) = check("");
    assert_eq!(exit, Exit::Fine, "{out}");
    assert!(
        out.ends_with("\\u{1b}[2J\\u{202e}\\u{a}.toml: fine\n"),
        "{out:?}"
    );
    let (exit, out, err) = check("\"a\\u001B\\u009B\" = 1\n\"b\\nc\" = 1\n");
    assert_eq!(exit, Exit::Configuration, "{out}");
    assert_eq!(out.lines().count(), 2, "{out:?}");
    let said = out + &err;
    assert!(!said.contains(|c| c != '\n' && is_hidden(c)), "{said:?}");
}

#[test]
fn where_a_key_is_written_is_told_on_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let (key, jwks) = (dir.path().join("\u{1b}k\n"), dir.path().join("\u{9b}j"));
    let args = ["token", "keygen", text(&key), "--jwks", text(&jwks)];
    let (exit, out, err) = skillgate(&args);
    assert_eq!(exit, Exit::Fine, "{err}");
    assert_eq!(out.lines().count(), 2, "{out:?}");
    assert!(!out.contains(|c| c != '\n' && is_hidden(c)), "{out:?}");
}

/// A reader of JSON has the same values; a terminal has nothing to obey.
#[test]
fn json_is_printed_without_what_a_terminal_obeys() {
    let nasty = "\n\t\u{7f}\u{9b}2J\u{202e}\u{3164}\u{200d}\u{e0041}é漢🙂";
    let value = json!({ nasty: [nasty, 1] });
    let mut printed = Vec::new();
    print_json(&mut printed, &value).unwrap();
    let mut of_a_run = Vec::new();
    let raw = serde_json::value::to_raw_value(&value).unwrap();
    skill_run::print_whole(&raw, &mut of_a_run).unwrap();
    for out in [printed, of_a_run] {
        let out = String::from_utf8(out).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), value);
        assert!(!out.contains(|c| c != '\n' && is_hidden(c)), "{out:?}");
        assert!(out.contains("é漢🙂") && out.ends_with("}\n"), "{out}");
    }
}

#[test]
fn a_cell_has_all_that_prose_needs_and_nothing_that_deceives() {
    for c in '\0'..=char::MAX {
        let is_plain = c == '\t' || !is_deceptive(c);
        assert_eq!(
            plain(c.encode_utf8(&mut [0; 4])).starts_with(c),
            is_plain,
            "{c:?}"
        );
    }
}
