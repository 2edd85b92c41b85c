//! Files of the store are changed and exchanged at random: what it answers then is what was stored, or that it is not.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{BlobStat, Error, Skill, SkillQuery};
use skillgate_storage_fs::StorageFs;

use crate::support::*;

const ROUNDS: usize = 100;
const TENANTS: [&str; 3] = ["acme", "zeta", "nobody"];

type Files = Vec<(String, Vec<u8>)>;

/// What was stored, and whose it is.
#[derive(Default)]
struct Stored {
    skills: Vec<(&'static str, Skill, Files)>,
    blobs: Vec<(&'static str, BlobStat, Vec<u8>)>,
}

/// Some of the same files, and some of the same names.
fn fill(store: &StorageFs) -> Stored {
    let mut stored = Stored::default();
    for (tenant, name, version, code) in [
        ("acme", "a.b", "1.0.0", "1"),
        ("acme", "a.b", "1.1.0", "2"),
        ("acme", "a.c", "1.0.0", "1"),
        ("zeta", "a.b", "1.0.0", "1"),
    ] {
        let mut put = skill(tenant, name, version, code.as_bytes());
        put.publisher = format!("{tenant} {name} {version}");
        let skill = store.skill_put(&put).unwrap();
        stored.skills.push((tenant, skill, put.files));
    }
    for (seed, tenant, len) in [(1, "acme", 0), (2, "acme", 50), (3, "zeta", 50)] {
        let content = bytes(seed, len);
        let stat = store_blob(store, &blob_of(tenant), &content).unwrap();
        stored.blobs.push((tenant, stat, content));
    }
    stored
}

/// How often something was said to be there as it was, and how often not to be.
#[derive(Default)]
struct Seen {
    whole: usize,
    damaged: usize,
    /// What cannot be read at the start is not there.
    missing: usize,
}

impl Seen {
    fn see<T>(&mut self, outcome: Result<T, Error>, is_it: impl FnOnce(T) -> bool) {
        match outcome {
            Ok(given) => {
                assert!(is_it(given));
                self.whole += 1;
            }
            Err(error) if error.code == abi::E_CORRUPT => self.damaged += 1,
            Err(error) => {
                assert_eq!(error.code, abi::E_NOT_FOUND, "{error}");
                self.missing += 1;
            }
        }
    }

    fn look(&mut self, store: &StorageFs, stored: &Stored) {
        for (tenant, skill, files) in &stored.skills {
            let (name, version) = (&*skill.name, &*skill.version);
            let got = store.skill_get(tenant, name, version);
            self.see(got, |got| got == *skill);
            for (path, content) in files {
                let got = store.skill_read(tenant, name, version, path);
                self.see(got, |got| data(got) == *content);
            }
            self.see(store.skill_tree(tenant, name, version), |_| true);
        }
        for tenant in TENANTS {
            let query = SkillQuery {
                limit: 100,
                tenant: tenant.to_owned(),
                ..SkillQuery::default()
            };
            for listed in store.skill_list(&query).unwrap().skills {
                let is_it = |(of, skill, _): &(&str, Skill, Files)| {
                    *of == tenant && skill.publisher == listed.publisher
                };
                assert!(stored.skills.iter().any(is_it), "{tenant}: {listed:?}");
            }
        }
        let missing = self.missing;
        for (tenant, stat, content) in &stored.blobs {
            let got = store.blob_stat(tenant, &stat.id);
            self.see(got, |got| got == *stat);
            let got = read_blob(store, tenant, &stat.id);
            self.see(got, |got| got == *content);
            self.see(store.blob_fd(tenant, &stat.id), |(_, got)| got == *stat);
        }
        assert_eq!(self.missing, missing, "a blob that is damaged is there");
    }
}

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut SmallRng) {
    let at = random.random_range(0..=bytes.len());
    let end = (at + random.random_range(1..30)).min(bytes.len());
    match random.random_range(0..6) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes.truncate(at),
        2 => drop(bytes.drain(at..end)),
        3 => bytes.splice(at..at, bytes[at..end].to_vec()).for_each(drop),
        4 => bytes.push(b' '),
        _ => *bytes = other.to_vec(),
    }
}

fn all_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all_files(&path, found),
            false => found.push(path),
        }
    }
}

/// Until a file that is changed has another time than one that was changed before: kernels until 6.12 go by the ticks of their clock,
/// and what happens within one is not seen.
fn let_times_pass(bench: &Bench) {
    let file = bench.dir.path().join("changed");
    let time = || {
        std::fs::write(&file, "x").unwrap();
        let meta = file.metadata().unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    let before = time();
    while time() == before {}
}

#[test]
fn what_is_answered_was_stored() {
    let bench = Bench::in_memory();
    let mut store = Some(bench.store());
    let stored = fill(store.as_ref().unwrap());
    let mut paths = Vec::new();
    all_files(&bench.root().join("tenants"), &mut paths);
    // The names of blobs are others each time.
    paths.sort();
    let is_record = |path: &&PathBuf| path.ends_with("meta.json");
    let records: Vec<PathBuf> = paths.iter().filter(is_record).cloned().collect();
    let mut random = SmallRng::seed_from_u64(7411);
    let (mut seen, mut running) = (Seen::default(), Seen::default());
    for _ in 0..ROUNDS {
        let [path, other] = [(); 2].map(|()| {
            // What each file is by is in them.
            let from = [&paths, &records].choose(&mut random).copied().unwrap();
            from.choose(&mut random).unwrap()
        });
        let kept = [path, other].map(|path| std::fs::read(path).unwrap());
        let is_running = random.random_bool(0.5);
        if is_running {
            store.get_or_insert_with(|| bench.store());
            let_times_pass(&bench);
        } else {
            store = None;
        }
        if random.random_bool(0.5) {
            std::fs::write(path, &kept[1]).unwrap();
            std::fs::write(other, &kept[0]).unwrap();
        } else {
            let mut bytes = kept[0].clone();
            change(&mut bytes, &kept[1], &mut random);
            std::fs::write(path, bytes).unwrap();
        }
        let now = store.get_or_insert_with(|| bench.store());
        let into = if is_running { &mut running } else { &mut seen };
        into.look(now, &stored);
        std::fs::write(path, &kept[0]).unwrap();
        std::fs::write(other, &kept[1]).unwrap();
        if !is_running {
            store = None;
        }
    }
    assert_eq!(running.missing, 0, "what is damaged later is not gone");
    for seen in [&running, &seen] {
        assert!(seen.whole > ROUNDS && seen.damaged > ROUNDS / 4);
    }
    assert!(seen.missing > 0);
}
