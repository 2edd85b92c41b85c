//! Another reading of what a run says, to compare with: all at once, and its JSON member by member.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::super::fake::{BLOB, BLOB_BYTES};
use super::super::super::*;

/// The members of an object in their order, twice where they are there twice.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(All)
    }
}

impl<'a> Members<'a> {
    fn of(payload: &'a [u8]) -> Option<Self> {
        serde_json::from_str(std::str::from_utf8(payload).ok()?).ok()
    }

    /// `None` breaks a rule: it is there twice, or not of its type. `Some(None)`: it is not there.
    fn may_have<T: Deserialize<'a>>(&self, name: &str) -> Option<Option<T>> {
        let mut found = self.0.iter().filter(|(member, _)| member == name);
        let Some((_, value)) = found.next() else {
            return Some(None);
        };
        let value = serde_json::from_str(value.get()).ok()?;
        found.next().is_none().then_some(Some(value))
    }

    fn has<T: Deserialize<'a>>(&self, name: &str) -> Option<T> {
        self.may_have(name)?
    }
}

/// A result, as text to compare.
pub(super) type Told = (
    String,
    Option<String>,
    bool,
    Option<String>,
    Option<(String, String)>,
);

fn told(payload: &[u8]) -> Option<Told> {
    let members = Members::of(payload)?;
    let status: String = members.has("status")?;
    if !["completed", "failed"].contains(&&*status) {
        return None;
    }
    let output: Option<Option<&RawValue>> = members.may_have("output")?;
    let error = match members.may_have::<Option<Members<'_>>>("error")?.flatten() {
        Some(error) => Some((error.has("type")?, error.has("message")?)),
        None => None,
    };
    Some((
        status,
        output.flatten().map(|output| output.get().to_owned()),
        members.may_have("spilled")?.unwrap_or_default(),
        members.may_have("summary")?.flatten(),
        error,
    ))
}

pub(super) fn told_by(result: &GuestResult) -> Told {
    let status = match result.status {
        Status::Completed => "completed",
        Status::Failed => "failed",
    };
    (
        status.to_owned(),
        result.output.as_ref().map(|o| o.get().to_owned()),
        result.spilled,
        result.summary.clone(),
        result
            .error
            .as_ref()
            .map(|Object(e)| (e.kind.clone(), e.message.clone())),
    )
}

/// How a run's end comes to who serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// It hears each answer before it says more, and waits.
    Waits,
    /// It has said everything and is not there any more when it is first listened to.
    Leaves,
    /// It was ended before it was listened to.
    IsEnded,
}

/// What must come of a run's words.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Expected {
    pub(super) asked: usize,
    pub(super) answers: Vec<(char, String)>,
    pub(super) made: Vec<(String, String, Vec<u8>)>,
    pub(super) result: Option<Told>,
    pub(super) broken: bool,
}

/// What the rules make of it.
#[derive(Default)]
pub(super) struct Model {
    expected: Expected,
    writers: BTreeMap<i64, (String, Vec<u8>)>,
    last_writer: i64,
}

impl Model {
    pub(super) fn of(mut bytes: &[u8], ends: Ends) -> Expected {
        let mut model = Model::default();
        // That it has left is seen when the first answer is sent.
        let mut seems_there = true;
        while bytes.len() >= 4 && !model.expected.broken && model.expected.result.is_none() {
            let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
            if length == 0 || length > FRAME_BYTES_MAX {
                model.expected.broken = true;
                break;
            }
            if bytes.len() < 4 + length {
                break;
            }
            let (kind, payload) = (bytes[4], &bytes[5..4 + length]);
            bytes = &bytes[4 + length..];
            let served = match (kind, ends) {
                (b'R', _) => {
                    model.expected.result = told(payload);
                    model.expected.result.is_some().then_some(None)
                }
                (b'C' | b'W' | b'F' | b'G', Ends::IsEnded) => Some(None),
                (b'G', Ends::Leaves) if !seems_there => Some(None),
                _ => model.serve(kind, payload).map(Some),
            };
            match served {
                None => model.expected.broken = true,
                Some(Some(answer)) if ends == Ends::Waits => model.expected.answers.push(answer),
                Some(answer) => seems_there &= answer.is_none(),
            }
        }
        model.expected
    }

    /// The answer; `None` breaks a rule.
    fn serve(&mut self, kind: u8, payload: &[u8]) -> Option<(char, String)> {
        let done = match kind {
            b'C' => {
                let kind: String = Members::of(payload)?.has("kind")?;
                self.create(kind)
            }
            b'W' => {
                let writer = u64::from_le_bytes(payload.get(..8)?.try_into().ok()?);
                self.write(writer, &payload[8..])
            }
            b'F' => {
                let members = Members::of(payload)?;
                self.finish(members.has("writer")?, members.has("commit")?)
            }
            b'G' => {
                let members = Members::of(payload)?;
                let (id, offset, len) = (
                    members.has("id")?,
                    members.has("offset")?,
                    members.has("len")?,
                );
                match self.get(id, offset, len) {
                    Ok(data) => return Some(('D', data.escape_ascii().to_string())),
                    Err(word) => Err(word),
                }
            }
            _ => return None,
        };
        Some(match done {
            Ok(value) => ('O', value.to_string()),
            Err(word) => ('E', word.to_owned()),
        })
    }

    fn create(&mut self, kind: String) -> Result<Value, &'static str> {
        if kind.len() > 255 {
            return Err("invalid");
        }
        if self.writers.len() == 16 {
            return Err("too_many");
        }
        self.expected.asked += 1;
        self.last_writer += 1;
        self.writers.insert(self.last_writer, (kind, Vec::new()));
        Ok(serde_json::json!({ "writer": self.last_writer }))
    }

    fn write(&mut self, writer: u64, data: &[u8]) -> Result<Value, &'static str> {
        let writer = i64::try_from(writer).map_err(|_| "invalid")?;
        let (_, content) = self.writers.get_mut(&writer).ok_or("invalid")?;
        if data.len() > 1 << 20 {
            return Err("invalid");
        }
        self.expected.asked += 1;
        content.extend_from_slice(data);
        Ok(serde_json::json!({}))
    }

    fn finish(&mut self, writer: i64, commit: bool) -> Result<Value, &'static str> {
        let (kind, content) = self.writers.remove(&writer).ok_or("invalid")?;
        self.expected.asked += 1;
        let id = commit.then(|| format!("blob:made-{}", self.expected.made.len() + 1));
        if let Some(id) = &id {
            self.expected.made.push((id.clone(), kind, content));
        }
        Ok(serde_json::json!({ "id": id }))
    }

    fn get(&mut self, id: String, offset: u64, len: u64) -> Result<Vec<u8>, &'static str> {
        if len > 1 << 20 || id.len() > 255 {
            return Err("invalid");
        }
        let made = self.expected.made.iter().find(|made| made.0 == id);
        let content = match made {
            Some((_, _, content)) => content.clone(),
            None if id == BLOB => BLOB_BYTES.to_vec(),
            None => return Err("not_found"),
        };
        self.expected.asked += 1;
        let bytes = content
            .into_iter()
            .skip(offset.try_into().unwrap_or(usize::MAX));
        Ok(bytes.take(len as usize).collect())
    }
}
