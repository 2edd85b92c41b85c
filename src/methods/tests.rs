//! The table as a whole, and the helpers that methods share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use super::{TABLE, bounded, decode, object, openrpc, read_params, timeout};
use crate::rpc::{Params, Space};
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

#[test]
fn every_schema_is_an_object_schema_and_required_names_exist() {
    for method in &TABLE {
        let schema: Value = serde_json::from_str(method.params).unwrap();
        assert_eq!(schema["type"], "object", "{}", method.name);
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(
                schema["properties"].get(name.as_str().unwrap()).is_some(),
                "{}: {name}",
                method.name
            );
        }
        let result: Value = serde_json::from_str(method.result).unwrap();
        assert_eq!(result["type"], "object", "{}", method.name);
    }
    assert_eq!(
        TABLE.iter().filter(|method| method.tool).count(),
        8,
        "REQUIREMENTS L1: exactly eight"
    );
}

/// Rooms that must not know this one have a list of their own: a method that is missing in it could not be limited, and would be
/// asked about by no trial of a policy.
#[test]
fn everybody_means_the_same_methods() {
    let sorted = |names: &[&'static str]| {
        let mut names = names.to_vec();
        names.sort_unstable();
        names
    };
    let own = sorted(&super::names());
    assert_eq!(sorted(&crate::config::METHODS), own);
}

#[test]
fn openrpc_lists_every_method_with_its_parameters() {
    let document = openrpc();
    assert_eq!(document["methods"].as_array().unwrap().len(), TABLE.len());
    let execute = document["methods"]
        .as_array()
        .unwrap()
        .iter()
        .find(|method| method["name"] == "execute_skill")
        .unwrap();
    let name = execute["params"]
        .as_array()
        .unwrap()
        .iter()
        .find(|param| param["name"] == "name")
        .unwrap();
    assert_eq!(name["required"], true);
    // Also what the specification's tool, which `/tools` has as it is, does not list.
    let names = |method: &str| {
        let methods = document["methods"].as_array().unwrap();
        let method = methods.iter().find(|it| it["name"] == method).unwrap();
        let params = method["params"].as_array().unwrap().iter();
        params
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("create_blob"), ["content", "encoding", "kind"]);
}

