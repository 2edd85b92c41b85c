//! Skills that were read: a version never changes, so one that is kept is known for good.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use skillgate_plugin_sdk::model::SkillFile;

use super::Skill;

/// Skills that are kept. For one more, some of the tenant with the most are forgotten.
const SKILLS_MAX: usize = 4096;
/// The part of a tenant's that is forgotten at once. Any of them: who lists all that there are reads them in one order, and would
/// find none of a share a little too small if the oldest went, or all.
const PART: usize = 16;
/// Bytes of memory that they may take together, with the same rule: what a tenant writes into a manifest and front matter can
/// take a hundred times its size, as small maps in a list do.
const BYTES_MAX: usize = 64 << 20;

/// Tenant (empty for the shelf), name, version.
pub(super) type Key = (String, String, String);

/// What is kept of all tenants.
#[derive(Debug)]
pub(super) struct Kept {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tenants: HashMap<String, Share>,
    /// Of all tenants.
    number: usize,
    bytes: usize,
}

/// What is kept of one tenant.
#[derive(Debug, Default)]
struct Share {
    skills: HashMap<Key, Arc<Skill>>,
    bytes: usize,
}

impl State {
    fn get(&self, key: &Key) -> Option<&Arc<Skill>> {
        self.tenants.get(&key.0)?.skills.get(key)
    }

    fn remove(&mut self, key: &Key) {
        if let Some(share) = self.tenants.get_mut(&key.0)
            && let Some(skill) = share.skills.remove(key)
        {
            let bytes = weight(&skill);
            share.bytes -= bytes;
            self.bytes -= bytes;
            self.number -= 1;
        }
    }

    /// Forgets some of the tenant who has the most: one at least.
    fn forget_some(&mut self, how_much: impl Fn(&Share) -> usize) {
        let most = self.tenants.iter().max_by_key(|(_, share)| how_much(share));
        let Some((tenant, share)) = most else {
            return;
        };
        let (tenant, number) = (tenant.clone(), share.skills.len());
        // A map has its own order; a place in it by chance, or who comes to be first in it would go each time.
        let begin = rand::random_range(0..number.max(1));
        let any = share.skills.keys().cycle().skip(begin);
        let keys: Vec<Key> = any.take(number.div_ceil(PART)).cloned().collect();
        keys.iter().for_each(|key| self.remove(key));
        if self
            .tenants
            .get(&tenant)
            .is_some_and(|share| share.skills.is_empty())
        {
            self.tenants.remove(&tenant);
        }
    }
}

impl Default for Kept {
    fn default() -> Self {
        Kept::new(BYTES_MAX)
    }
}

