mod limits;

use serde_json::json;

use super::*;

const MINIMAL: &str = r#"
name = "hello.world"
version = "0.1.0"
description = "A simple hello world skill."
kind = "action"

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"
"#;

/// An action with other lines at the top, in [runtime] and after it.
fn with(top: &str, runtime: &str, rest: &str) -> String {
    let mut text = String::new();
    for (key, line) in [
        ("name", "name = \"a.b\""),
        ("version", "version = \"0.1.0\""),
        ("description", "description = \"x\""),
        ("kind", "kind = \"action\""),
    ] {
        if !top.starts_with(&format!("{key} ")) {
            text.push_str(line);
            text.push('\n');
        }
    }
    let runtime_lines = if runtime.is_empty() {
        "language = \"python\"\nentrypoint = \"code/main.py\"\nexport = \"main\"".to_owned()
    } else {
        runtime.to_owned()
    };
    format!("{text}{top}\n[runtime]\n{runtime_lines}\n{rest}\n")
}

fn first(text: &str) -> (Code, String) {
    let e = Manifest::from_toml(text).expect_err(text);
    (e.first().code, e.first().pointer.clone())
}

#[test]
fn all_keys_are_kept() {
    let text = with(
        "license = \"MIT\"\nreleased = 2024-05-01\nratio = 1.5\nbig = 0x10\nflag = true",
        "",
        "[inputs.\"odd key\"]\ntype = \"string\"\n[inputs.\"odd key\".more]\nx = [[1, 2], [{ y = \"z\" }]]\n[[authors]]\nname = \"A\"\n[[authors]]\nname = \"B\"\n[x.y]\nz = 1",
    );
    let m = Manifest::from_toml(&text).unwrap();
    let json = m.to_json();
    assert_eq!(json["license"], "MIT");
    assert_eq!(json["released"], "2024-05-01", "JSON has no dates");
    assert_eq!(
        (&json["ratio"], &json["big"], &json["flag"]),
        (&json!(1.5), &json!(16), &json!(true))
    );
    assert_eq!(
        json["inputs"]["odd key"]["more"]["x"],
        json!([[1, 2], [{"y": "z"}]])
    );
    assert_eq!(json["authors"], json!([{"name": "A"}, {"name": "B"}]));
    assert_eq!(json["x"], json!({"y": {"z": 1}}));
    assert!(m.warnings().is_empty(), "{:?}", m.warnings());
    assert_eq!(Manifest::from_toml(&m.to_toml()).unwrap().to_json(), json);
}

