//! Walks JSON text without building it, and refuses what two readers could read differently.
//!
//! A tree of `serde_json::Value` takes up to a hundred times the text's memory; this walk keeps the member names of
//! the objects on the current path and nothing else.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Why a text was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Not JSON that everybody reads alike: syntax, a lone surrogate, nesting deeper than 128 levels.
    Syntax(String),
    /// JSON, but not to be taken: a member name twice in one object, one that [`RESERVED`] begins, a number that no double can
    /// hold.
    Content(String),
}

impl Refused {
    /// What is wrong, and where.
    pub(crate) fn why(self) -> String {
        match self {
            Refused::Syntax(why) | Refused::Content(why) => why,
        }
    }
}

/// What serde_json's own names begin with, by which it passes on numbers and texts that are to be read as they are. A reader
/// that knows one of them (regorus does) reads an object of the caller's that has it as something else, or not at all: rules
/// would see other arguments than the code that they are about.
const RESERVED: &str = "$serde_json::private::";

/// Checks a whole JSON text.
///
/// # Errors
/// [`Refused`], with the place in the message.
pub(crate) fn walk(text: &str) -> Result<(), Refused> {
    let mut reader = serde_json::Deserializer::from_str(text);
    Walk.deserialize(&mut reader)
        .and_then(|()| reader.end())
        .map_err(|error| {
            let message = in_plain_words(error.to_string());
            // serde_json gives its error codes no names; a unit test below holds these words to its wording.
            if error.is_data() || message.starts_with("number out of range") {
                Refused::Content(message)
            } else {
                Refused::Syntax(message)
            }
        })
}

/// serde_json has two texts for one mistake, and neither says what it is.
fn in_plain_words(message: String) -> String {
    for theirs in [
        "lone leading surrogate in hex escape",
        "unexpected end of hex escape",
    ] {
        if let Some(place) = message.strip_prefix(theirs) {
            return format!("half of a surrogate pair, which is no character{place}");
        }
    }
    message
}

/// A message of serde_json's without the place at its end, where that says nothing to whoever reads it.
pub(crate) fn without_place(message: &str) -> &str {
    message
        .rsplit_once(" at line ")
        .map_or(message, |(message, _)| message)
}

struct Walk;

impl<'de> DeserializeSeed<'de> for Walk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Walk)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names: HashSet<Cow<'de, str>> = HashSet::new();
        while let Some(Name(name)) = map.next_key()? {
            if names.contains(&name) {
                return Err(de::Error::custom(format_args!(
                    "member {:?} is there twice in one object",
                    short(&name)
                )));
            }
            if name.starts_with(RESERVED) {
                return Err(de::Error::custom(format_args!(
                    "member {:?} has a name that is reserved",
                    short(&name)
                )));
            }
            names.insert(name);
            map.next_value_seed(Walk)?;
        }
        Ok(())
    }
}

/// The first number of a JSON text that is written as an integer and that 64 bits do not hold: serde_json, and so the rules'
/// engine, makes a double of it and rounds it, where Python and others have the digits. Numbers with a point or an exponent are
/// doubles to all of them.
pub(crate) fn rounded_integer(text: &str) -> Option<&str> {
    let (mut in_text, mut is_escaped) = (false, false);
    let outside = |c: char| {
        let is_outside = !in_text && c != '"';
        (in_text, is_escaped) = match in_text {
            true => (is_escaped || c != '"', !is_escaped && c == '\\'),
            false => (c == '"', false),
        };
        !is_outside
            || matches!(
                c,
                '[' | ']' | '{' | '}' | ',' | ':' | ' ' | '\t' | '\r' | '\n'
            )
    };
    let is_rounded = |number: &&str| {
        let is_integer = number.bytes().all(|b| b == b'-' || b.is_ascii_digit());
        let is_held = number.parse::<u64>().is_ok() || number.parse::<i64>().is_ok();
        is_integer && !number.is_empty() && !is_held
    };
    text.split(outside).find(is_rounded)
}

/// A JSON text with a line for each value, for people. Nothing else is changed: names stay in their order, and numbers keep their
/// digits, which a tree of values would not do.
pub(crate) fn indented(text: &str) -> String {
    let new_line = |out: &mut String, depth| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    let mut out = String::with_capacity(2 * text.len());
    let (mut depth, mut is_opened, mut in_text, mut is_escaped) = (0_usize, false, false, false);
    for c in text.chars() {
        if in_text {
            out.push(c);
            (in_text, is_escaped) = (is_escaped || c != '"', !is_escaped && c == '\\');
            continue;
        }
        let closes = matches!(c, '}' | ']');
        match c {
            ' ' | '\t' | '\r' | '\n' => continue,
            _ if closes => depth = depth.saturating_sub(1),
            _ => {}
        }
        // `{}` and `[]` stay together.
        if is_opened != closes {
            new_line(&mut out, depth);
        }
        out.push(c);
        is_opened = matches!(c, '{' | '[');
        match c {
            '{' | '[' => depth += 1,
            ',' => new_line(&mut out, depth),
            ':' => out.push(' '),
            _ => in_text = c == '"',
        }
    }
    out
}

