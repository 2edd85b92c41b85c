//! Children that die at their birth. On a host that has no process, namespace or memory to give one after the other would,
//! hundreds in a second and for as long as it lasts: another is made at once, and the next ones wait.
//!
//! Meanwhile no run waits for one: the plugin hears that there is none to be had, and hears it taken back when a child that was
//! born since has lived for a while or has begun a run. Which children have failed is for the caller to say; what a run does is
//! no failure.

use super::{BackOff, Domain, Event, Kind, Pending, There, Zygotes};
use crate::wire::LIVES_NS;
use std::io;

impl Zygotes {
    /// A child of a domain that was born then has ended before it was anybody's run.
    pub(in crate::launcher) fn birth_failed(
        &mut self,
        name: &str,
        born_ns: u64,
        why: &str,
        now: u64,
    ) -> Vec<Event> {
        let why = format!("its children die at their birth: {why}");
        self.failed(name, born_ns, &why, now)
    }

    /// The launcher lacks something for a child of a domain. Its zygote does not, and so is kept: another would cost the host the
    /// more, and find as little.
    pub(in crate::launcher) fn cannot_order(
        &mut self,
        name: &str,
        why: &str,
        now: u64,
    ) -> Vec<Event> {
        self.failed(name, now, why, now)
    }

    fn failed(&mut self, name: &str, born_ns: u64, why: &str, now: u64) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(domain) = self.domains.get_mut(name) {
            domain.birth_failed(name, born_ns, why, now, &mut events);
        }
        events
    }

    /// A child of a domain that was born then has begun a run. One that was there already when a birth failed proves nothing:
    /// those that come after it may fail like that one.
    pub(in crate::launcher) fn run_has_begun(&mut self, name: &str, born_ns: u64) -> Vec<Event> {
        let failed_ns = self.domains.get(name).map_or(0, |d| d.births.failed_ns);
        if born_ns < failed_ns {
            return Vec::new();
        }
        self.birth_succeeded(name)
    }

    /// A child of a domain has been born well, since the last one that was not.
    pub(in crate::launcher) fn birth_succeeded(&mut self, name: &str) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(domain) = self.domains.get_mut(name) {
            domain.birth_succeeded(name, &mut events);
        }
        events
    }

    /// Domains where the last birth that is known of has failed, and another child lives that was born since, long enough.
    /// `lives`: whether a child of this domain does that was born between the two.
    pub(in crate::launcher) fn proven(
        &self,
        now: u64,
        lives: impl Fn(&str, u64, u64) -> bool,
    ) -> Vec<String> {
        let until = now.saturating_sub(LIVES_NS);
        self.domains
            .iter()
            .filter(|(name, d)| d.births.failures > 0 && lives(name, d.births.failed_ns, until))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

impl Domain {
    fn birth_failed(
        &mut self,
        name: &str,
        born_ns: u64,
        why: &str,
        now: u64,
        events: &mut Vec<Event>,
    ) {
        // Those that were there already when one had failed have failed with it; what has ended one that lived is not its birth.
        let is_known = self.births.failures > 0 && born_ns < self.births.failed_ns;
        if is_known || now >= born_ns.saturating_add(LIVES_NS) {
            return;
        }
        self.births.failed(now);
        if self.births_fail() {
            self.say_cold(name, why, true, events);
        }
    }

    fn birth_succeeded(&mut self, name: &str, events: &mut Vec<Event>) {
        let failed = self.births_fail();
        // With what is left of the wait: runs wait for the next one from now on.
        self.births = BackOff::default();
        if failed
            && self.told_cold
            && let Some(zygote) = self.current.take()
        {
            self.say_warm(name, &zygote, events);
            self.current = Some(zygote);
        }
    }

    /// The host lacked something for a child. Its zygote has done what it could, and another would do no better.
    pub(super) fn unborn(
        &mut self,
        name: &str,
        pending: Pending,
        why: &io::Error,
        events: &mut Vec<Event>,
    ) {
        let why = format!("its children die at their birth: {why}");
        let now = crate::sys::now_ns();
        self.birth_failed(name, pending.since_ns, &why, now, events);
        events.push(Event::Unborn(Box::new(pending.child)));
    }

    /// More than one in a row.
    fn births_fail(&self) -> bool {
        self.births.failures > 1
    }

    /// No run waits while births fail, and there may be none to make ahead: then one is, to see whether it lives.
    pub(super) fn lacks_proof(&self, there: There) -> Option<Kind> {
        (self.births_fail() && there.ahead == 0).then_some(Kind::Plain)
    }

    /// How long the launcher may sleep.
    pub(super) fn births_patience(&self, now: u64) -> Option<u64> {
        let wait = self.births.not_before_ns.saturating_sub(now);
        self.births_fail()
            .then_some(if wait > 0 { wait } else { LIVES_NS })
    }
}

/// A child has come without its descriptor, since none was left here. It is ended, and that is what was lacking; `None`: it is no
/// child.
pub(super) fn end_unwatched(pid: libc::pid_t) -> Option<io::Error> {
    let ended = crate::sys::end_child(pid);
    ended
        .ok()
        .map(|()| io::Error::from_raw_os_error(libc::EMFILE))
}

/// What a zygote says if there was no process or namespace for a child, no memory, or no file in the whole host.
pub(super) fn shortage(word: &str) -> Option<io::Error> {
    let code = word.strip_prefix('!')?.parse().ok()?;
    matches!(
        code,
        libc::EAGAIN | libc::ENOMEM | libc::ENOSPC | libc::ENFILE
    )
    .then(|| io::Error::from_raw_os_error(code))
}