#[test]
fn wrong_manifests() {
    use Code::*;
    let long = |n: usize| "d".repeat(n);
    let rows: Vec<(String, Code, &str)> = vec![
        // Names and the other plain keys.
        ("name = 1".into(), WrongType, "/name"),
        ("name = \"A.B\"".into(), Invalid, "/name"),
        ("name = \"\"".into(), Invalid, "/name"),
        ("name = \"a..b\"".into(), Invalid, "/name"),
        ("name = [\"a\"]".into(), WrongType, "/name"),
        ("version = \"1.0\"".into(), Invalid, "/version"),
        ("version = 1.0".into(), WrongType, "/version"),
        ("version = \"v1.0.0\"".into(), Invalid, "/version"),
        ("description = \"\"".into(), Invalid, "/description"),
        ("description = \"  \"".into(), Invalid, "/description"),
        (
            "description = \"two\\nlines\"".into(),
            Invalid,
            "/description",
        ),
        (
            "description = \"a\\u001b[31mred\"".into(),
            Invalid,
            "/description",
        ),
        (
            "description = \"a\\u202eb\"".into(),
            Invalid,
            "/description",
        ),
        (
            "description = \"a\\u200bb\"".into(),
            Invalid,
            "/description",
        ),
        (
            "description = \"a\\U000e0041b\"".into(),
            Invalid,
            "/description",
        ),
        (
            format!("description = \"{}\"", long(1025)),
            TooLarge,
            "/description",
        ),
        ("kind = \"Action\"".into(), Invalid, "/kind"),
        ("kind = \"tool\"".into(), Invalid, "/kind"),
        ("kind = true".into(), WrongType, "/kind"),
        ("kind = \"instruction\"".into(), Invalid, "/runtime"),
        ("namespace = \"A\"".into(), Invalid, "/namespace"),
        ("namespace = \"\"".into(), Invalid, "/namespace"),
        ("namespace = 3".into(), WrongType, "/namespace"),
        ("tags = \"crm\"".into(), WrongType, "/tags"),
        ("tags = [1]".into(), WrongType, "/tags/0"),
        ("tags = [\"a\", \"\"]".into(), Invalid, "/tags/1"),
        ("tags = [\"a\\u2066\"]".into(), Invalid, "/tags/0"),
        (format!("tags = [\"{}\"]", long(65)), TooLarge, "/tags/0"),
        (
            format!("tags = [{}]", "\"a\",".repeat(65)),
            TooLarge,
            "/tags",
        ),
        (format!("{} = 1", long(129)), TooLarge, ""),
        ("\"a\\u202e\" = 1".into(), Invalid, ""),
        ("x = nan".into(), Invalid, "/x"),
        ("x = [1, -inf]".into(), Invalid, "/x/1"),
        ("x = 1e999".into(), Invalid, "/x"),
        ("x = 9223372036854775808".into(), Syntax, ""),
        ("inputs = 1".into(), WrongType, "/inputs"),
        ("permissions = []".into(), WrongType, "/permissions"),
        (
            format!("x = {}1{}", "[".repeat(20), "]".repeat(20)),
            TooDeep,
            "/x/0/0",
        ),
    ];
    for (top, code, pointer) in rows {
        let text = with(&top, "", "");
        let got = first(&text);
        // The number that TOML itself refuses may be told by either.
        let same = got == (code, pointer.to_owned()) || (code == Syntax && got.0 == Invalid);
        assert!(same, "{top:.60}: {got:?}");
    }
    for (runtime, code, pointer) in [
        (
            "language = \"python\"\nexport = \"main\"",
            Missing,
            "/runtime/entrypoint",
        ),
        (
            "entrypoint = \"code/main.py\"\nexport = \"main\"",
            Missing,
            "/runtime/language",
        ),
        (
            "language = \"python\"\nentrypoint = \"code/main.py\"",
            Missing,
            "/runtime/export",
        ),
        (
            "language = \"javascript\"\nentrypoint = \"code/main.js\"\nexport = \"main\"",
            LanguageUnsupported,
            "/runtime/language",
        ),
        (
            "language = \"Python\"\nentrypoint = \"a.py\"\nexport = \"main\"",
            LanguageUnsupported,
            "/runtime/language",
        ),
        (
            "language = \"python\"\nentrypoint = \"../main.py\"\nexport = \"main\"",
            PathEscape,
            "/runtime/entrypoint",
        ),
        (
            "language = \"python\"\nentrypoint = \"/main.py\"\nexport = \"main\"",
            PathEscape,
            "/runtime/entrypoint",
        ),
        (
            "language = \"python\"\nentrypoint = \"a//main.py\"\nexport = \"main\"",
            PathInvalid,
            "/runtime/entrypoint",
        ),
        (
            "language = \"python\"\nentrypoint = \"code/main\"\nexport = \"main\"",
            Invalid,
            "/runtime/entrypoint",
        ),
        (
            "language = \"python\"\nentrypoint = \"code/.py\"\nexport = \"main\"",
            Invalid,
            "/runtime/entrypoint",
        ),
        (
            "language = \"python\"\nentrypoint = \"code.main\"\nexport = \"main\"",
            Invalid,
            "/runtime/entrypoint",
        ),
        (
            "language = \"python\"\nentrypoint = \"a.py\"\nexport = \"__import__\"",
            Invalid,
            "/runtime/export",
        ),
        (
            "language = \"python\"\nentrypoint = \"a.py\"\nexport = \"os.system\"",
            Invalid,
            "/runtime/export",
        ),
        (
            "language = \"python\"\nentrypoint = \"a.py\"\nexport = \"class\"",
            Invalid,
            "/runtime/export",
        ),
        (
            "language = \"python\"\nentrypoint = \"a.py\"\nexport = [\"main\"]",
            WrongType,
            "/runtime/export",
        ),
    ] {
        assert_eq!(
            first(&with("", runtime, "")),
            (code, pointer.to_owned()),
            "{runtime}"
        );
    }
    for (permissions, code, pointer) in [
        (
            "network = \"https://a.com\"",
            WrongType,
            "/permissions/network",
        ),
        ("network = [\"*\"]", Invalid, "/permissions/network/0"),
        (
            "network = [\"https://a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q\"]",
            Invalid,
            "/permissions/network/0",
        ),
        (
            "network = [\"https://a.com\", \"https://*\"]",
            Invalid,
            "/permissions/network/1",
        ),
        (
            "network = [{ host = \"a.com\" }]",
            WrongType,
            "/permissions/network/0",
        ),
        ("secrets = [\"*\"]", Invalid, "/permissions/secrets/0"),
        (
            "secrets = [\"A\", \"LD_PRELOAD\"]",
            Invalid,
            "/permissions/secrets/1",
        ),
        ("secrets = { A = 1 }", WrongType, "/permissions/secrets"),
    ] {
        assert_eq!(
            first(&with("", "", &format!("[permissions]\n{permissions}"))),
            (code, pointer.to_owned()),
            "{permissions}"
        );
    }
}

