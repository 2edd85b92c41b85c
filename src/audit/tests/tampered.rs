//! Changes that nobody has listed: each shows, but for what a chain cannot show.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::super::chain::Head;
use super::*;

/// A log's lines, as it seals them.
fn sealed(count: u64) -> Vec<Vec<u8>> {
    let mut head = Head::genesis();
    let line = |n| {
        let (members, mut line) = (format!(r#","timestamp":"t","é":{n}"#), Vec::new());
        head.seal("decision", &[members.as_bytes()], &mut line);
        line
    };
    (1..=count).map(line).collect()
}

/// A record with the hash of its bytes that was never written.
fn forged(sequence: u64) -> Vec<u8> {
    let mut line = Vec::new();
    let mut before = Head {
        sequence: sequence - 1,
        ..Head::genesis()
    };
    before.seal("run", &[], &mut line);
    line
}

/// Whether a log of these bytes is found to be whole.
fn is_whole(place: &Place, log: &[u8]) -> bool {
    fs::create_dir_all(place.path().parent().unwrap()).unwrap();
    fs::write(place.path(), log).unwrap();
    place.verify().ok
}

#[test]
fn no_changed_byte_is_overlooked() {
    let (place, mut random) = (Place::new(), StdRng::seed_from_u64(6962));
    let log = sealed(2).concat();
    assert!(is_whole(&place, &log));
    for at in 0..log.len() {
        let byte = log[at];
        let other = byte ^ random.random_range(1..=255);
        for change in [&[][..], &[other], b"\n", &[byte, byte]] {
            let changed = [&log[..at], change, &log[at + 1..]].concat();
            let is_found = !is_whole(&place, &changed);
            assert!(is_found || changed == log, "{change:?} at {at}");
        }
    }
}

#[test]
fn only_lines_that_followed_each_other_are_whole() {
    let (place, mut random) = (Place::new(), StdRng::seed_from_u64(6962));
    let lines = sealed(6);
    let mut whole = 0;
    for _ in 0..500 {
        let mut some = lines.clone();
        for _ in 0..random.random_range(1..4) {
            let (one, other) = (
                random.random_range(0..some.len()),
                random.random_range(0..some.len()),
            );
            match random.random_range(0..4) {
                0 => some.swap(one, other),
                1 => drop(some.remove(if random.random() { 0 } else { one })),
                2 => some.insert(other, some[one].clone()),
                _ => some.insert(other, forged([1, 4, u64::MAX][one % 3])),
            }
        }
        let are_in_order = lines.windows(some.len()).any(|part| part == some);
        whole += usize::from(are_in_order);
        let log = some.concat();
        assert_eq!(
            is_whole(&place, &log),
            are_in_order,
            "{}",
            String::from_utf8_lossy(&log)
        );
    }
    assert!(whole > 20, "{whole}");
}
