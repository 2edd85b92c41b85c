//! JSON (and anything that serde can drive) into a `serde_json::Value`, strictly: no duplicate
//! member names, no numbers outside JSON, bounded nesting.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use thiserror::Error;

use crate::text::{one_line, quoted};

/// Why a text is not JSON that is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct JsonError {
    /// What was wrong.
    pub message: String,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
}

/// Parses one JSON text. Unlike `serde_json::Value` it refuses duplicate member names, since two
/// readers would see two different documents, and nesting beyond `depth_max` (a bare scalar is
/// depth 0).
pub fn parse(text: &str, depth_max: usize) -> Result<Value, JsonError> {
    let mut de = serde_json::Deserializer::from_str(text);
    Strict {
        depth_left: depth_max,
    }
    .deserialize(&mut de)
    .and_then(|value| de.end().map(|()| value))
    .map_err(|e| {
        let (line, column) = (e.line(), e.column());
        let message = one_line(&e.to_string());
        // serde_json appends the place, which we keep beside the text.
        let place = format!(" at line {line} column {column}");
        JsonError {
            message: message.strip_suffix(&place).unwrap_or(&message).to_owned(),
            line: crate::text::small(line),
            column: crate::text::small(column),
        }
    })
}

/// The seed that builds a value strictly, from any serde format.
#[derive(Clone, Copy)]
pub(crate) struct Strict {
    pub(crate) depth_left: usize,
}

impl Strict {
    fn below<E: serde::de::Error>(self) -> Result<Strict, E> {
        match self.depth_left.checked_sub(1) {
            Some(depth_left) => Ok(Strict { depth_left }),
            None => Err(E::custom("nested too deeply")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }
    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(Value::Number(n.into()))
    }
    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(Value::Number(n.into()))
    }
    fn visit_f64<E: serde::de::Error>(self, n: f64) -> Result<Value, E> {
        Number::from_f64(n).map(Value::Number).ok_or_else(|| {
            E::custom("a number that is infinite or not a number has no place in JSON")
        })
    }
    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }
    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(below)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut members = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            // Before the value is read: a repeated name costs nothing more.
            if members.contains_key(&key) {
                return Err(A::Error::custom(format!("duplicate key {}", quoted(&key))));
            }
            let value = map.next_value_seed(below)?;
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict() {
        for (text, want) in [
            ("{}", true),
            ("null", true),
            ("[[1]]", true),
            (r#"{"a":1,"b":{"a":1}}"#, true),
            (" [1.5e3, -0, \"\\u00e9\"] ", true),
            ("\"\\ud83d\\ude00\"", true),
            (r#"{"a":1,"a":1}"#, false),
            (r#"{"a":1,"\u0061":2}"#, false),
            (r#"[{"x":{"a":1,"a":1}}]"#, false),
            ("[[[1]]]", true),
            ("[[[[1]]]]", false),
            (r#"{"a":{"a":{"a":{}}}}"#, false),
            ("1e400", false),
            ("NaN", false),
            ("", false),
            ("{} {}", false),
            ("\"\\ud800\"", false),
            ("{a:1}", false),
        ] {
            assert_eq!(parse(text, 3).is_ok(), want, "{text}");
        }
        let e = parse("{\n \"a\":1,\n \"a\":2}", 3).unwrap_err();
        assert_eq!((e.line, e.message.as_str()), (3, "duplicate key \"a\""));
        assert!(
            parse(&"[".repeat(100_000), 1_000_000).is_err(),
            "the parser's own limit on nesting holds"
        );
    }
}