#[test]
fn missing_keys_are_all_told() {
    let e = Manifest::from_toml("").unwrap_err();
    let pointers: Vec<&str> = e.problems().iter().map(|p| p.pointer.as_str()).collect();
    assert_eq!(pointers, ["/name", "/version", "/description", "/kind"]);
    assert_eq!(
        e.to_string(),
        "skill.toml:1:1: error: name is missing (and 3 more)"
    );
    let e =
        Manifest::from_toml("name=\"a\"\nversion=\"1.0.0\"\ndescription=\"x\"\nkind=\"action\"")
            .unwrap_err();
    assert_eq!(
        (e.first().code, e.first().pointer.as_str()),
        (Code::Missing, "/runtime")
    );
}

#[test]
fn places() {
    for (text, want) in [
        (
            "a = ",
            "skill.toml:1:5: error: string values must be quoted, expected literal string",
        ),
        ("a = 1\na = 2\n", "skill.toml:2:1: error: duplicate key"),
        (
            "x = \"\n",
            "skill.toml:1:6: error: invalid basic string, expected `\"`",
        ),
        (
            "# é\nname = \"é\"",
            "skill.toml:2:8: error: name \"é\" has the character 'é'; only a-z, 0-9, `_`, `-` and dots between segments are allowed (and 3 more)",
        ),
        (
            &MINIMAL.replace("\"python\"", "\"ruby\""),
            "skill.toml:8:12: error: language \"ruby\" is not supported",
        ),
        (
            &MINIMAL.replace("export = \"main\"", ""),
            "skill.toml:7:2: error: export is missing in [runtime]",
        ),
        (
            &format!(
                "{MINIMAL}[permissions]\nnetwork = [\n  \"https://a.com\",\n  \"https://*\",\n]"
            ),
            "skill.toml:14:3: error: network pattern \"https://*\" has a wildcard in another place than `*.` before a domain; write https://*.example.com",
        ),
        (
            &format!("{MINIMAL}[inputs]\na = {{ b = {{ c = {{ d = nan }} }} }}"),
            "skill.toml:12:23: error: a number that is infinite or not a number is not allowed",
        ),
    ] {
        assert_eq!(
            Manifest::from_toml(text).unwrap_err().to_string(),
            want,
            "{text}"
        );
    }
}

#[test]
fn json_manifests() {
    let base =
        || json!({"name": "a.b", "version": "0.1.0", "description": "x", "kind": "instruction"});
    let mut nulls = base();
    nulls["runtime"] = json!(null);
    nulls["namespace"] = json!(null);
    nulls["inputs"] = json!({"a": {"default": null, "type": "string"}, "b": null});
    let m = Manifest::from_json(&nulls.to_string()).unwrap();
    assert_eq!(
        m.to_json()["inputs"],
        json!({"a": {"type": "string"}}),
        "null members are absent"
    );
    assert_eq!(m.namespace().as_str(), "a");

    for (key, value, code, pointer) in [
        ("name", json!(null), Code::Missing, "/name"),
        ("name", json!(5), Code::WrongType, "/name"),
        ("tags", json!(["a", null]), Code::WrongType, "/tags/1"),
        ("x", json!(u64::MAX), Code::Invalid, "/x"),
        (
            "x",
            json!({"a/b": {"~": [null]}}),
            Code::WrongType,
            "/x/a~1b/~0/0",
        ),
        ("runtime", json!({}), Code::Missing, "/runtime/language"),
        ("inputs", json!("x"), Code::WrongType, "/inputs"),
    ] {
        let mut manifest = base();
        manifest[key] = value;
        let e = Manifest::from_json(&manifest.to_string()).unwrap_err();
        assert_eq!(
            (e.first().code, e.first().pointer.as_str()),
            (code, pointer)
        );
        assert!(e.first().line.is_none());
    }
    for text in [
        "",
        "null",
        "[]",
        "\"x\"",
        "{",
        "{\"name\":\"a\",\"name\":\"b\"}",
        "{\"a\":1e999}",
        "{\"a\":\"\\ud800\"}",
        "{} x",
    ] {
        assert!(Manifest::from_json(text).is_err(), "{text}");
    }
    // Its own TOML must fit too: U+007F is one byte in JSON and an escape of six in TOML.
    let mut large = base();
    large["x"] = json!("\u{7f}".repeat(20_000));
    let e = Manifest::from_json(&large.to_string()).unwrap_err();
    assert_eq!(e.first().code, Code::TooLarge);
}

