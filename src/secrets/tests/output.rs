//! Outputs, which are JSON before and behind.

use std::time::{Duration, Instant};

use super::{VALUES, redactor};
use crate::secrets::{VALUE_BYTES_MAX, redact_json};

/// An output is never cut, so its strings are whole: what only begins or ends like a secret is something else.
#[test]
fn strings_of_an_output_are_not_pieces() {
    let redactor = redactor(&[
        ("HOOK", "https://hooks.example.com/services/T0/B0/abcd"),
        ("MAIL", "smtp://user:word@mail.example.com"),
    ]);
    for json in [
        r#"{"scheme":"https"}"#,
        r#"{"https":1}"#,
        r#"{"host":"mail.example.com"}"#,
        r#"["smtp","abcd","https://hooks.example.com/…"]"#,
    ] {
        assert_eq!(redact_json(&redactor, json), None);
    }
}

/// A run chooses how many strings its output has: none of them may cost what the forms are long.
#[test]
fn many_strings_of_an_output_cost_what_they_are_long() {
    let values: Vec<String> = (0..4)
        .map(|nth| {
            let letters =
                (0..VALUE_BYTES_MAX).map(|at| char::from(b'!' + ((at * 7 + nth) % 90) as u8));
            letters.collect()
        })
        .collect();
    let values: Vec<_> = values.iter().map(|value| ("K", value.as_str())).collect();
    let redactor = redactor(&values);
    let strings = |text: &str| serde_json::to_string(&vec![text; 1365]).unwrap();
    for json in [strings(""), strings("!/"), strings("abcd")] {
        let began = Instant::now();
        assert_eq!(redact_json(&redactor, &json), None);
        let took = began.elapsed();
        // Two megabytes of forms, 1365 times, would be minutes.
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}

/// Accounts of services are kept as JSON.
#[test]
fn a_value_that_is_json_does_not_stand_in_an_output() {
    let account = r#"{"user":"svc","password":"hunter2hunter2"}"#;
    let redactor = redactor(&[("ACCOUNT", account), ("PIN", "12345678")]);
    let held = redact_json(&redactor, &format!(r#"{{"cfg":{account},"pin":12345678}}"#)).unwrap();
    assert!(
        held.contains("withheld") && !held.contains("hunter2"),
        "{held}"
    );
    crate::json::walk(&held).unwrap();
    let text = serde_json::Value::from(account).to_string();
    assert_eq!(
        redact_json(&redactor, &format!("[{text}]")).as_deref(),
        Some(r#"["[secret ACCOUNT]"]"#)
    );
}

#[test]
fn output_stays_json() {
    let redactor = redactor(&[("K", VALUES[2]), ("PIN", "12345678"), ("U", VALUES[4])]);
    let text = |value: &str| serde_json::Value::from(value).to_string();
    for (json, plain) in [
        (r#"{"a":[1,2.50,"x",null,true,{}]}"#.to_owned(), None),
        (format!(r#"{{"a": {}, "b" : [{}]}}"#, text(VALUES[2]), text("u 12345678 v")), Some(r#"{"a": "[secret K]", "b" : ["u [secret PIN] v"]}"#.to_owned())),
        // Escaped in another way than we would.
        (r#"["\u0070@ss\/w'or\"d+\\=%&<x>~!*(){}[]"]"#.into(), Some(r#"["[secret K]"]"#.into())),
        (r#"["gr\u00f6\u00dfe漢字\ud83d\ude42schlüssel"]"#.into(), Some(r#"["[secret U]"]"#.into())),
        // Numbers become strings, whole.
        (r#"{"n":12345678,"m":-12345678.0e1,"o":1234567}"#.into(), Some(r#"{"n":"[secret PIN]","m":"[secret PIN]","o":1234567}"#.into())),
        ("12345678".into(), Some(r#""[secret PIN]""#.into())),
        // Names stay different.
        (r#"{"12345678":1,"x":{"12345678":2},"[secret PIN]":3,"[secret PIN] (2)":4}"#.into(), Some(r#"{"[secret PIN]":1,"x":{"[secret PIN]":2},"[secret PIN] (2)":3,"[secret PIN] (2) (2)":4}"#.into())),
        (r#"[{"a":"b:"},"12345678:"]"#.into(), Some(r#"[{"a":"b:"},"[secret PIN]:"]"#.into())),
    ] {
        let found = redact_json(&redactor, &json);
        assert_eq!(found, plain, "{json}");
        if let Some(found) = found {
            crate::json::walk(&found).unwrap();
        }
    }
}
