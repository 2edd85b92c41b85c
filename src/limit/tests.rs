use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::headers;
use super::rules::{Asked, Clock, Level, Limited, Limits, Prepared};
use crate::config::{RateKey, RateLimit};
use crate::pace::{Key, Ledger, Pace, Place};

const SECOND_NS: u64 = 1_000_000_000;

/// A clock that a test moves.
#[derive(Debug, Default)]
struct Hand(AtomicU64);

impl Hand {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

fn rule(name: &str, key: &[RateKey], quota: u64, per_s: u64, burst: u64) -> RateLimit {
    RateLimit {
        name: name.into(),
        key: key.to_vec(),
        methods: Vec::new(),
        quota,
        per_s,
        burst,
        max_keys: 1000,
    }
}

fn limits(rules: &[RateLimit]) -> (Limits, Arc<Hand>) {
    let hand = Arc::new(Hand::default());
    // Some time after the clock's beginning, as it is in life.
    hand.advance(Duration::from_secs(1000));
    let limits = Limits::new(hand.clone());
    limits.install(Prepared::of(rules));
    (limits, hand)
}

fn asked<'a>(tenant: &'a str, subject: &'a str) -> Asked<'a> {
    Asked {
        tenant,
        subject,
        ..Asked::from(IpAddr::from([10, 0, 0, 1]))
    }
}

/// How many of `tries` calls pass.
fn passed(limits: &Limits, level: Level, asked: Asked<'_>, tries: u64) -> u64 {
    (0..tries)
        .filter(|_| limits.count(level, asked).1.is_ok())
        .count() as u64
}

#[test]
fn exactly_the_burst_passes_whenever_one_comes() {
    for (quota, per_s, burst) in [
        (1, 1, 1),
        (600, 60, 100),
        (7, 1, 7),
        (10, 60, 1),
        (1, 3600, 5),
        (1_000_000_000, 1, 1000),
    ] {
        let (limits, hand) = limits(&[rule("r", &[RateKey::Tenant], quota, per_s, burst)]);
        let what = format!("{quota} in {per_s} s, {burst} at once");
        for (pause, expected) in [
            (Duration::ZERO, burst),
            // Nothing has come back yet.
            (Duration::ZERO, 0),
            // An idle key has its burst, not more, however long it was idle.
            (Duration::from_secs(40_000_000), burst),
            (Duration::from_secs(3600 * 5), burst),
        ] {
            hand.advance(pause);
            // The fastest of them gives a call back in every nanosecond: the clock stands still.
            assert_eq!(
                passed(&limits, Level::Caller, asked("t", "s"), burst + 10),
                expected,
                "{what}, after {pause:?}"
            );
        }
    }
}

#[test]
fn calls_come_back_one_by_one() {
    let (limits, hand) = limits(&[rule("r", &[RateKey::Tenant], 600, 60, 100)]);
    let one = asked("t", "s");
    assert_eq!(passed(&limits, Level::Caller, one, 200), 100);
    let (_, refused) = limits.count(Level::Caller, one);
    assert_eq!(refused.unwrap_err().retry_after_ms, 100);
    hand.advance(Duration::from_millis(99));
    assert_eq!(passed(&limits, Level::Caller, one, 5), 0);
    hand.advance(Duration::from_millis(1));
    assert_eq!(passed(&limits, Level::Caller, one, 5), 1);
    hand.advance(Duration::from_millis(1050));
    assert_eq!(passed(&limits, Level::Caller, one, 50), 10);
    // Over a long time it is the quota and the burst, for a caller that never stops asking.
    let mut total = 0;
    for _ in 0..6000 {
        hand.advance(Duration::from_millis(10));
        total += passed(&limits, Level::Caller, one, 3);
    }
    assert_eq!(total, 600);
}

#[test]
fn a_rate_that_does_not_divide_is_never_exceeded() {
    let (limits, hand) = limits(&[rule("r", &[RateKey::Tenant], 7, 1, 1)]);
    let mut total = 0;
    for _ in 0..70_000 {
        hand.advance(Duration::from_millis(1));
        total += passed(&limits, Level::Caller, asked("t", "s"), 2);
    }
    assert!((480..=490).contains(&total), "{total} in 70 s");
}

#[test]
fn a_pace_is_never_faster_than_its_quota() {
    for (quota, per_s) in [
        (7, 1),
        (1_000_000_000, 1),
        (600, 60),
        (1_000_000_000, 7),
        (3, 2_678_400),
    ] {
        let interval_ns = Pace::new(quota, per_s, 1).interval_ns;
        assert!(u128::from(interval_ns) * u128::from(quota) >= u128::from(per_s * SECOND_NS));
    }
}

/// A bucket that calls come back into one by one, in exact arithmetic, whenever one comes.
#[test]
fn a_pace_is_a_bucket() {
    let mut random = StdRng::seed_from_u64(2692);
    for _ in 0..50 {
        let mut number = |max| random.random_range(1..=max);
        let pace = Pace::new(number(50), number(20), number(12));
        let interval = pace.interval_ns;
        let room = u64::from(pace.burst) * interval;
        let (mut ledger, key) = (Ledger::new(pace, 1), Key(1, 1));
        let (mut now, mut full_at) = (0, 0);
        for _ in 0..100 {
            now += match random.random_range(0..5) {
                0 | 1 => 0,
                2 => interval,
                3 => interval - 1,
                _ => random.random_range(0..2 * room),
            };
            let then = now.max(full_at) + interval;
            let wanted = if then - now <= room {
                Ok(())
            } else {
                Err(then - room - now)
            };
            let place = ledger.place(key, now);
            let (left, next_ns) = pace.left(ledger.full_at(place), now);
            assert_eq!(left == 0, wanted.is_err());
            assert!(wanted.is_ok() || wanted == Err(next_ns));
            assert_eq!(ledger.count(place, now), wanted, "{pace:?}");
            if wanted.is_ok() {
                full_at = then;
            }
        }
    }
}

/// Nor does a key whose calls were counted with those of others before there was room for it.
#[test]
fn nobody_gets_more_than_the_rule_says() {
    let mut random = StdRng::seed_from_u64(2692);
    for _ in 0..50 {
        let pace = Pace::new(1, 1, random.random_range(1..6));
        let (mut ledger, mut now) = (Ledger::new(pace, 16), 0);
        let mut passed: HashMap<u64, Vec<u64>> = HashMap::new();
        for _ in 0..400 {
            now += random.random_range(0..pace.interval_ns / 4);
            if random.random_bool(0.05) {
                ledger.sweep_some(now);
            }
            let key = random.random_range(0..60);
            let place = ledger.place(Key(key % 16, key), now);
            if ledger.count(place, now).is_ok() {
                passed.entry(key).or_default().push(now);
            }
        }
        for times in passed.values() {
            for (nth, from) in times.iter().enumerate() {
                for (more, to) in (1..).zip(&times[nth..]) {
                    let most = u64::from(pace.burst) + (to - from) / pace.interval_ns;
                    assert!(more <= most, "{more} in {} ns, {pace:?}", to - from);
                }
            }
        }
    }
}

#[test]
fn keys_are_counted_apart_and_subjects_belong_to_their_tenant() {
    use RateKey::{Ip, Subject, Tenant};
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let from = |address: &str| Asked::from(ip(address));
    let (by_subject, _) = limits(&[rule("r", &[Subject], 1, 60, 1)]);
    for (tenant, subject) in [("a", "x"), ("b", "x"), ("a", "y"), ("", "ax"), ("ax", "")] {
        let one = asked(tenant, subject);
        assert_eq!(passed(&by_subject, Level::Caller, one, 3), 1, "{one:?}");
    }
    let (by_pair, _) = limits(&[rule("r", &[Tenant, Subject], 1, 60, 1)]);
    assert_eq!(passed(&by_pair, Level::Caller, asked("a", "bc"), 3), 1);
    assert_eq!(passed(&by_pair, Level::Caller, asked("ab", "c"), 3), 1);
    let (by_tenant, _) = limits(&[rule("r", &[Tenant], 1, 60, 1)]);
    assert_eq!(passed(&by_tenant, Level::Caller, asked("a", "x"), 3), 1);
    assert_eq!(passed(&by_tenant, Level::Caller, asked("a", "y"), 3), 0);
    let (by_ip, _) = limits(&[rule("r", &[Ip], 1, 60, 1)]);
    for (address, expected) in [
        ("192.0.2.1", 1),
        ("192.0.2.2", 1),
        ("::ffff:192.0.2.1", 0),
        ("2001:db8::1", 1),
        ("2001:db8::ffff:1:2:3", 0),
        ("2001:db8:0:1::1", 1),
    ] {
        let count = passed(&by_ip, Level::Address, from(address), 3);
        assert_eq!(count, expected, "{address}");
    }
}

#[test]
fn rules_count_where_they_can() {
    use RateKey::{Ip, Method, Skill, Subject};
    let mut listed = rule("listed", &[Ip], 1, 60, 1);
    listed.methods = vec!["run_code".into()];
    let (limits, _) = limits(&[
        rule("address", &[Ip], 1, 60, 1),
        rule("caller", &[Ip, Subject], 2, 60, 2),
        rule("method", &[Subject, Method], 3, 60, 3),
        rule("skill", &[Skill], 1, 60, 1),
        listed,
    ]);
    let one = asked("t", "s");
    assert_eq!(passed(&limits, Level::Address, one, 9), 1);
    assert_eq!(passed(&limits, Level::Caller, one, 9), 2);
    let call = |method, skills| Asked {
        method,
        skills,
        ..one
    };
    assert_eq!(passed(&limits, Level::Call, call("list_skills", &[]), 9), 3);
    assert_eq!(passed(&limits, Level::Call, call("run_code", &[]), 9), 1);
    // Each skill that is mounted is used: where one has no calls left, the call counts for none.
    let describe = |skills| passed(&limits, Level::Call, call("describe_skill", skills), 1);
    assert_eq!(describe(&["a"]), 1);
    assert_eq!(describe(&["b", "a"]), 0);
    assert_eq!(describe(&["b", "c"]), 1);
    assert_eq!(describe(&["c"]), 0);
}

/// Any of them could lock out the others.
#[test]
fn callers_without_a_token_are_not_one_caller() {
    use RateKey::{Ip, Subject, Tenant};
    let (limits, _) = limits(&[
        rule("caller", &[Tenant, Subject], 1, 60, 1),
        rule("address", &[Ip, Subject], 2, 60, 2),
    ]);
    let nobody = |last| Asked {
        anonymous: true,
        ..Asked::from(IpAddr::from([10, 0, 0, last]))
    };
    assert_eq!(passed(&limits, Level::Caller, nobody(1), 9), 2);
    assert_eq!(passed(&limits, Level::Caller, nobody(2), 9), 2);
    assert_eq!(passed(&limits, Level::Caller, asked("t", "s"), 9), 1);
}

#[test]
fn a_call_that_one_rule_refuses_costs_nothing_in_the_others() {
    use RateKey::{Subject, Tenant};
    let wide = rule("wide", &[Tenant], 10, 3600, 10);
    let narrow = rule("narrow", &[Subject], 1, 3600, 1);
    for rules in [[wide.clone(), narrow.clone()], [narrow, wide]] {
        let (limits, _) = limits(&rules);
        assert_eq!(passed(&limits, Level::Caller, asked("t", "greedy"), 50), 1);
        let others: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
        let total: u64 = others
            .iter()
            .map(|subject| passed(&limits, Level::Caller, asked("t", subject), 1))
            .sum();
        assert_eq!(total, 9, "the tenant's ten less the one that passed");
        let refused = limits.count(Level::Caller, asked("t", "greedy")).1;
        assert_eq!(&*refused.unwrap_err().rule, "narrow", "it takes longest");
    }
}

#[test]
fn headers_say_what_is_left_and_until_when() {
    use RateKey::{Subject, Tenant};
    let (limits, hand) = limits(&[
        rule("wide", &[Tenant], 600, 60, 100),
        rule("narrow", &[Subject], 2, 60, 2),
    ]);
    let shown = || {
        let (standings, outcome) = limits.count(Level::Caller, asked("t", "s"));
        let values =
            headers(&standings).map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        (values.collect::<Vec<_>>().join("\n"), outcome)
    };
    let (text, _) = shown();
    assert_eq!(
        text,
        "ratelimit: \"wide\";r=99;t=1, \"narrow\";r=1;t=30\n\
         ratelimit-policy: \"wide\";q=600;w=60;skillgate-burst=100, \"narrow\";q=2;w=60"
    );
    hand.advance(Duration::from_secs(10));
    let (text, _) = shown();
    assert!(text.contains("\"narrow\";r=0;t=20"), "{text}");
    hand.advance(Duration::from_millis(500));
    let (text, outcome) = shown();
    let Limited { retry_after_ms, .. } = outcome.unwrap_err();
    assert_eq!(retry_after_ms, 19_500);
    assert!(
        text.contains("\"narrow\";r=0;t=20") && text.contains("\"wide\";r=100"),
        "not earlier than Retry-After, and the wide one was not charged: {text}"
    );
}

#[test]
fn what_is_left_agrees_with_what_passes() {
    let (limits, hand) = limits(&[rule("r", &[RateKey::Tenant], 7, 3, 5)]);
    let mut random = 12345_u64;
    for _ in 0..10_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        hand.advance(Duration::from_nanos((random >> 33) % SECOND_NS));
        let (standings, outcome) = limits.count(Level::Caller, asked("t", "s"));
        let (left, next_ns) = (standings[0].left, standings[0].next_ns);
        if let Err(limited) = outcome {
            assert_eq!(
                (left, limited.retry_after_ms),
                (0, next_ns.div_ceil(1_000_000))
            );
        }
        if left == 0 {
            hand.advance(Duration::from_nanos(next_ns - 1));
            assert!(limits.count(Level::Caller, asked("t", "s")).1.is_err());
            hand.advance(Duration::from_nanos(1));
            assert!(limits.count(Level::Caller, asked("t", "s")).1.is_ok());
        }
    }
}