#[test]
fn parameters_that_do_not_fit_say_where() {
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its shape matters")]
    struct Shape {
        name: String,
        limits: Option<super::Object<Inner>>,
        list: Option<Vec<super::Whole>>,
        detail: Option<Detail>,
    }
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Detail {
        Names,
        Summary,
    }
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its shape matters")]
    struct Inner {
        timeout_ms: Option<super::Whole>,
    }
    let schema = r#"{"properties":{"name":{"description":"Skill name"},"list":{"description":"Numbers","items":{"type":"integer"}},
        "limits":{"properties":{"timeout_ms":{"description":"Milliseconds"}}}}}"#;
    let read =
        |text: &'static str| read_params::<Shape>(&Params::from_text(text.into()).unwrap(), schema);
    for (text, place, word) in [
        ("{}", "", "missing field `name`; it is: Skill name"),
        (
            r#"{"name":5}"#,
            "/name",
            "name: invalid type: integer `5`, expected a string; it is: Skill name",
        ),
        (
            r#"{"name":{}}"#,
            "/name",
            "name: invalid type: object, expected",
        ),
        (
            r#"{"name":null}"#,
            "",
            "missing field `name` (it is null); it is: Skill name",
        ),
        (r#"{"name":"a","nmae":1}"#, "/nmae", "unknown field `nmae`"),
        (
            r#"{"name":"a","limits":{"timeout_ms":-1}}"#,
            "/limits/timeout_ms",
            "limits/timeout_ms: invalid value: integer `-1`, expected a whole number, not below 0; it is: Milliseconds",
        ),
        (
            r#"{"name":"a","limits":{"timeout_ms":1.5}}"#,
            "/limits/timeout_ms",
            "1.5`, expected a whole number",
        ),
        (
            r#"{"name":"a","limits":[5]}"#,
            "/limits",
            "limits: invalid type: array, expected an object",
        ),
        (
            r#"{"name":"a","list":[1,"x, expected u64"]}"#,
            "/list/1",
            r#"list/1: invalid type: string "x, expected u64", expected a whole number, not below 0; it is: Numbers"#,
        ),
        (
            r#"{"name":"a","timeout_ms":5}"#,
            "/timeout_ms",
            r#"; it goes into `limits`: {"limits": {"timeout_ms": ...}}"#,
        ),
        (r#"{"name":"a","list":"x"}"#, "/list", "expected an array"),
        (
            r#"{"name":"a","detail":"all"}"#,
            "/detail",
            "detail: unknown value `all`, expected `names` or `summary`",
        ),
    ] {
        match read(text).unwrap_err() {
            super::Error::Params { pointer, message } => {
                assert!(message.contains(word), "{text}: {message}");
                assert!(!message.contains(" line "), "{message}");
                assert_eq!(pointer, place, "{text}");
            }
            other => panic!("{text}: {other}"),
        }
    }
    assert!(
        read(r#"{"name":"a","limits":null,"list":null}"#).is_ok(),
        "REQUIREMENTS R2: null is absent"
    );
}

/// JSON Schema's integer, which `/tools` promises, is any number without a fraction: clients that have doubles alone write 5.0.
#[test]
fn whole_numbers_may_be_written_as_doubles() {
    #[derive(Debug, Deserialize)]
    struct Shape {
        n: Option<super::Whole>,
    }
    let read = |number: &str| {
        let text = format!(r#"{{"n":{number}}}"#);
        read_params::<Shape>(&Params::from_text(text.into()).unwrap(), "{}")
    };
    for (number, is) in [
        ("5", 5),
        ("5.0", 5),
        ("3e2", 300),
        ("0.0", 0),
        ("-0.0", 0),
        ("9007199254740991.0", (1 << 53) - 1),
        ("18446744073709551615", u64::MAX),
    ] {
        let read = read(number).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(read.n, Some(super::Whole(is)), "{number}");
    }
    assert!(read("null").unwrap().n.is_none(), "REQUIREMENTS R2");
    for number in [
        "1.5",
        "9007199254740992.0",
        "-1",
        "-1.0",
        "1e30",
        "9007199254740994.0",
        "18446744073709551616",
        "\"5\"",
        "true",
        "[5]",
    ] {
        match read(number).unwrap_err() {
            super::Error::Params { pointer, message } => {
                assert_eq!(pointer, "/n");
                let expected = "expected a whole number, not below 0";
                assert!(message.starts_with("n: invalid "), "{number}: {message}");
                assert!(message.ends_with(expected), "{number}: {message}");
            }
            other => panic!("{number}: {other}"),
        }
    }
}

#[test]
fn what_a_body_has_too_much_of_is_not_kept() {
    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Shape {
        list: super::First<String, 3>,
    }
    let read = |text: String| read_params::<Shape>(&Params::from_text(text.into()).unwrap(), "{}");
    for (count, kept) in [(0, 0), (3, 3), (4, 4), (5, 4), (100_000, 4)] {
        let text = format!(r#"{{"list":{}}}"#, json!(vec!["x"; count]));
        assert_eq!(read(text).unwrap().list.0.len(), kept);
    }
    // Nor told back.
    let name = "x".repeat(100_000);
    match read(format!(r#"{{"{name}":1}}"#)).unwrap_err() {
        super::Error::Params { pointer, message } => {
            assert!(pointer.len() < 600 && pointer.ends_with('…'), "{pointer}");
            assert!(message.len() < 600 && message.ends_with('…'), "{message}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn small_helpers() {
    let raw = |text: &str| Some(serde_json::value::RawValue::from_string(text.to_owned()).unwrap());
    assert_eq!(object(None, "/args").unwrap().get(), "{}");
    assert_eq!(
        object(raw(r#"{"a":1}"#), "/args").unwrap().get(),
        r#"{"a":1}"#
    );
    // Some clients show a model the message alone: it names the parameter.
    let said = |error: super::Error| match error {
        super::Error::Params { message, .. } => message,
        other => panic!("{other}"),
    };
    let wrong = object(raw("[1]"), "/args").unwrap_err();
    assert_eq!(said(wrong), "args must be an object");
    let wrong = object(raw(r#""{\"a\":1}""#), "/args").unwrap_err();
    assert_eq!(
        said(wrong),
        "args must be an object, and not a string with one in it"
    );
    let wrong = timeout(Some(super::Whole(0)), "/limits/timeout_ms").unwrap_err();
    assert!(said(wrong).starts_with("limits/timeout_ms must be"));
    let one = timeout(Some(super::Whole(1)), "/timeout_ms");
    assert_eq!(one.unwrap(), Some(1));
    assert_eq!(
        decode("aGk=".into(), Some(super::Encoding::Base64), "/content").unwrap(),
        b"hi"
    );
    for (content, why) in [
        ("a*".to_owned(), "('*' at 1)"),
        (
            format!("{}\n{}", "aGkh".repeat(19), "aGkh"),
            "('\\n' at 76)",
        ),
        ("data:;base64,aGk=".to_owned(), "(':' at 4)"),
        ("aGk".to_owned(), "("),
    ] {
        let read = decode(content, Some(super::Encoding::Base64), "/files/0/content");
        let told = said(read.unwrap_err());
        let begins = format!("files/0/content is not base64 {why}");
        assert!(told.starts_with(&begins), "{told}");
        assert!(told.contains("for text leave encoding out"), "{told}");
    }
    let read = |json: &str| serde_json::from_str::<super::Encoding>(json);
    assert!(read(r#""base64""#).is_ok());
    let told = read(r#""utf-8""#).unwrap_err().to_string();
    assert!(
        told.contains(r#""utf-8" is not taken: leave encoding out"#),
        "{told}"
    );
}

/// The policy sees all names of a call's arguments, or there is no call.
#[test]
fn names_of_arguments() {
    let of = |members: Vec<String>| {
        let text = format!("{{{}}}", members.join(","));
        super::keys(&serde_json::value::RawValue::from_string(text).unwrap())
    };
    let numbered = |count: usize| {
        (0..count)
            .map(|n| format!(r#""{n:04}":{{"deep":1}}"#))
            .collect()
    };
    assert_eq!(
        of(vec![r#""b":1"#.into(), r#""\u0061":2"#.into()]).unwrap(),
        json!(["a", "b"])
    );
    assert_eq!(of(numbered(1000)).unwrap().as_array().unwrap().len(), 1000);
    let long = |bytes: usize| vec![format!(r#""{}":1"#, "x".repeat(bytes))];
    assert!(of(long(32 << 10)).is_ok());
    for too_many in [numbered(1001), long((32 << 10) + 1)] {
        let Err(super::Error::Params { pointer, message }) = of(too_many) else {
            panic!("taken");
        };
        assert_eq!(pointer, "/args");
        assert!(
            message.contains("1000 names") && message.contains("one level down"),
            "{message}"
        );
    }
}

/// What is large is more than a quarter of this.
const TEXT_BYTES: usize = 1 << 20;

/// A large answer that is looked through and then written: the second time it waits for somebody else, who has one thread.
struct Waits {
    times: AtomicUsize,
    hears: Mutex<mpsc::Receiver<()>>,
}

impl Serialize for Waits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.times.fetch_add(1, Ordering::SeqCst) == 1 {
            let heard = self
                .hears
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_secs(30));
            heard.map_err(S::Error::custom)?;
        }
        "x".repeat(TEXT_BYTES).serialize(serializer)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn others_go_on_while_a_large_answer_is_written() {
    let (say, hears) = mpsc::channel();
    let written = tokio::spawn(async move {
        tokio::spawn(async move { say.send(()) });
        let answer = Waits {
            times: AtomicUsize::new(0),
            hears: Mutex::new(hears),
        };
        let room = 2 * TEXT_BYTES as u64;
        bounded(answer, &Space::unlimited(), room, "").await
    });
    let written = written.await.unwrap().unwrap();
    assert_eq!(written.get().len(), TEXT_BYTES + 2);
}
