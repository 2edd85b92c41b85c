//! What a run gets is what both allow, its manifests and the decision, for any of their patterns.

use std::borrow::Cow;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;
use skillgate_skill::NetworkPattern;
use skillgate_skill::network::Scheme;

use super::super::decision::{Decision, Declared};

const HOSTS: [&str; 4] = ["a.com", "b.a.com", "x.b.a.com", "c.com"];

/// Some patterns, which often contain each other.
fn patterns(random: &mut StdRng) -> Vec<String> {
    let mut one = || {
        let mut word = |words: &[&'static str]| *words.choose(random).unwrap();
        let (star, host) = (word(&["", "*."]), word(&HOSTS));
        format!("https://{star}{host}{}", word(&["", ":8443"]))
    };
    let all = [one(), one(), one()];
    all[random.random_range(0..all.len())..].to_vec()
}

fn parsed(patterns: &[String]) -> Vec<NetworkPattern> {
    let parse = |text: &String| NetworkPattern::parse(text).unwrap();
    patterns.iter().map(parse).collect()
}

#[test]
fn a_run_gets_what_both_allow() {
    let mut random = StdRng::seed_from_u64(8707);
    let (mut both, mut one) = (0, 0);
    for _ in 0..500 {
        let (decided, manifests) = (
            patterns(&mut random),
            [patterns(&mut random), patterns(&mut random)],
        );
        let declared = manifests.each_ref().map(|network| Declared {
            name: "a.b",
            network: Cow::Owned(parsed(network)),
            secrets: Cow::default(),
        });
        let decision =
            json!({ "allow": true, "grants": { "code": { "network": decided } } }).to_string();
        let decision = regorus::Value::from_json_str(&decision).unwrap();
        let grant = Decision::parse(&decision).unwrap();
        let grant = grant.grant("run_code", &declared).unwrap();
        let (granted, decided) = (parsed(&grant.network), parsed(&decided));
        for host in HOSTS {
            for (host, port) in [(host, 443), (host, 8443), (&format!("y.{host}"), 443)] {
                let allow = |patterns: &[NetworkPattern]| {
                    let mut patterns = patterns.iter();
                    patterns.any(|pattern| pattern.matches(Scheme::Https, host, port))
                };
                let wanted = [
                    allow(&decided),
                    declared.iter().any(|skill| allow(&skill.network)),
                ];
                assert_eq!(
                    allow(&granted),
                    wanted == [true; 2],
                    "{host}:{port} of {decided:?} and {declared:?}"
                );
                both += usize::from(wanted == [true; 2]);
                one += usize::from(wanted[0] != wanted[1]);
            }
        }
    }
    assert!(both > 500 && one > 500, "{both}, {one}");
}