#[test]
fn what_is_accepted_can_be_read_again() {
    let head = r#"{"name":"u.x","version":"0.1.0","description":"d","kind":"instruction","x":""#;
    let namespace = r#""namespace":"u","#.len();
    for bytes in MANIFEST_BYTES_MAX - 36..=MANIFEST_BYTES_MAX {
        let text = format!("{head}{}\"}}", "A".repeat(bytes - head.len() - 2));
        let read = Manifest::from_json(&text);
        let fits = bytes + namespace <= MANIFEST_BYTES_MAX;
        assert_eq!(read.is_ok(), fits, "{bytes}");
        let Ok(m) = read else {
            assert_eq!(read.unwrap_err().first().code, Code::TooLarge);
            continue;
        };
        let json = m.to_json();
        assert_eq!(
            Manifest::from_json(&json.to_string()).unwrap().to_json(),
            json
        );
    }
    // TOML has a space behind each comma: there it is the longer form, and the namespace makes it longer still.
    let mut outcomes = [0, 0];
    for ones in 21_700..21_900 {
        let mut manifest: Value = serde_json::from_str(&format!("{head}\"}}")).unwrap();
        manifest["x"] = Value::from(vec![1; ones]);
        let read = Manifest::from_json(&manifest.to_string());
        outcomes[usize::from(read.is_ok())] += 1;
        if let Ok(read) = read {
            Manifest::from_json(&read.to_json().to_string()).unwrap();
        }
    }
    assert!(outcomes.iter().all(|some| *some > 10), "{outcomes:?}");
    // In JSON a quote is two bytes; TOML is written without exponents.
    for (x, fits) in [
        (format!("'{}'", "\"".repeat(32_000)), true),
        (format!("'{}'", "\"".repeat(40_000)), false),
        (format!("[{}]", "1e300,".repeat(200)), true),
        (format!("[{}]", "1e300,".repeat(400)), false),
    ] {
        let read = Manifest::from_toml(&with(&format!("x = {x}"), "", ""));
        assert_eq!(read.is_ok(), fits, "{} bytes", x.len());
        match read {
            Ok(m) => {
                Manifest::from_json(&m.to_json().to_string()).unwrap();
                Manifest::from_toml(&m.to_toml()).unwrap();
            }
            Err(e) => assert_eq!(e.first().code, Code::TooLarge),
        }
    }
}

