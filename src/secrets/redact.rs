//! Finds the values of a run's secrets, in all their forms, in what the run says, and puts `[secret NAME]` there.
//!
//! One automaton for all forms (Aho and Corasick 1975): every byte is looked at once, whatever it is, so the time is
//! linear in the text. Overlapping finds become one. What is looked at in pieces is held back only as far as it could be
//! the beginning of a form, so that a value across pieces is found as well.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::noncontiguous::NFA;
use aho_corasick::{Anchored, MatchKind};
use zeroize::Zeroizing;

use super::forms::forms;

/// A piece of a form at a place where a text was cut counts from so many bytes on. Fewer say too little of a secret, and
/// are too often something else.
const PIECE_BYTES_MIN: usize = 4;
/// Marks of one kind of cuts in a text behind which ends of forms are looked for. Our own sandbox makes three at most.
const CUTS_MAX: usize = 4;
/// Ends of lines behind the last line of a key, at most, as a form has them: `\\r\\n` is JSON twice.
const LINE_END_BYTES_MAX: usize = 8;
/// What stands where a text was cut, by the sandbox or by us: the beginning of a form may be before it.
const CUT_BEFORE: [&str; 3] = ["…", " ... [", "\n... ["];
/// And the end of a form may be behind these.
const CUT_BEHIND: [&str; 2] = ["] ... ", "] ...\n"];

/// The automaton of some secrets.
pub struct Redactor {
    automaton: NFA,
    start: StateID,
    /// What each state stands for, by its number: looked up, since who has a secret can write its beginning at very many cuts.
    begun: Vec<Begun>,
    forms: Vec<Form>,
}

/// The beginning of a form: how long it is, and of which.
#[derive(Clone, Copy, Default)]
struct Begun {
    bytes: u32,
    form: u32,
}

struct Form {
    bytes: Zeroizing<Vec<u8>>,
    /// What is put in its place.
    mark: Arc<str>,
    /// How much of its beginning, and of its end, is in every key: no piece of it tells anything.
    in_all: (usize, usize),
}

impl Form {
    fn has_in_the_middle(&self, piece: &[u8]) -> bool {
        let (begin, end) = self.in_all;
        let own = self.bytes.len().checked_sub(end);
        let own = own.and_then(|own| self.bytes.get(begin..own));
        let texts = (own.map(str::from_utf8), str::from_utf8(piece));
        let (Some(Ok(own)), Ok(piece)) = texts else {
            return false;
        };
        piece.len() >= PIECE_BYTES_MIN && own.contains(piece)
    }
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

/// What cannot be looked for.
#[derive(Debug, thiserror::Error)]
#[error("the values are too many or too long to be looked for")]
pub struct TooMany;

impl Redactor {
    /// Of these values, by name.
    ///
    /// # Errors
    /// [`TooMany`]; within the limits of this module's parent it does not happen.
    pub fn new<'a>(values: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, TooMany> {
        let mut all = Vec::new();
        for (name, value) in values {
            let mark: Arc<str> = format!("[secret {name}]").into();
            all.extend(forms(value).into_iter().map(|bytes| Form {
                in_all: armor(&bytes),
                bytes,
                mark: mark.clone(),
            }));
        }
        let automaton = NFA::builder()
            // All that end at a byte, so that of two that overlap both are covered.
            .match_kind(MatchKind::Standard)
            .prefilter(false)
            .build(all.iter().map(|form| form.bytes.as_slice()))
            .map_err(|_| TooMany)?;
        let start = automaton.start_state(Anchored::No).map_err(|_| TooMany)?;
        let mut begun = vec![Begun::default(); 1];
        for (form, of) in (0..).zip(&all) {
            let mut state = start;
            for (bytes, byte) in (1..).zip(of.bytes.iter()) {
                // The beginning of a form is the longest one that ends here, so this is what that state stands for.
                state = automaton.next_state(Anchored::No, state, *byte);
                if begun.len() <= state.as_usize() {
                    begun.resize(state.as_usize() + 1, Begun::default());
                }
                let known = &mut begun[state.as_usize()];
                // Of several with the same beginning the first.
                if known.bytes == 0 {
                    *known = Begun { bytes, form };
                }
            }
        }
        Ok(Redactor {
            automaton,
            start,
            begun,
            forms: all,
        })
    }

