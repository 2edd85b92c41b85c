//! Calls of a store that do not come back. Of a run the gateway knows its deadline; a call of a store has none, and its caller waits
//! for it, or leaves: without a word here nobody would know why, since a plugin that hangs may still say that it is well.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

use skillgate_plugin_host::{Counted as _, Slow, StorageInstance, WeakCurrent};

/// What takes longer is told of.
const AFTER: Duration = Duration::from_secs(30);
/// As long as it goes on it is told of again, and no more often, however many calls there are.
const AGAIN: Duration = Duration::from_secs(300);
const INTERVAL: Duration = Duration::from_secs(10);

/// What was told of, and when: role, plugin, call.
#[derive(Debug, Default)]
struct Told(HashMap<(&'static str, String, &'static str), Instant>);

impl Told {
    /// Tells of these calls of a plugin, if it is time to.
    fn tell(&mut self, role: &'static str, plugin: &str, slow: &[Slow], now: Instant) {
        // What has come back may hang again, and another plugin at once.
        self.0.retain(|(of, whose, call), _| {
            let goes_on = || slow.iter().any(|it| it.call == *call);
            *of != role || whose == plugin && goes_on()
        });
        for Slow {
            call,
            calls,
            longest,
        } in slow
        {
            let about = (role, plugin.to_owned(), *call);
            let before = self.0.get(&about);
            if before.is_some_and(|at| now.saturating_duration_since(*at) < AGAIN) {
                continue;
            }
            self.0.insert(about, now);
            tracing::warn!(
                role,
                plugin,
                call,
                calls,
                seconds = longest.as_secs(),
                "calls of a store have not come back: who made them waits; see what the store works with (its disk, its service), and \
                 ask its vendor, if that is well"
            );
        }
    }
}

/// Looks now and then, until both are gone. Keeps neither.
pub(super) async fn watch(storage: WeakCurrent<StorageInstance>, shelf: Weak<StorageInstance>) {
    let mut told = Told::default();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let stores = [
            ("storage", storage.upgrade().map(|it| it.peek())),
            ("shelf", Some(shelf.upgrade())),
        ];
        if stores[0].1.is_none() && matches!(stores[1].1, Some(None)) {
            return;
        }
        let now = Instant::now();
        for (role, store) in stores {
            if let Some(store) = store.flatten() {
                let slow = store.counts().slow(now, AFTER);
                told.tell(role, store.plugin(), &slow, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::logged::Log;

    #[test]
    fn a_call_that_does_not_come_back_is_told_of_now_and_then() {
        let (log, _here) = Log::begin();
        let (mut told, start) = (Told::default(), Instant::now());
        let of = |call, calls, longest| Slow {
            call,
            calls,
            longest: Duration::from_secs(longest),
        };
        let mut lines_of = |role, plugin, slow: &[Slow], s| {
            told.tell(role, plugin, slow, start + Duration::from_secs(s));
            log.taken().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let mut lines = |role, slow: &[Slow], s| lines_of(role, "com.acme.it", slow, s);
        assert!(lines("storage", &[], 0).is_empty());
        let first = lines("storage", &[of("skill_get", 1, 31)], 31);
        assert_eq!(first.len(), 1, "{first:?}");
        let words = r#"role="storage" plugin="com.acme.it" call="skill_get" calls=1 seconds=31"#;
        assert!(
            first[0].contains("WARN") && first[0].contains(words),
            "{first:?}"
        );
        // A flood of them is one line, until it has gone on for long.
        assert!(lines("storage", &[of("skill_get", 4000, 330)], 330).is_empty());
        assert_eq!(
            lines("storage", &[of("skill_get", 4000, 331)], 331).len(),
            1
        );
        // What is another call's, or another store's, is told of for itself.
        let both = [of("skill_get", 4000, 340), of("health", 1, 30)];
        let other = lines("storage", &both, 340);
        assert!(
            other.len() == 1 && other[0].contains(r#"call="health""#),
            "{other:?}"
        );
        assert_eq!(lines("shelf", &[of("skill_get", 1, 30)], 340).len(), 1);
        // What came back and hangs once more is told of at once, and so is what another plugin does.
        assert!(lines("storage", &[], 350).is_empty());
        assert_eq!(lines("storage", &[of("skill_get", 1, 30)], 380).len(), 1);
        let other = lines_of("storage", "com.acme.other", &[of("skill_get", 1, 30)], 390);
        assert_eq!(other.len(), 1);
    }
}
