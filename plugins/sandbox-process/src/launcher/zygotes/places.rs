//! Which trust domains have a zygote: there are only so many at a time, and the one that no run has used for longest makes room,
//! unless that would be in use still. Where one domain more than there are places had runs by turns, each would take the place of
//! the one that comes next, and zygotes would be killed before they are warm: worse than none, and at the cost of all.

use super::{Event, Zygotes, end};
use crate::wire::{PoolNeeds, Word};

/// A domain keeps its place for so long after its last run. A zygote costs some starts of an interpreter, and so often at most
/// is one started for each place.
const KEPT_NS: u64 = 4_000_000_000;

impl Zygotes {
    /// What a domain's pool needs from now on. It hears at once if there is no place for it; nobody waits for a zygote that was
    /// never warm.
    pub(in crate::launcher) fn need(&mut self, needs: PoolNeeds, now: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let is_new = !self.domains.contains_key(&needs.domain);
        if is_new && self.domains.len() >= self.rules.domains_max {
            let oldest = self.domains.iter().min_by_key(|(_, d)| d.used_ns);
            if let Some((name, used_ns)) = oldest.map(|(name, d)| (name.clone(), d.used_ns)) {
                if now < used_ns + KEPT_NS {
                    let domain = needs.domain;
                    return vec![Event::Tell(Word::Gone { domain })];
                }
                events.extend(self.end_domain(&name));
            }
        }
        let domain = self.domains.entry(needs.domain.clone()).or_default();
        // A pool asks for something without a run, too: its children are replaced, or become fewer.
        if is_new || needs.waiting != [0; 2] || !needs.taken.is_empty() {
            domain.used_ns = now;
        }
        domain.needs = needs;
        events
    }

    /// A run of a domain has a child, or had one that has ended.
    pub(in crate::launcher) fn used(&mut self, name: &str, now: u64) {
        if let Some(domain) = self.domains.get_mut(name) {
            domain.used_ns = now;
        }
    }

    fn end_domain(&mut self, name: &str) -> Vec<Event> {
        let Some(mut domain) = self.domains.remove(name) else {
            return Vec::new();
        };
        let zygotes = [domain.current.take(), domain.next.take()];
        for zygote in zygotes.into_iter().flatten() {
            end(zygote, &mut self.leaving);
        }
        let lost = domain
            .pending
            .take()
            .map(|p| Event::Lost(Box::new(p.child)));
        let word = Word::Gone {
            domain: name.to_owned(),
        };
        lost.into_iter().chain([Event::Tell(word)]).collect()
    }
}