    /// A whole text. What stands at a place where it was cut is covered from a few bytes on.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut cuts: Vec<usize> = CUT_BEFORE
            .iter()
            .flat_map(|mark| text.match_indices(mark))
            .map(|(at, _)| at)
            .collect();
        cuts.push(text.len());
        cuts.sort_unstable();
        let mut finds = self.finds(text.as_bytes(), &cuts);
        finds.extend(self.ends_of_forms(text));
        self.replaced(text, finds)
    }

    /// A whole text that nobody has cut, such as a name.
    pub fn uncut<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.replaced(text, self.finds(text.as_bytes(), &[]))
    }

    fn replaced<'a>(&self, text: &'a str, finds: Vec<Find>) -> Cow<'a, str> {
        if finds.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut out = Vec::with_capacity(text.len());
        let mut from = 0;
        for find in united(finds) {
            // What was found begins and ends with characters of a text; a piece of one may not.
            let start = text.floor_char_boundary(find.place.start);
            out.extend_from_slice(&text.as_bytes()[from.min(start)..start]);
            out.extend_from_slice(self.mark(&find).as_bytes());
            from = text.ceil_char_boundary(find.place.end);
        }
        out.extend_from_slice(&text.as_bytes()[from..]);
        Cow::Owned(String::from_utf8_lossy(&out).into_owned())
    }

    /// Whether any form is in it.
    pub fn is_in(&self, text: &str) -> bool {
        !self.finds(text.as_bytes(), &[]).is_empty()
    }

    /// Before the first byte of a text.
    pub(super) fn start(&self) -> StateID {
        self.start
    }

    /// After one byte more, and whether a form ends with it.
    pub(super) fn step(&self, state: StateID, byte: u8) -> (StateID, bool) {
        let next = self.automaton.next_state(Anchored::No, state, byte);
        (next, self.automaton.is_match(next))
    }

    /// What to put where something was found first in a text; for what can only be replaced as a whole.
    pub(super) fn first_mark(&self, text: &str) -> Option<&str> {
        let finds = self.finds(text.as_bytes(), &[]);
        Some(&self.forms[finds.first()?.form].mark)
    }

    fn mark(&self, find: &Find) -> &str {
        &self.forms[find.form].mark
    }

    /// Every form, and the beginning of one where it ends at a cut. The cuts are in order.
    fn finds(&self, bytes: &[u8], cuts: &[usize]) -> Vec<Find> {
        let (mut state, mut finds, mut cuts) = (self.start, Vec::new(), cuts.iter().peekable());
        for (at, byte) in bytes.iter().enumerate() {
            state = self.automaton.next_state(Anchored::No, state, *byte);
            if let Some(form) = self.longest(state) {
                add(
                    &mut finds,
                    at + 1 - self.forms[form].bytes.len()..at + 1,
                    form,
                );
            }
            while cuts.next_if(|cut| **cut <= at + 1).is_some() {
                if let Some((piece, form)) = self.beginning(state, &bytes[..=at]) {
                    add(&mut finds, piece, form);
                }
            }
        }
        finds
    }

    /// The beginning of a form that a text ends in, where the automaton is in this state.
    fn beginning(&self, state: StateID, text: &[u8]) -> Option<(Range<usize>, usize)> {
        let Begun { bytes, form } = self.begun[state.as_usize()];
        let (bytes, form) = (bytes as usize, form as usize);
        let (in_all, _) = self.forms.get(form)?.in_all;
        (bytes >= in_all + PIECE_BYTES_MIN).then(|| (text.len() - bytes..text.len(), form))
    }

    /// The longest form that ends where the automaton is in this state: it covers the shorter ones.
    fn longest(&self, state: StateID) -> Option<usize> {
        if !self.automaton.is_match(state) {
            return None;
        }
        (0..self.automaton.match_len(state))
            .map(|nth| self.automaton.match_pattern(state, nth).as_usize())
            .max_by_key(|form| self.forms[*form].bytes.len())
    }

    /// The ends of forms behind a cut, at which a text begins, too; and what of the middle of one stands between two of them.
    fn ends_of_forms(&self, text: &str) -> Vec<Find> {
        let mut cuts = vec![0];
        for mark in CUT_BEHIND {
            let found = text.match_indices(mark).take(CUTS_MAX);
            cuts.extend(found.map(|(at, _)| at + mark.len()));
        }
        let mut finds = Vec::new();
        for cut in cuts {
            let behind = &text.as_bytes()[cut..];
            let Some(first) = behind.first_chunk::<PIECE_BYTES_MIN>() else {
                continue;
            };
            // Most forms have nowhere what it begins with.
            let may_end = |form: &Form| {
                let mut pieces = form.bytes.windows(PIECE_BYTES_MIN);
                pieces.any(|piece| piece == first)
            };
            let next = CUT_BEFORE.iter().filter_map(|mark| text[cut..].find(mark));
            let between = &behind[..next.min().unwrap_or(behind.len())];
            let forms = self.forms.iter().zip(0..);
            let ends = forms.filter(|(form, _)| may_end(form));
            let ends = ends.filter_map(|(form, at)| {
                if cut > 0 && form.has_in_the_middle(between) {
                    return Some((between.len(), at));
                }
                let (len, (_, in_all)) = (end_at(&form.bytes, behind), form.in_all);
                (len >= in_all + PIECE_BYTES_MIN).then_some((len, at))
            });
            if let Some((len, form)) = ends.max() {
                finds.push(Find {
                    place: cut..cut + len,
                    form,
                });
            }
        }
        finds
    }
}