impl Kept {
    fn new(bytes_max: usize) -> Self {
        Kept {
            bytes_max,
            state: Mutex::default(),
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Skill>> {
        self.state().get(key).cloned()
    }

    pub(super) fn put(&self, key: Key, skill: &Arc<Skill>) {
        let bytes = weight(skill);
        if bytes > self.bytes_max {
            return; // read anew each time, rather than in the place of all others
        }
        let mut state = self.state();
        match state.get(&key) {
            // Somebody else has read it meanwhile.
            Some(there) if there.digest() == skill.digest() => return,
            _ => state.remove(&key),
        }
        if state.number >= SKILLS_MAX {
            state.forget_some(|share| share.skills.len());
        }
        // It fits when nothing else is there.
        while state.bytes + bytes > self.bytes_max {
            state.forget_some(|share| share.bytes);
        }
        state.number += 1;
        state.bytes += bytes;
        let share = state.tenants.entry(key.0.clone()).or_default();
        share.bytes += bytes;
        share.skills.insert(key, skill.clone());
    }

    pub(super) fn forget(&self) {
        *self.state() = State::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves a map, and at worst a sum that is too large.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// About how many bytes of memory a skill takes, rather too many.
fn weight(skill: &Skill) -> usize {
    let record = &skill.record;
    let file =
        |file: &SkillFile| size_of::<SkillFile>() + file.path.capacity() + file.sha256.capacity();
    // The manifest has the whole of what was written in it as well.
    size_of::<Skill>()
        + record.manifest_json.capacity()
        + record.files.iter().map(file).sum::<usize>()
        + 2 * bytes_of(&skill.manifest_json)
        + bytes_of(&skill.frontmatter)
}

/// What a JSON value holds besides itself.
fn bytes_of(value: &Value) -> usize {
    /// A node of a `BTreeMap` has room for eleven members, also for the first; all but the root have five at least.
    const NODE: usize = 11 * (size_of::<String>() + size_of::<Value>()) + 16 * size_of::<usize>();
    match value {
        Value::Object(members) => {
            let of = |(name, value): (&String, &Value)| name.capacity() + bytes_of(value);
            (1 + members.len() / 5) * NODE + members.iter().map(of).sum::<usize>()
        }
        Value::Array(items) => {
            items.capacity() * size_of::<Value>() + items.iter().map(bytes_of).sum::<usize>()
        }
        Value::String(text) => text.capacity(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manifest that is small as text.
    fn skill(number: usize, maps: usize) -> Arc<Skill> {
        let maps = vec!["{a=0}"; maps].join(",");
        let manifest = format!(
            "name = \"acme.s{number}\"\nversion = \"1.0.0\"\ndescription = \"d\"\nkind = \"instruction\"\nx = [{maps}]\n"
        );
        Arc::new(Skill::unstored(&manifest, false).unwrap())
    }

    fn key_of(tenant: &str, number: usize) -> Key {
        (tenant.into(), format!("acme.s{number}"), "1.0.0".into())
    }

    fn key(number: usize) -> Key {
        key_of("t", number)
    }

    /// That the sums are those of what is there. Gives how many there are, and their bytes.
    fn counted(kept: &Kept) -> (usize, usize) {
        let state = kept.state();
        let of =
            |share: &Share| -> usize { share.skills.values().map(|skill| weight(skill)).sum() };
        for share in state.tenants.values() {
            assert_eq!(share.bytes, of(share));
        }
        assert_eq!(state.bytes, state.tenants.values().map(of).sum::<usize>());
        let numbers = state.tenants.values().map(|share| share.skills.len());
        assert_eq!(state.number, numbers.sum::<usize>());
        (state.number, state.bytes)
    }

    #[test]
    fn what_is_kept_is_bounded_in_bytes_and_number() {
        let large = weight(&skill(0, 1000));
        assert!(large > 1_000_000, "6 KB of text are {large} bytes");
        let kept = Kept::new(3 * large);
        for number in 0..10 {
            kept.put(key(number), &skill(number, 1000));
            assert!(kept.get(&key(number)).is_some());
            let (number, bytes) = counted(&kept);
            assert!(bytes <= 3 * large && number <= 3);
        }
        // What has no room at all takes nobody's.
        let before = counted(&kept);
        kept.put(key(10), &skill(10, 5000));
        assert_eq!(counted(&kept), before);
        assert!(kept.get(&key(10)).is_none() && kept.get(&key(9)).is_some());
        // Once more: counted once.
        kept.put(key(9), &skill(9, 1000));
        assert_eq!(counted(&kept), before);
        kept.forget();
        assert!(kept.get(&key(9)).is_none() && counted(&kept) == (0, 0));

        let (many, small) = (Kept::default(), skill(0, 0));
        for number in 0..=SKILLS_MAX {
            many.put(key(number), &small);
            assert!(many.state().number <= SKILLS_MAX);
        }
        assert!(many.get(&key(SKILLS_MAX)).is_some());
        let forgotten = SKILLS_MAX.div_ceil(PART);
        assert_eq!(counted(&many).0, SKILLS_MAX - forgotten + 1);
    }

    /// Again and again in one order, as listings are.
    #[test]
    fn most_are_found_where_not_all_have_room() {
        let (many, small) = (Kept::default(), skill(0, 0));
        let all = SKILLS_MAX + SKILLS_MAX / 40;
        let mut found = 0;
        for _ in 0..4 {
            found = 0;
            for number in 0..all {
                match many.get(&key(number)) {
                    Some(_) => found += 1,
                    None => many.put(key(number), &small),
                }
            }
        }
        assert!(found > all / 2, "{found} of {all}");
        counted(&many);
    }

    #[test]
    fn who_reads_much_or_many_takes_no_place_of_another() {
        let large = weight(&skill(0, 1000));
        let kept = Kept::new(3 * large);
        kept.put(key_of("quiet", 0), &skill(0, 1000));
        for number in 0..10 {
            kept.put(key(number), &skill(number, 1000));
            assert!(kept.get(&key_of("quiet", 0)).is_some());
            counted(&kept);
        }
        let (many, small) = (Kept::default(), skill(0, 0));
        many.put(key_of("quiet", 0), &small);
        for number in 0..2 * SKILLS_MAX {
            many.put(key(number), &small);
        }
        assert!(many.get(&key_of("quiet", 0)).is_some());
        assert!(counted(&many).0 <= SKILLS_MAX);
    }
}
