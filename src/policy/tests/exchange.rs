//! What a reload does with new rules, and in which order.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::reload::Install;
use crate::telemetry::logged::Log;

const LAST: &str = "policy/last.json";

/// Rules with a number, to be remembered in that file.
fn numbered(rules: &str, sequence: u64, last: PathBuf) -> Prepared {
    numbered_in(PolicyMode::Enforce, rules, sequence, last)
}

fn numbered_in(mode: PolicyMode, rules: &str, sequence: u64, last: PathBuf) -> Prepared {
    let mut files = one(rules);
    let manifest = format!(
        "{{\"revision\": \"r{sequence}\", \"roots\": [\"skills\"], \"metadata\": {{\"sequence\": {sequence}}}}}"
    );
    files
        .add(".manifest".into(), manifest.into_bytes())
        .unwrap();
    let mut prepared = prepared(&files, mode, Confirm::Off);
    prepared.last = Some(last);
    prepared
}

/// What there is of new rules when a reload puts another part in place: the generation in force, the one that is announced, and
/// whether the disk has their number. And whether they were announced as being in force in the end.
fn exchanged(policy: &Policy, prepared: Prepared) -> ((u64, u64, bool), bool) {
    let last = prepared.last.clone().unwrap();
    let (announced, in_force) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (seen, is_told) = (announced.clone(), in_force.clone());
    let rules = policy.exchange(
        prepared,
        move |generation| announced.store(generation, Ordering::Relaxed),
        move || in_force.store(1, Ordering::Relaxed),
    );
    let (asked, met) = (policy.clone(), Arc::new(std::sync::Mutex::new(None)));
    let meets = met.clone();
    let other = Install::new(move || {
        let announced = seen.load(Ordering::Relaxed);
        *meets.lock().unwrap() = Some((asked.generation(), announced, last.exists()));
    });
    Install::all(vec![other, rules]);
    let met = met.lock().unwrap().take().unwrap();
    (met, is_told.load(Ordering::Relaxed) == 1)
}

/// Among the others are the secrets: what the rules before have allowed must not get a new one, and what the new ones allow no
/// old one.
#[test]
fn no_rules_begin_anything_while_the_other_parts_are_exchanged() {
    let dir = tempfile::tempdir().unwrap();
    let last = dir.path().join(LAST);
    let policy = enforced("decision := {\"allow\": true}");
    let narrower = || numbered("decision := {\"allow\": false}", 7, last.clone());
    assert_eq!(exchanged(&policy, narrower()), ((0, 1, true), true));
    assert_eq!(policy.generation(), 1);
    let kept = fs::read_to_string(&last).unwrap();
    assert!(kept.contains("\"sequence\":7"), "{kept}");

    // The same once more: what they have allowed is allowed still.
    assert_eq!(exchanged(&policy, narrower()), ((1, 0, true), true));
    assert_eq!(policy.generation(), 1);
}

#[test]
fn a_number_that_cannot_be_kept_is_said_keeps_no_rules_away_and_is_kept_later() {
    let dir = tempfile::tempdir().unwrap();
    // No directory can be made here.
    fs::write(dir.path().join("policy"), "").unwrap();
    let policy = enforced("decision := {\"allow\": true}");
    let narrower = numbered("decision := {\"allow\": false}", 7, dir.path().join(LAST));
    let (log, _here) = Log::begin();
    assert_eq!(exchanged(&policy, narrower), ((0, 1, false), true));
    assert_eq!(policy.generation(), 1);
    let said = log.taken();
    assert!(
        said.contains("the policy's sequence could not be kept"),
        "{said}"
    );
    assert!(policy.is_unkept() && policy.status().unkept.is_some());
    // What has no place in the order takes none.
    let shadow = numbered_in(
        PolicyMode::Shadow,
        "decision := {}",
        9,
        dir.path().join(LAST),
    );
    exchanged(&policy, shadow);
    let why = policy.keep().unwrap_err();
    assert!(why.contains("last.json: "), "{why}");
    fs::remove_file(dir.path().join("policy")).unwrap();
    policy.keep().unwrap();
    assert!(!policy.is_unkept() && policy.status().unkept.is_none());
    let kept = fs::read_to_string(dir.path().join(LAST)).unwrap();
    assert!(kept.contains("\"sequence\":7"), "{kept}");
}

/// Else what was enforced before the trial could not be enforced after it.
#[test]
fn a_shadow_is_not_remembered_until_it_is_enforced() {
    let dir = tempfile::tempdir().unwrap();
    let last = dir.path().join(LAST);
    let of = |mode, sequence| {
        numbered_in(
            mode,
            "decision := {\"allow\": true}",
            sequence,
            last.clone(),
        )
    };
    let kept = || fs::read_to_string(&last).unwrap_or_default();
    // Neither at the start...
    in_force(of(PolicyMode::Shadow, 6));
    assert_eq!(kept(), "");
    let policy = in_force(of(PolicyMode::Enforce, 7));
    assert!(kept().contains("\"sequence\":7"), "{}", kept());
    // ... nor by a reload.
    assert_eq!(
        exchanged(&policy, of(PolicyMode::Shadow, 8)),
        ((0, 1, true), true)
    );
    assert!(kept().contains("\"sequence\":7"), "{}", kept());
    // The very same rules, which decide now.
    assert_eq!(
        exchanged(&policy, of(PolicyMode::Enforce, 8)),
        ((1, 2, true), true)
    );
    assert!(kept().contains("\"sequence\":8"), "{}", kept());
}

/// A calendar that is set meanwhile has no part in it, nor have the same rules once more.
#[tokio::test(start_paused = true)]
async fn the_age_of_the_rules_is_the_time_that_has_passed() {
    let rules = || {
        prepared(
            &one("decision := {\"allow\": true}"),
            PolicyMode::Enforce,
            Confirm::Off,
        )
    };
    let policy = in_force(rules());
    assert_eq!(policy.status().age_s, 0);
    tokio::time::advance(Duration::from_secs(90)).await;
    policy.install(rules());
    assert_eq!(policy.status().age_s, 90);
}
