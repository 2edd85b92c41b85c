//! Shapes that parameters have and serde does not, and what is said of those that do not fit.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
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

/// A number of things. JSON Schema's integer, which `/tools` promises, is any number without a fraction: a client that has
/// doubles alone writes 3 as 3.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole(pub(super) u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The doubles below are the whole numbers that they are written as; from here on some are left out, and read as this one.
        const EXACT_BELOW: f64 = (1_u64 << 53) as f64;
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Whole;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, not below 0")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Whole, E> {
                Ok(Whole(number))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Whole, E> {
                let whole = u64::try_from(number).map(Whole);
                whole.map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Whole, E> {
                if number.fract() == 0.0 && (0.0..EXACT_BELOW).contains(&number) {
                    return Ok(Whole(number as u64));
                }
                Err(E::invalid_type(Unexpected::Float(number), &self))
            }
        }
        deserializer.deserialize_u64(Number)
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

/// What a method's schema says of the parameter at `pointer`, to put behind a message: its description, and the members of
/// the objects of which it is a list. Empty where it says nothing.
pub(super) fn meaning(schema: &str, pointer: &str) -> String {
    let whole = super::discover::schema(schema);
    let mut found = &whole;
    for name in pointer.split('/').skip(1) {
        found = match name.parse::<usize>() {
            // What a list has of a simple type is said of the list.
            Ok(_)
                if found["items"]["description"].is_null()
                    && found["items"]["properties"].is_null() =>
            {
                found
            }
            Ok(_) => &found["items"],
            Err(_) => &found["properties"][name],
        };
    }
    let mut text = String::new();
    if let Some(description) = found["description"].as_str() {
        text = format!("; it is: {description}");
        if let Some(members) = found["items"]["properties"].as_object() {
            let names: Vec<String> = members.keys().map(|name| format!("`{name}`")).collect();
            text += &format!(", as objects with {}", names.join(", "));
        }
    }
    text
}

/// Where a parameter goes that is not known at `pointer`, at the top: into an object beside it, if that has one of the name.
pub(super) fn elsewhere(schema: &str, pointer: &str) -> String {
    let name = pointer.trim_start_matches('/');
    let whole = super::discover::schema(schema);
    let mut objects = whole["properties"].as_object().into_iter().flatten();
    let outer = objects.find(|(_, object)| !object["properties"][name].is_null());
    outer.map_or_else(String::new, |(outer, _)| {
        format!("; it goes into `{outer}`: {{\"{outer}\": {{\"{name}\": ...}}}}")
    })
}

/// serde has its own names for what JSON calls an object and an array.
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
        "a sequence" => format!("{found}, expected an array"),
        other => format!("{found}, expected {other}"),
    }
}