/// The lines around a key (RFC 7468): how many bytes the one at the beginning has, and the one at the end with what follows.
/// Whoever draws a line of dashes writes pieces of them.
fn armor(form: &[u8]) -> (usize, usize) {
    const DASHES: &[u8] = b"-----";
    let line = |words: &[u8], from: &[u8]| -> Option<usize> {
        let label = from.strip_prefix(DASHES)?;
        let is_it = label.get(..words.len())?.eq_ignore_ascii_case(words);
        let end = label.iter().position(|byte| *byte == b'-')?;
        (is_it && label[end..].starts_with(DASHES)).then_some(2 * DASHES.len() + end)
    };
    let begin = line(b"BEGIN", form).unwrap_or_default();
    let last = (0..form.len()).rev().find_map(|at| {
        let line = line(b"END", &form[at..])?;
        Some((line, form.len() - at))
    });
    // Behind it an end of the line, written in some way.
    let end = last.filter(|(line, all)| all - line <= LINE_END_BYTES_MAX);
    (begin, end.map_or(0, |(_, all)| all))
}

/// How much of the end of `form` is what `text` begins with, the whole form not counted. Linear: the longest border of
/// what the text begins with and the form (Knuth, Morris and Pratt 1977).
fn end_at(form: &[u8], text: &[u8]) -> usize {
    let text = &text[..text.len().min(form.len().saturating_sub(1))];
    let mut borders = vec![0; text.len()];
    let mut border = 0;
    for at in 1..text.len() {
        while border > 0 && text[at] != text[border] {
            border = borders[border - 1];
        }
        border += usize::from(text[at] == text[border]);
        borders[at] = border;
    }
    let mut matched: usize = 0;
    for byte in form {
        while matched > 0 && (matched == text.len() || *byte != text[matched]) {
            matched = borders[matched - 1];
        }
        matched += usize::from(text.get(matched) == Some(byte));
    }
    matched
}

/// Something that was found.
#[derive(Debug, Clone)]
struct Find {
    place: Range<usize>,
    form: usize,
}

impl Find {
    /// Takes in another one that overlaps; the longer one names both.
    fn unite(&mut self, other: &Find) {
        if other.place.len() > self.place.len() {
            self.form = other.form;
        }
        self.place = self.place.start.min(other.place.start)..self.place.end.max(other.place.end);
    }

    fn meets(&self, other: &Find) -> bool {
        self.place.start < other.place.end && other.place.start < self.place.end
    }
}

