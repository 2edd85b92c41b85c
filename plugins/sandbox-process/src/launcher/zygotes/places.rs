//! Which trust domains have a zygote: there are only so many at a time, and the one that no run has used for longest makes room.

use super::{Event, Zygotes, end};
use crate::wire::{PoolNeeds, Word};

impl Zygotes {
    /// What a domain's pool needs from now on.
    pub(in crate::launcher) fn need(&mut self, needs: PoolNeeds, now: u64) -> Vec<Event> {
        let mut events = Vec::new();
        if !self.domains.contains_key(&needs.domain) && self.domains.len() >= self.rules.domains_max
        {
            // The one that no run has used for longest makes room.
            let oldest = self.domains.iter().min_by_key(|(_, d)| d.used_ns);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                events.extend(self.end_domain(&name));
            }
        }
        let is_new = !self.domains.contains_key(&needs.domain);
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
