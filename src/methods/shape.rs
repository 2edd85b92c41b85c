//! Shapes that parameters have and serde does not, and what is said of those that do not fit.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A structure inside the parameters. serde would also take an array for it; the protocol takes an object.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Members(PhantomData))
    }
}

/// The first items of a list, at most one more than `MAX`: so much says that there are too many, and a body of commas does not
/// become a hundred times as much memory before somebody counts.
#[derive(Debug)]
pub(super) struct First<T, const MAX: usize>(pub(super) Vec<T>);

impl<T, const MAX: usize> Default for First<T, MAX> {
    fn default() -> Self {
        First(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for First<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
            type Value = First<T, MAX>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut first = Vec::new();
                while first.len() <= MAX {
                    match seq.next_element()? {
                        Some(item) => first.push(item),
                        None => return Ok(First(first)),
                    }
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

/// serde names Rust's types; who reads this has sent JSON, and knows no u64.
pub(super) fn in_words_of_json(message: &str) -> String {
    let (found, expected) = message.rsplit_once(", expected ").unwrap_or((message, ""));
    let found = match found {
        "invalid type: map" => "invalid type: object",
        "invalid type: sequence" => "invalid type: array",
        other => other,
    };
    let found = found.replacen("unknown variant", "unknown value", 1);
    match expected {
        "" => found,
        "u32" | "u64" => format!("{found}, expected a whole number, not below 0"),
        "a sequence" => format!("{found}, expected an array"),
        other => format!("{found}, expected {other}"),
    }
}