#[test]
fn a_reload_keeps_what_unchanged_rules_have_counted() {
    use RateKey::{Subject, Tenant};
    let a = rule("a", &[Tenant], 2, 3600, 2);
    let b = rule("b", &[Subject], 5, 3600, 5);
    let (limits, _) = limits(&[a.clone(), b.clone()]);
    let one = asked("t", "s");
    assert_eq!(passed(&limits, Level::Caller, one, 9), 2);
    limits.install(Prepared::of(&[b.clone(), a.clone()]));
    assert_eq!(passed(&limits, Level::Caller, one, 9), 0, "a goes on");
    limits.install(Prepared::of(std::slice::from_ref(&b)));
    assert_eq!(passed(&limits, Level::Caller, one, 9), 3, "b goes on");
    let mut wider = b;
    wider.burst = 6;
    limits.install(Prepared::of(&[wider]));
    assert_eq!(passed(&limits, Level::Caller, one, 9), 6, "changed: anew");
    limits.install(Prepared::of(&[]));
    assert_eq!(passed(&limits, Level::Caller, one, 9), 9);
}

#[test]
fn exact_under_contention_and_across_reloads() {
    use RateKey::{Subject, Tenant};
    let a = rule("a", &[Tenant], 5000, 3600, 5000);
    let b = rule("b", &[Tenant, Subject], 7000, 3600, 7000);
    let (limits, _) = limits(&[a.clone(), b.clone()]);
    let total: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| passed(&limits, Level::Caller, asked("t", "s"), 20_000)))
            .collect();
        // In one order and the other: a deadlock, if rules were locked as they are written.
        while !workers.iter().all(ScopedJoinHandle::is_finished) {
            limits.install(Prepared::of(&[b.clone(), a.clone()]));
            limits.install(Prepared::of(&[a.clone(), b.clone()]));
        }
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    assert_eq!(total, 5000);
}

