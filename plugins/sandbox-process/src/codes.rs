//! Code of skills, so that not every run compiles what it imports.
//!
//! It is made by a run of its own that compiles a skill's files and executes none of them (`run/compile.rs`), and given to
//! later runs beside their job. Nothing that a skill's code has touched gets in here; and a run takes code for exactly the
//! source that it reads itself, so what is kept here too long is not wrong but useless.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::wire::MountSpec;

/// What one run is given at most, source and code together. The guest gives no more of one skill (`compiled.py`).
pub(crate) const BYTES_MAX: usize = 256 << 10;
/// A skill's files may change where they are: it is compiled again at this age.
const AGE_MAX: Duration = Duration::from_secs(600);
/// Skills that are known, with code or without.
const SKILLS_MAX: usize = 1024;

/// A skill as it is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SkillPlace {
    /// Whose interpreters have compiled it.
    domain: String,
    target: String,
    entrypoint: String,
    path: String,
    dev: u64,
    ino: u64,
}

/// The code of one skill's files.
#[derive(Debug, Default)]
pub(crate) struct Code {
    files: Vec<File>,
}

#[derive(Debug)]
struct File {
    /// Inside the sandbox.
    path: String,
    source: Vec<u8>,
    code: Vec<u8>,
}

/// What is known of a skill.
#[derive(Debug)]
pub(crate) enum Look {
    Code(Arc<Code>),
    /// It is asked for again, and is the caller's to make: [`Codes::keep`] is told what comes of it.
    Make,
    Nothing,
}

/// All that is kept, the longest unused making room.
#[derive(Debug)]
pub(crate) struct Codes {
    bytes_max: usize,
    per_tenant: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    skills: HashMap<SkillPlace, Entry>,
    looks: u64,
}

#[derive(Debug)]
struct Entry {
    what: What,
    since: Instant,
    last_look: u64,
}

#[derive(Debug)]
enum What {
    /// Has been run. One that is run no second time is not worth it.
    Seen,
    Making,
    Made(Arc<Code>),
}

impl Code {
    /// From what the guest gives of the skill at `target`. `None`: it is something else.
    pub(crate) fn parse(output: &[u8], target: &str) -> Option<Self> {
        let made: Vec<(String, String, String)> = serde_json::from_slice(output).ok()?;
        let file = |(path, source, code): (String, String, String)| {
            let is_inside = path.strip_prefix(target)?.starts_with('/');
            is_inside.then_some(File {
                path,
                source: BASE64.decode(source).ok()?,
                code: BASE64.decode(code).ok()?,
            })
        };
        let files = made.into_iter().map(file).collect::<Option<_>>()?;
        Some(Code { files })
    }

    fn bytes(&self) -> usize {
        self.files.iter().map(|f| f.path.len() + f.bytes()).sum()
    }
}

impl File {
    fn bytes(&self) -> usize {
        self.source.len() + self.code.len()
    }
}

/// What a run gets: of each file its path and the lengths of source and code, and these, one upon the other.
pub(crate) type Index<'a> = Vec<(&'a str, usize, usize)>;

pub(crate) fn together(codes: &[Arc<Code>]) -> (Index<'_>, Vec<u8>) {
    let (mut index, mut bytes) = (Vec::new(), Vec::new());
    for file in codes.iter().flat_map(|code| &code.files) {
        if bytes.len() + file.bytes() <= BYTES_MAX {
            index.push((file.path.as_str(), file.source.len(), file.code.len()));
            bytes.extend_from_slice(&file.source);
            bytes.extend_from_slice(&file.code);
        }
    }
    (index, bytes)
}

impl Codes {
    /// `bytes_max` 0: nothing is made.
    pub(crate) fn new(bytes_max: usize, per_tenant: bool) -> Self {
        Codes {
            bytes_max,
            per_tenant,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whole between any two lines that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn place(&self, tenant: &str, mount: &MountSpec, entrypoint: &str) -> SkillPlace {
        SkillPlace {
            domain: if self.per_tenant { tenant } else { "" }.to_owned(),
            target: mount.target.clone(),
            entrypoint: entrypoint.to_owned(),
            path: mount.path.clone(),
            dev: mount.dev,
            ino: mount.ino,
        }
    }

    /// `may_make`: whether the caller would.
    pub(crate) fn look(&self, place: &SkillPlace, may_make: bool, now: Instant) -> Look {
        if self.bytes_max == 0 {
            return Look::Nothing;
        }
        let mut state = self.state();
        state.looks += 1;
        let last_look = state.looks;
        let Some(entry) = state.skills.get_mut(place) else {
            let entry = Entry {
                what: What::Seen,
                since: now,
                last_look,
            };
            state.skills.insert(place.clone(), entry);
            state.make_room(self.bytes_max);
            return Look::Nothing;
        };
        entry.last_look = last_look;
        let is_old = now >= entry.since + AGE_MAX;
        match &entry.what {
            What::Made(code) if !is_old || !may_make => Look::Code(code.clone()),
            What::Making if !is_old => Look::Nothing,
            _ if may_make => {
                entry.what = What::Making;
                entry.since = now;
                Look::Make
            }
            _ => Look::Nothing,
        }
    }

    /// What has come of [`Look::Make`]. `None`: nothing that is the skill's, so that another run may try.
    pub(crate) fn keep(&self, place: &SkillPlace, code: Option<Code>, now: Instant) {
        let mut state = self.state();
        if let Some(entry) = state.skills.get_mut(place) {
            entry.what = code.map_or(What::Seen, |code| What::Made(Arc::new(code)));
            entry.since = now;
        }
        state.make_room(self.bytes_max);
    }

    /// How many skills there is code of, and its bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let state = self.state();
        let made = state.skills.values().filter(|e| e.bytes() > 0);
        (made.count(), state.bytes())
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        match &self.what {
            What::Made(code) => code.bytes(),
            _ => 0,
        }
    }
}

impl State {
    fn bytes(&self) -> usize {
        self.skills.values().map(Entry::bytes).sum()
    }

    fn make_room(&mut self, bytes_max: usize) {
        let mut bytes = self.bytes();
        while self.skills.len() > SKILLS_MAX || bytes > bytes_max {
            let oldest = self.skills.iter().min_by_key(|(_, e)| e.last_look);
            let Some(place) = oldest.map(|(place, _)| place.clone()) else {
                return;
            };
            bytes -= self.skills.remove(&place).map_or(0, |e| e.bytes());
        }
    }
}

#[cfg(test)]
mod tests;