/// Adds a find whose end is not before the end of any there.
fn add(finds: &mut Vec<Find>, place: Range<usize>, form: usize) {
    let mut new = Find { place, form };
    while finds.last().is_some_and(|last| last.meets(&new)) {
        if let Some(last) = finds.pop() {
            new.unite(&last);
        }
    }
    finds.push(new);
}

/// In order, none overlapping another.
fn united(mut finds: Vec<Find>) -> Vec<Find> {
    finds.sort_by_key(|find| find.place.start);
    let mut out: Vec<Find> = Vec::new();
    for find in finds {
        match out.last_mut() {
            Some(last) if last.meets(&find) => last.unite(&find),
            _ => out.push(find),
        }
    }
    out
}

/// A text that comes in pieces of any size, as bytes.
#[derive(Debug)]
pub(crate) struct Stream {
    redactor: Arc<Redactor>,
    state: StateID,
    /// Not passed on yet: it may be the beginning of a form. Between two pieces never longer than the longest form.
    held: Zeroizing<Vec<u8>>,
    /// In `held`.
    finds: Vec<Find>,
}

impl Stream {
    /// At the beginning of a text.
    pub(crate) fn new(redactor: Arc<Redactor>) -> Self {
        Stream {
            state: redactor.start,
            redactor,
            held: Zeroizing::default(),
            finds: Vec::new(),
        }
    }

    /// How much of what came is not passed on yet.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Takes the next piece and gives what is safe to `out`.
    pub(crate) fn push(&mut self, piece: &[u8], out: &mut impl FnMut(&[u8])) {
        self.make_room(piece.len());
        for byte in piece {
            let redactor = &self.redactor;
            self.state = redactor
                .automaton
                .next_state(Anchored::No, self.state, *byte);
            self.held.push(*byte);
            if let Some(form) = redactor.longest(self.state) {
                let end = self.held.len();
                add(
                    &mut self.finds,
                    end - redactor.forms[form].bytes.len()..end,
                    form,
                );
            }
        }
        let depth = self.redactor.begun[self.state.as_usize()].bytes as usize;
        let open = self.held.len() - depth;
        // A find that reaches into what is open may still grow.
        let growing = self.finds.iter().find(|find| find.place.end > open);
        let grows = growing.is_some();
        let safe = growing.map_or(open, |find| find.place.start.min(open));
        self.pass(safe, out);
        if grows {
            // What it has already is replaced whatever comes, so it need not be kept: a value that follows on itself
            // for megabytes takes no more room than once.
            self.drop_front(open - safe);
        }
    }

    /// Nothing follows. The beginning of a form at the end counts as a cut: the run may have been ended while it wrote.
    pub(crate) fn finish(&mut self, out: &mut impl FnMut(&[u8])) {
        if let Some((piece, form)) = self.redactor.beginning(self.state, &self.held) {
            add(&mut self.finds, piece, form);
        }
        self.pass(self.held.len(), out);
        self.state = self.redactor.start;
    }

    /// For so many bytes more. One that grows by itself moves away, and leaves behind what it had.
    fn make_room(&mut self, bytes: usize) {
        let wanted = self.held.len() + bytes;
        if wanted > self.held.capacity() {
            let room = wanted.max(2 * self.held.capacity());
            let mut held = Zeroizing::new(Vec::with_capacity(room));
            held.extend_from_slice(&self.held);
            self.held = held;
        }
    }

    /// Passes on what is before `safe`, where no find is cut.
    fn pass(&mut self, safe: usize, out: &mut impl FnMut(&[u8])) {
        let mut from = 0;
        for find in self.finds.extract_if(.., |find| find.place.end <= safe) {
            if from < find.place.start {
                out(&self.held[from..find.place.start]);
            }
            out(self.redactor.forms[find.form].mark.as_bytes());
            from = find.place.end;
        }
        if from < safe {
            out(&self.held[from..safe]);
        }
        self.drop_front(safe);
    }

    fn drop_front(&mut self, len: usize) {
        self.held.drain(..len);
        for find in &mut self.finds {
            find.place = find.place.start.saturating_sub(len)..find.place.end - len;
        }
    }
}