#[test]
fn keys_beyond_the_maximum_share_one_count() {
    let (limits, hand) = limits(&[rule("r", &[RateKey::Subject], 2, 3600, 2)]);
    let names: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
    let once = |name: &String| passed(&limits, Level::Caller, asked("t", name), 1);
    let first: u64 = names.iter().map(once).sum();
    let report = limits.report().remove(0);
    println!("{report:?}");
    assert!((1000..=1016).contains(&report.keys), "{report:?}");
    assert_eq!(
        first,
        report.keys as u64 + 2,
        "their own, and the two of all others"
    );
    assert_eq!(report.refused, 20_000 - first);
    assert_eq!(report.shared, 20_000 - report.keys as u64);
    // Who was there before the flood has what is its own.
    assert_eq!(once(&names[0]), 1);
    assert_eq!(once(&names[0]), 0);
    // When the keys have their burst again there is room.
    hand.advance(Duration::from_secs(3600));
    assert_eq!(once(&names[19_999]), 1);
    assert_eq!(once(&names[19_998]), 1);
}

#[test]
fn a_call_about_several_skills_shares_once() {
    let (limits, _) = limits(&[rule("r", &[RateKey::Skill], 9, 3600, 9)]);
    let count = |skills: &[&str]| {
        let call = Asked {
            skills,
            ..asked("t", "s")
        };
        limits.count(Level::Call, call).1.is_ok()
    };
    // Four times as many as have room, so that every part is full, wherever the keys of this process fall.
    for number in 0..4000 {
        count(&[&number.to_string()]);
    }
    let shared = || limits.report().remove(0).shared;
    let before = shared();
    assert!(before > 0);
    count(&["a", "b", "c"]);
    assert_eq!(shared(), before + 1);
}