#[test]
fn equal_manifests_write_equal_toml() {
    let a = Manifest::from_json(r#"{"name":"a","version":"1.0.0","zeta":1,"inputs":{"b":{"y":1,"x":2},"a":{}},"alpha":{"k":1},"description":"x","kind":"instruction"}"#).unwrap();
    let b = Manifest::from_json(r#"{"kind":"instruction","alpha":{"k":1},"inputs":{"a":{},"b":{"x":2,"y":1}},"description":"x","zeta":1,"version":"1.0.0","name":"a"}"#).unwrap();
    assert_eq!(a.to_toml(), b.to_toml());
    assert_eq!(
        a.to_toml(),
        "name = \"a\"\nversion = \"1.0.0\"\ndescription = \"x\"\nkind = \"instruction\"\nzeta = 1\n\n[inputs]\na = {}\nb = { x = 2, y = 1 }\n\n[alpha]\nk = 1\n"
    );
}

#[test]
fn strange_strings_survive_the_way_through_toml() {
    let odd = [
        "",
        "\"",
        "'",
        "'''",
        "\"\"\"",
        "\\",
        "\n",
        "\r\n",
        "\t",
        "\u{0}",
        "\u{1b}",
        "\u{7f}",
        "é\u{301}",
        "# x",
        "[x]",
        "a = 1",
        "\u{2028}",
        "😀",
        "'\"\\\n\u{1}",
    ];
    for text in odd {
        let mut manifest =
            json!({"name": "a", "version": "1.0.0", "description": "x", "kind": "instruction"});
        manifest["x"] = json!({"text": text, "list": [text, {"t": text}], "n": [1.0, -0.5, 1e300, 5e-324, i64::MIN]});
        if !text.chars().any(crate::text::is_hidden) {
            manifest["inputs"] = json!({text: {"type": text}});
            manifest[if text.is_empty() { "empty" } else { text }] = json!(text);
        }
        let m =
            Manifest::from_json(&manifest.to_string()).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        let again = Manifest::from_toml(&m.to_toml())
            .unwrap_or_else(|e| panic!("{text:?}: {e}\n{}", m.to_toml()));
        assert_eq!(again.to_json(), m.to_json(), "{text:?}");
    }
}

#[test]
fn warnings() {
    for (top, rest, code, pointer) in [
        ("permision = 1", "", Code::UnknownKey, "/permision"),
        ("secrets = [\"A\"]", "", Code::UnknownKey, "/secrets"),
        ("netwrok = [\"A\"]", "", Code::UnknownKey, "/netwrok"),
        (
            "\"permissions.hosts\" = 1",
            "",
            Code::UnknownKey,
            "/permissions.hosts",
        ),
        (
            "",
            "namespace = \"x\"",
            Code::UnknownKey,
            "/runtime/namespace",
        ),
        (
            "",
            "[permissions]\nsecret = [\"A\"]",
            Code::UnknownKey,
            "/permissions/secret",
        ),
        (
            "",
            "[permissions]\nfilesystem = [\"/\"]",
            Code::UnknownKey,
            "/permissions/filesystem",
        ),
        ("", "[inputs]\na = \"text\"", Code::WrongType, "/inputs/a"),
        ("name = \"a.class\"", "", Code::NameNotImportable, "/name"),
        ("name = \"a.3d\"", "", Code::NameNotImportable, "/name"),
    ] {
        let m = Manifest::from_toml(&with(top, "", rest)).unwrap();
        let got: Vec<_> = m
            .warnings()
            .iter()
            .map(|w| (w.is_error(), w.code, w.pointer.as_str()))
            .collect();
        assert_eq!(got, [(false, code, pointer)]);
        assert!(
            m.warnings()[0]
                .line
                .is_some_and(|line| line > 1 || top.starts_with("name"))
        );
    }
}

#[test]
fn bombs_stay_within_the_budget() {
    for text in [
        "[".repeat(MANIFEST_BYTES_MAX),
        format!("a = {}", "[".repeat(60_000)),
        format!("a = {}", "{a=".repeat(20_000)),
        "a.".repeat(30_000),
        format!("[{}]", "a.".repeat(30_000)),
        (0..16_000)
            .map(|n| format!("[[a{n:x}]]\n").chars().take(4).collect::<String>())
            .collect(),
        (0..9_000)
            .map(|n| format!("k{n:x}=1\n"))
            .take(7_000)
            .collect(),
        format!("a = [{}]", "{},".repeat(20_000)),
        format!("{} = 1", "k".repeat(60_000)),
        "x = 1\n".repeat(10_000),
    ] {
        assert!(text.len() <= MANIFEST_BYTES_MAX);
        let e = Manifest::from_toml(&text).expect_err("none of these is a manifest");
        assert!(e.problems().len() <= crate::problem::PROBLEMS_MAX);
        assert!(e.problems().iter().all(|p| p.message.len() < 1000));
    }
    let keys: String = (0..100_000).map(|n| format!("k{n}=1\n")).collect();
    assert_eq!(first(&keys).0, Code::TooLarge);
    assert_eq!(
        Manifest::from_json(&" ".repeat(MANIFEST_BYTES_MAX + 1))
            .unwrap_err()
            .first()
            .code,
        Code::TooLarge
    );
    assert!(Manifest::from_json(&"{\"a\":".repeat(10_000)).is_err());
}

#[test]
fn nesting_has_one_limit() {
    for (arrays, ok) in [(MANIFEST_DEPTH_MAX - 1, true), (MANIFEST_DEPTH_MAX, false)] {
        for (open, close) in [("[", "]"), ("{a=", "}")] {
            let value = format!("{}1{}", open.repeat(arrays), close.repeat(arrays));
            let toml = with(&format!("x = {value}"), "", "");
            assert_eq!(Manifest::from_toml(&toml).is_ok(), ok, "{value}");
            let json = format!(
                r#"{{"name":"a","version":"1.0.0","description":"x","kind":"instruction","x":{}}}"#,
                value.replace("a=", "\"a\":")
            );
            assert_eq!(Manifest::from_json(&json).is_ok(), ok, "{value}");
        }
    }
}
