//! A JSON-RPC 2.0 body, taken apart without reading what is inside `params`.

use std::fmt;

use bytes::Bytes;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::json::{short, without_place};

/// Longest `id` that is echoed, in bytes of its JSON text.
const ID_BYTES_MAX: usize = 256;
/// Longest method name that is looked at, in bytes of its JSON text.
const METHOD_BYTES_MAX: usize = 128;
/// Most members of a request object that JSON-RPC does not know: each is kept, to see that none is there twice.
const OTHER_MEMBERS_MAX: usize = 32;

/// One request object that has the right form.
#[derive(Debug)]
pub(super) struct Envelope {
    /// The exact text of the id; `None` for a notification.
    pub(super) id: Option<String>,
    /// The method's name.
    pub(super) method: String,
    /// The text of the parameters, JSON and UTF-8: a part of the body; `None` when absent.
    pub(super) params: Option<Bytes>,
}

/// Why a request object was refused; the id is echoed where it could be read.
#[derive(Debug)]
pub(super) struct NotARequest {
    /// The text of the id, when it was of a form that may be echoed.
    pub(super) id: Option<String>,
    /// What was wrong.
    pub(super) message: String,
}

/// What is in a body.
#[derive(Debug)]
pub(super) struct Opened {
    /// Whether the answer is an array too.
    pub(super) is_batch: bool,
    /// One, or those of the batch, which has at least one.
    pub(super) requests: Vec<Result<Envelope, NotARequest>>,
}

/// Why a body was refused as a whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadBody {
    /// Not JSON.
    Parse(String),
    /// An empty batch, or one with too many requests.
    Request(String),
}

/// Takes a body apart. It walks all of it twice: a large one is not for a thread that others need.
///
/// # Errors
/// [`BadBody`] when it is not JSON, an empty batch, or longer than `batch_max`.
pub(super) fn open(body: &Bytes, batch_max: usize) -> Result<Opened, BadBody> {
    let text = std::str::from_utf8(body)
        .map_err(|error| BadBody::Parse(format!("the body is not UTF-8: {error}")))?;
    let is_batch = text
        .trim_start_matches([' ', '\t', '\r', '\n'])
        .starts_with('[');
    let texts = if is_batch {
        let mut reader = serde_json::Deserializer::from_str(text);
        let items = reader
            .deserialize_seq(Items { max: batch_max })
            .and_then(|items| reader.end().map(|()| items))
            .map_err(|error| {
                if error.is_data() {
                    BadBody::Request(error.to_string())
                } else {
                    BadBody::Parse(error.to_string())
                }
            })?;
        if items.is_empty() {
            return Err(BadBody::Request("the batch is empty".into()));
        }
        items
    } else {
        let one = serde_json::from_str(text);
        vec![one.map_err(|error| BadBody::Parse(error.to_string()))?]
    };
    Ok(Opened {
        is_batch,
        requests: texts.into_iter().map(|text| read(text, body)).collect(),
    })
}

struct Items {
    max: usize,
}

impl<'de> Visitor<'de> for Items {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a batch")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            if items.len() == self.max {
                return Err(de::Error::custom(format_args!(
                    "the batch has more than {} requests (server.max_batch)",
                    self.max
                )));
            }
            items.push(item);
        }
        Ok(items)
    }
}

/// Reads one request object (JSON-RPC 2.0 section 4), which is a part of the body.
///
/// # Errors
/// [`NotARequest`], -32600: wrong version, no method, an id or parameters of the wrong type, a member twice.
fn read(raw: &RawValue, body: &Bytes) -> Result<Envelope, NotARequest> {
    let mut reader = serde_json::Deserializer::from_str(raw.get());
    let seen = reader
        .deserialize_map(Members)
        .map_err(|error| NotARequest {
            id: None,
            // Its place counts from where the request begins, which in a batch is anywhere.
            message: if error.is_data() {
                without_place(&error.to_string()).to_owned()
            } else {
                "a request is a JSON object".into()
            },
        })?;
    let id = match seen.id.map(check_id).transpose() {
        Ok(id) => id,
        Err(message) => return Err(NotARequest { id: None, message }),
    };
    let id = id.map(|raw| raw.get().to_owned());
    let refuse = |message: String| NotARequest {
        id: id.clone(),
        message,
    };
    match seen.version.map(|raw| raw.get()) {
        Some("\"2.0\"") => {}
        Some(_) => return Err(refuse("\"jsonrpc\" must be the string \"2.0\"".into())),
        None => return Err(refuse("\"jsonrpc\": \"2.0\" is missing".into())),
    }
    let Some(method) = seen.method else {
        return Err(refuse("\"method\" is missing".into()));
    };
    if method.get().len() > METHOD_BYTES_MAX {
        let message = format!("\"method\" is longer than {METHOD_BYTES_MAX} bytes");
        return Err(refuse(message));
    }
    let method: String = serde_json::from_str(method.get())
        .map_err(|_| refuse("\"method\" must be a string".into()))?;
    let params = match seen.params {
        None => None,
        Some(raw) => match raw.get().as_bytes().first() {
            Some(b'{') => Some(raw),
            // The protocol's parameters all have names (S): an array is well-formed JSON-RPC, but of no method here.
            Some(b'[') => Some(raw),
            Some(b'n') => None,
            _ => return Err(refuse("\"params\" must be an object".into())),
        },
    };
    Ok(Envelope {
        id,
        method,
        params: params.map(|raw| body.slice_ref(raw.get().as_bytes())),
    })
}