/// It would be told when to come again, and be refused whenever it came.
#[test]
fn a_call_about_more_skills_than_a_burst_fits_where_they_share() {
    let (limits, hand) = limits(&[rule("r", &[RateKey::Skill], 2, 20_000, 2)]);
    let count = |skills: &[&str]| {
        let call = Asked {
            skills,
            ..asked("t", "s")
        };
        limits.count(Level::Call, call).1.is_ok()
    };
    // Twice: of those that are used up nothing is forgotten when the shared one has one again.
    for number in 0..8000 {
        count(&[&(number / 2).to_string()]);
    }
    assert!(
        !count(&["a", "b", "c"]),
        "nothing is left of what is shared"
    );
    hand.advance(Duration::from_secs(10_000));
    let shared = limits.report().remove(0).shared;
    assert!(count(&["a", "b", "c"]));
    assert_eq!(limits.report().remove(0).shared, shared + 1);
}

#[test]
fn idle_keys_are_forgotten() {
    let (limits, hand) = limits(&[rule("r", &[RateKey::Subject], 1, 10, 1)]);
    for number in 0..500 {
        passed(&limits, Level::Caller, asked("t", &number.to_string()), 1);
    }
    assert_eq!(limits.report()[0].keys, 500);
    let all_parts = || (0..16).for_each(|_| limits.sweep_some());
    hand.advance(Duration::from_millis(9999));
    all_parts();
    assert_eq!(limits.report()[0].keys, 500, "not yet");
    hand.advance(Duration::from_millis(1));
    all_parts();
    assert_eq!(limits.report()[0].keys, 0);
}