/// At most 64 characters of a caller's word, for a message.
pub(crate) fn short(text: &str) -> String {
    cut(text, 64).into_owned()
}

/// The sign that there is more.
pub(crate) const CUT: char = '…';

/// At most so many characters of a caller's word, and [`CUT`] where there are more.
pub(crate) fn cut(text: &str, chars_max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars_max) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}{CUT}", &text[..end])),
    }
}

/// A member name, borrowed where the text has it without escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> de::Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrow;
        impl<'de> Visitor<'de> for Borrow {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member name")
            }
            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }
            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(Borrow)
    }
}

#[cfg(test)]
mod tests {
    use super::{Refused, cut, indented, rounded_integer, walk};

    #[test]
    fn is_indented_as_serde_does_it_and_keeps_what_is_written() {
        let text = r#"{"z":[1,{"b":[],"a":{}},"{,:}\\"],"a":{"\"[":[[]]},"ä":null}"#;
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        let sorted = value.to_string();
        let expected = serde_json::to_string_pretty(&value).unwrap();
        assert_eq!(indented(&sorted), expected);
        assert_eq!(indented(&expected), expected);
        for scalar in ["1", "\"x\"", "{}", "[]"] {
            assert_eq!(indented(scalar), scalar);
        }
        let exact = "[\n  12345678901234567890123,\n  1.50\n]";
        assert_eq!(indented("[12345678901234567890123 , 1.50]"), exact);
    }

    #[test]
    fn integers_that_are_rounded_are_found() {
        for (text, found) in [
            ("18446744073709551615", None),
            ("18446744073709551616", Some("18446744073709551616")),
            ("[-9223372036854775808,0,-0]", None),
            ("[1, -9223372036854775809 ]", Some("-9223372036854775809")),
            (
                r#"{"a\"":[{"b":123456789012345678901}]}"#,
                Some("123456789012345678901"),
            ),
            (
                r#"{"123456789012345678901":"\\","x":["123456789012345678901","\"123456789012345678901"]}"#,
                None,
            ),
            (r#"["1, 123456789012345678901 ,2"]"#, None),
            (
                "[1e30,123456789012345678901.0,12345678901234567890E1,true,null]",
                None,
            ),
        ] {
            assert_eq!(walk(text), Ok(()), "{text}");
            assert_eq!(rounded_integer(text), found, "{text}");
        }
    }

    #[test]
    fn what_is_cut_shows_it() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöü", 2), "äö…");
        assert_eq!(cut("", 0), "");
    }

    #[test]
    fn takes_plain_json() {
        for text in [
            "{}",
            "[]",
            "null",
            r#"{"a":[1,2.5,"x",null,true,{"b":"\ud83d\ude00"}]}"#,
            "-0",
            "1e308",
        ] {
            assert_eq!(walk(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn refuses_what_readers_read_differently() {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        let very_deep = "[".repeat(1_000_000);
        for text in [
            "",
            "{",
            "nul",
            "[1,]",
            r#""\ud800""#,
            "{\"a\":1}x",
            &deep,
            &very_deep,
            "\u{feff}{}",
        ] {
            assert!(
                matches!(walk(text), Err(Refused::Syntax(_))),
                "{:?}",
                &text[..text.len().min(40)]
            );
        }
        for text in [
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"x":[{"y":{"b":1,"b":1}}]}"#,
            r#"{"a":{"$serde_json::private::Number":"1"}}"#,
            r#"[{"b":1,"\u0024serde_json::private::RawValue":"{}"}]"#,
            "1e400",
            "[-1e999]",
        ] {
            assert!(matches!(walk(text), Err(Refused::Content(_))), "{text}");
        }
    }

    #[test]
    fn half_of_a_surrogate_pair_is_called_that() {
        for text in [
            r#""\ud800""#,
            r#""\udc00x""#,
            r#""\ud800\n""#,
            r#""\ud800\ud800""#,
            r#"{"\ud83dx":1}"#,
        ] {
            let why = walk(text).unwrap_err().why();
            let said = "half of a surrogate pair, which is no character";
            assert!(why.starts_with(said), "{text}: {why}");
            assert!(why.contains(" at line 1 column "), "{text}: {why}");
        }
    }
}
