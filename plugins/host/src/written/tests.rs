//! What a process of its own may say in the place of a value.

use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::*;

const ROUNDS: usize = 400;

fn written<T: Wire>(value: &T) -> Vec<u8> {
    let mut out = Out::default();
    value.put(&mut out);
    assert!(out.fds.is_empty());
    out.bytes
}

fn read<T: Wire>(bytes: &[u8]) -> Read<T> {
    let mut nothing = VecDeque::new();
    let mut from = In::new(bytes, &mut nothing);
    let value = T::take(&mut from)?;
    from.end()?;
    Ok(value)
}

/// Lengths and counts that are at a bound, or beyond all of them.
const NUMBERS: [u64; 7] = [
    0,
    1,
    NAME_BYTES as u64,
    NAME_BYTES as u64 + 1,
    1 << 32,
    1 << 63,
    u64::MAX,
];

fn change(bytes: &mut Vec<u8>, random: &mut SmallRng) {
    let at = random.random_range(0..=bytes.len());
    let end = (at + random.random_range(1..16)).min(bytes.len());
    match random.random_range(0..5) {
        0 if at < bytes.len() => bytes[at] = random.random(),
        1 => drop(bytes.drain(at..end)),
        2 => bytes.splice(at..at, bytes[at..end].to_vec()).for_each(drop),
        3 => bytes.push(0),
        _ => {
            let number = NUMBERS.choose(random).unwrap().to_le_bytes();
            let end = (at + number.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
    }
}

/// It is read as it was; a part of it is nothing; and of what else is read each byte counts, so that nothing is there twice or is
/// passed over. Gives how often something else was.
fn hold<T: Wire>(value: &T, random: &mut SmallRng) -> usize {
    let bytes = written(value);
    let again: T = read(&bytes).unwrap();
    assert_eq!(written(&again), bytes);
    for end in 0..bytes.len() {
        assert!(read::<T>(&bytes[..end]).is_err(), "{end} of {bytes:?}");
    }
    let mut others = 0;
    for _ in 0..ROUNDS {
        let mut other = bytes.clone();
        (0..random.random_range(1..4)).for_each(|_| change(&mut other, random));
        if let Ok(value) = read::<T>(&other) {
            assert_eq!(written(&value), other);
            others += 1;
        }
    }
    others
}

#[test]
fn each_byte_of_a_value_counts() {
    let text = || "tëxt".to_owned();
    let stat = || BlobStat {
        id: "blob:a".into(),
        kind: text(),
        size_bytes: 7,
        ..BlobStat::default()
    };
    let skill = || Skill {
        read_only: true,
        name: text(),
        manifest_json: b"{}".to_vec(),
        files: vec![SkillFile::default(); 2],
        ..Skill::default()
    };
    let result = RunResult {
        completed: true,
        output_json: b"[1]".to_vec(),
        output_blobs: vec![text(), String::new()],
        ..RunResult::default()
    };
    let page = SkillPage {
        more: true,
        skills: vec![skill(), Skill::default()],
    };
    let request = RunRequest {
        skills: vec![RunSkill::default()],
        mounts: vec![Mount {
            target: text(),
            read_only: true,
            source: Source::Blob(text()),
            sha256: String::new(),
            size_bytes: 1,
        }],
        env: vec![(text(), String::new())],
        secrets: vec![text()],
        ..RunRequest::default()
    };
    let mut random = SmallRng::seed_from_u64(7411);
    let random = &mut random;
    let others = [
        hold(&Error::new(-1, text()).retryable(5), random),
        hold(&Health::default(), random),
        hold(&SandboxCaps::default(), random),
        hold(&stat(), random),
        hold(&skill(), random),
        hold(&page, random),
        hold(&result, random),
        hold(&request, random),
        hold(&(7_u64, stat()), random),
        hold(&(b"data".to_vec(), true), random),
        hold(&Content::Data(b"data".to_vec()), random),
    ];
    // What is read is not only what was written.
    assert!(others.iter().all(|n| *n > 0), "{others:?}");
}