#[test]
fn a_flood_does_not_buy_sweeps() {
    const MS: u64 = 1_000_000;
    let mut ledger = Ledger::new(Pace::new(1000, 1, 1), 1000);
    for number in 0..100_000_u64 {
        let place = ledger.place(Key(number, number), 0);
        let _refused = ledger.count(place, 0);
    }
    assert_eq!(ledger.keys(), 1008);
    // Every key is idle after a millisecond, but each part was looked at when it was full.
    let new = Key(0, 1 << 60);
    assert_eq!(ledger.place(new, 99 * MS), Place::Shared);
    assert_eq!(ledger.keys(), 1008);
    assert_eq!(ledger.place(new, 100 * MS), Place::Own(new));
    assert_eq!(ledger.keys(), 1008 - 63, "one part was swept");
}

/// Memory of the process now and at its highest, KiB.
fn rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap()
}

#[test]
fn memory_under_a_flood_of_subjects_is_bounded() {
    let full = std::env::var_os("SKILLGATE_TEST_FULL").is_some_and(|value| value != "0");
    let subjects: u64 = if full { 1_000_000 } else { 50_000 };
    for max_keys in [100_000, 1_000_000] {
        let mut one = rule("r", &[RateKey::Tenant, RateKey::Subject], 600, 60, 100);
        one.max_keys = max_keys;
        let before = rss_kib();
        let (limits, _) = limits(&[one]);
        let began = Instant::now();
        for number in 0..subjects {
            let subject = format!("https://idp.example.com/users/{number:036}");
            let _either = limits.count(Level::Caller, asked("tenant", &subject));
        }
        let took = began.elapsed();
        let keys = limits.report()[0].keys;
        let grown = rss_kib().saturating_sub(before);
        println!(
            "{subjects} subjects, max_keys = {max_keys}: {keys} keys, {grown} KiB more, {} ns a call",
            took.as_nanos() / u128::from(subjects)
        );
        assert!(keys <= max_keys + 16);
        if full {
            assert!(grown < 100 * 1024, "{grown} KiB");
        }
    }
}