fn check_id(raw: &RawValue) -> Result<&RawValue, String> {
    let text = raw.get();
    if text.len() > ID_BYTES_MAX {
        return Err(format!("\"id\" is longer than {ID_BYTES_MAX} bytes"));
    }
    let whole = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'-')
    };
    match text.as_bytes().first() {
        // A string is echoed as it was written, but must be one that every reader can read.
        Some(b'"') if serde_json::from_str::<String>(text).is_ok() => Ok(raw),
        Some(b'n') => Ok(raw),
        Some(b'-' | b'0'..=b'9') if whole(text) => Ok(raw),
        _ => Err("\"id\" must be a string, a whole number or null".into()),
    }
}

#[derive(Default)]
struct Seen<'a> {
    version: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Seen<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Seen<'de>, A::Error> {
        let mut seen = Seen::default();
        let mut others = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let slot = match name.as_str() {
                "jsonrpc" => &mut seen.version,
                "id" => &mut seen.id,
                "method" => &mut seen.method,
                "params" => &mut seen.params,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    if others.contains(&name) {
                        return Err(de::Error::custom(format_args!(
                            "member {:?} is there twice",
                            short(&name)
                        )));
                    }
                    if others.len() == OTHER_MEMBERS_MAX {
                        return Err(de::Error::custom(format_args!(
                            "a request has more than {OTHER_MEMBERS_MAX} members beside jsonrpc, id, method and params"
                        )));
                    }
                    others.insert(name);
                    continue;
                }
            };
            if slot.is_some() {
                return Err(de::Error::custom(format_args!(
                    "member {name:?} is there twice"
                )));
            }
            *slot = Some(map.next_value()?);
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BadBody, Envelope, METHOD_BYTES_MAX, NotARequest, OTHER_MEMBERS_MAX, Opened, open,
    };
    use bytes::Bytes;

    fn split(text: &str) -> Result<Opened, BadBody> {
        open(&Bytes::copy_from_slice(text.as_bytes()), 3)
    }

    /// The first of a body.
    fn read(text: &str) -> Result<Envelope, NotARequest> {
        split(text).unwrap().requests.remove(0)
    }

    #[test]
    fn ids_are_echoed_as_written() {
        for id in [
            "\"1\"",
            "1",
            "-7",
            "null",
            "12345678901234567890",
            "\"\\u0041\"",
        ] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            assert_eq!(read(&text).unwrap().id.unwrap(), id);
        }
        let notification = read(r#"{"jsonrpc":"2.0","method":"m"}"#).unwrap();
        assert_eq!(notification.id, None);
    }

    #[test]
    fn parameters_are_a_part_of_the_body() {
        let text = r#"[{"jsonrpc":"2.0","method":"m","params": {"a": [1]}}, 7]"#;
        let body = Bytes::from_static(text.as_bytes());
        let opened = open(&body, 3).unwrap();
        assert!(opened.is_batch && opened.requests[1].is_err());
        let params = opened.requests[0].as_ref().unwrap().params.as_ref();
        let params = params.unwrap();
        assert_eq!(params, r#"{"a": [1]}"#);
        assert!(body.as_ptr_range().contains(&params.as_ptr()));
    }

    #[test]
    fn refused_requests_say_why() {
        let long = format!(
            r#"{{"jsonrpc":"2.0","id":"{}","method":"m"}}"#,
            "x".repeat(300)
        );
        let method = |bytes| "m".repeat(bytes);
        let named = |method: &str| format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
        let others = |count: usize| {
            let others: String = (0..count).map(|n| format!(r#","x{n}":1"#)).collect();
            format!(r#"{{"jsonrpc":"2.0","method":"m"{others}}}"#)
        };
        assert!(read(&named(&method(METHOD_BYTES_MAX - 2))).is_ok());
        assert!(read(&others(OTHER_MEMBERS_MAX)).is_ok());
        for (text, word) in [
            (named(&method(METHOD_BYTES_MAX - 1)).as_str(), "method"),
            (&others(OTHER_MEMBERS_MAX + 1), "more than 32"),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"m"}"#, "id"),
            (r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#, "id"),
            (r#"{"jsonrpc":"2.0","id":true,"method":"m"}"#, "id"),
            (r#"{"jsonrpc":"2.0","id":"\ud800","method":"m"}"#, "id"),
            (&long, "id"),
            (r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#, "jsonrpc"),
            (r#"{"id":1,"method":"m"}"#, "jsonrpc"),
            (r#"{"jsonrpc":"2.0","id":1}"#, "method"),
            (r#"{"jsonrpc":"2.0","id":1,"method":5}"#, "method"),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":3}"#,
                "params",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","method":"n"}"#,
                "twice",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","x":1,"x":2}"#,
                "twice",
            ),
            ("1", "object"),
            ("[[]]", "object"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.message.contains(word), "{text}: {}", error.message);
        }
        let error = read(r#"{"id":7,"method":"m"}"#).unwrap_err();
        assert_eq!(
            error.id.unwrap(),
            "7",
            "a readable id is echoed with the error"
        );
    }

    #[test]
    fn bodies() {
        for (text, form) in [(" {\"a\":1} ", (false, 1)), ("[1,2,3]", (true, 3))] {
            let opened = split(text).unwrap();
            assert_eq!((opened.is_batch, opened.requests.len()), form, "{text}");
        }
        assert!(matches!(split("[]"), Err(BadBody::Request(_))));
        assert!(
            matches!(split("[1,2,3,4]"), Err(BadBody::Request(message)) if message.contains("max_batch"))
        );
        let no_text = open(&Bytes::from_static(b"\"\xff\""), 3);
        assert!(matches!(no_text, Err(BadBody::Parse(message)) if message.contains("UTF-8")));
        for text in ["", "{", "[1,", "[1]x", "{} {}"] {
            assert!(matches!(split(text), Err(BadBody::Parse(_))), "{text}");
        }
        let deep = "[".repeat(200_000);
        assert!(matches!(split(&deep), Err(BadBody::Parse(_))));
    }
}
