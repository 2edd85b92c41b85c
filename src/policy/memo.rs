//! What was decided in this second: the same question has the same answer.
//!
//! A decision is a function of the rules and of the input document, since no rule can ask for the time, for chance or for
//! the network (see `trial`). A caller that repeats a call changes one member of that document, `request.id`. Where no
//! rule can see that one, a question that equals the last one of its place is not put to the rules again.
//!
//! This is no cache with a lifetime, and it hides nothing that was revoked: the document holds the second, whoever asks with
//! all claims, the address, and the skill with its digest; and the memo goes with its set of rules. What follows from a
//! decision (narrowing, the second opinion, the record) is made for every call.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};

use regorus::Value;

use super::Facts;
use super::bundle::Module;
use super::decision::Decision;

/// Questions that are kept; a new one takes the place of whichever had it.
const PLACES: usize = 256;
/// Bytes of text in the members of `request` of a question that is kept.
const REQUEST_BYTES_MAX: usize = 1024;

/// The decisions of one set of rules.
pub(super) struct Memo {
    /// Empty where the rules may see the id.
    places: Box<[Mutex<Option<Kept>>]>,
    hasher: RandomState,
}

struct Kept {
    /// The document without the id.
    question: Value,
    said: Said,
}

/// What the rules said, and what was read in it.
#[derive(Clone)]
pub(super) struct Said {
    pub(super) raw: Value,
    pub(super) decision: Decision,
}

/// Where a question is kept.
#[derive(Clone, Copy)]
pub(super) struct Place(usize);

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memo")
            .field("places", &self.places.len())
            .finish_non_exhaustive()
    }
}

impl Memo {
    /// For rules that may see the id, or not ([`may_see_id`]).
    pub(super) fn new(may_see_id: bool) -> Self {
        let places = if may_see_id { 0 } else { PLACES };
        Memo {
            places: (0..places).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Where the question of these facts would be; nowhere, if it is not for keeping: too large, or never the same again.
    /// Nobody asks here about arguments.
    pub(super) fn place(&self, facts: &Facts) -> Option<Place> {
        let is_small = facts.skills.len() <= 1 && facts.blobs.len() <= 1;
        let text: usize = facts
            .request
            .iter()
            .map(|(name, value)| name.len() + text_bytes(value))
            .sum();
        if self.places.is_empty() || !is_small || facts.publishes || text > REQUEST_BYTES_MAX {
            return None;
        }
        let subject = facts.caller.subject();
        let skill = facts.skills.first().map(|skill| skill.digest());
        let about = (facts.method, &subject.tenant, &subject.id, skill);
        let hash = self.hasher.hash_one(about);
        Some(Place(usize::try_from(hash).unwrap_or(usize::MAX) % PLACES))
    }

    /// What the rules said to this very question.
    pub(super) fn recall(&self, place: Place, question: &Value) -> Option<Said> {
        let kept = self.places[place.0]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let kept = kept.as_ref().filter(|kept| kept.question == *question)?;
        Some(kept.said.clone())
    }

    /// Keeps what they said.
    pub(super) fn keep(&self, place: Place, question: Value, said: Said) {
        let mut kept = self.places[place.0]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *kept = Some(Kept { question, said });
    }
}

fn text_bytes(value: &serde_json::Value) -> usize {
    use serde_json::Value as Json;
    match value {
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(|item| 32 + text_bytes(item)).sum(),
        Json::Object(members) => members
            .iter()
            .map(|(name, value)| 64 + name.len() + text_bytes(value))
            .sum(),
    }
}

/// Whether rules of these files may see `input.request.id`: careful and not clever. Every word `input` must be followed by a
/// member that is not `request`, or by `.request` and a member that is not `id`.
pub(super) fn may_see_id<'m>(modules: impl IntoIterator<Item = &'m Module>) -> bool {
    modules.into_iter().any(|module| {
        let Some(code) = bare_code(&module.text) else {
            return true;
        };
        code.match_indices("input").any(|(at, word)| {
            let (before, after) = (&code[..at], &code[at + word.len()..]);
            let is_word = !before.ends_with(is_of_a_name) && !after.starts_with(is_of_a_name);
            is_word && !leads_elsewhere(after)
        })
    })
}

/// Whether what follows `input` names something in which there is no id.
fn leads_elsewhere(after_input: &str) -> bool {
    match member(after_input) {
        None => false,
        Some(("request", after)) => member(after).is_some_and(|(name, _)| name != "id"),
        Some(_) => true,
    }
}

/// `.name`, and what follows.
fn member(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('.')?;
    let end = text.find(|c| !is_of_a_name(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The code without its comments and without what stands in its texts. None where a text may have code in it (`$"{...}"`).
fn bare_code(code: &str) -> Option<String> {
    let mut bare = String::with_capacity(code.len());
    let mut quote = None;
    let mut chars = code.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, '$') => return None,
            // The end of its line stays.
            (None, '#') => bare.extend(chars.by_ref().find(|c| *c == '\n')),
            (None, '"' | '`') => {
                quote = Some(c);
                bare.push(c);
            }
            (None, c) => bare.push(c),
            (Some('"'), '\\') => {
                chars.next();
            }
            (Some(open), c) if open == c => {
                quote = None;
                bare.push(c);
            }
            (Some(_), _) => {}
        }
    }
    Some(bare)
}
