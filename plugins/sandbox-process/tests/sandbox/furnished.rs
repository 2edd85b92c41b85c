//! Children that wait with the mounts of a skill that is run again and again.

use std::path::Path;

use serde_json::{Value, json};

use crate::basics::{mount, open_to_all};
use crate::pool::waiting;
use crate::support::*;
use crate::tools;
use crate::zygote::warm;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::{RunRequest, Source};

/// Of eight that wait, with one kind of run.
const FURNISHED: u64 = 6;
/// The names and files that are there, and how the mounts look.
const LOOK: &str = "\
import os
def main(args):
    seen = {}
    for place in ('/skills', '/blobs'):
        for name in sorted(os.listdir(place)):
            seen[name] = open(f'{place}/{name}/who').read()
    lines = [line.split() for line in open('/proc/self/mountinfo')]
    # Without ids, devices, the host's path and the user that a tmpfs belongs to.
    table = [[f[4], f[5], *f[f.index('-') + 1:f.index('-') + 2]] for f in lines]
    return {'seen': seen, 'table': sorted(map(str, table))}
";

struct World {
    instance: Instance,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        open_to_all(dir.path());
        let world = World {
            instance: warm(json!({"pool_min": 8, "pool_max": 8})),
            dir,
        };
        for name in ["a", "b"] {
            world.write(name, name);
        }
        world
    }

    fn write(&self, name: &str, who: &str) {
        let skill = self.dir.path().join(name);
        std::fs::create_dir_all(&skill).unwrap();
        std::fs::write(skill.join("who"), who).unwrap();
        open_to_all(&skill);
    }

    fn request(&self, skills: &[&str]) -> RunRequest {
        let of = |name: &&str| {
            let path = self.dir.path().join(name).display().to_string();
            mount(&format!("/skills/acme.{name}"), Source::Path(path))
        };
        RunRequest {
            mounts: skills.iter().map(of).collect(),
            ..request(LOOK)
        }
    }

    fn look(&self, skills: &[&str]) -> Value {
        let (result, services) = self.instance.run(self.request(skills));
        returned(&result, &services)
    }

    fn metric(&self, name: &str) -> u64 {
        metric(&self.instance, name)
    }

    /// Runs these, many at once, until most children wait for their like: those that wait without are taken last.
    fn make_usual(&self, skills: &[&str]) -> Value {
        let seen = self.look(skills);
        eventually("most wait for these", || {
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| assert_eq!(self.look(skills), seen));
                }
            });
            eventually("all wait", || self.metric("pool_idle") == 8);
            self.metric("pool_furnished") == FURNISHED
        });
        seen
    }

    /// Runs these until one takes a child that has waited for its like: on a busy machine one without mounts that has rehearsed
    /// comes before those that have not yet (the unit tests of the pool assert the order). Each sees what is expected.
    fn taken_furnished(&self, skills: &[&str], expected: impl Fn(&Value) -> bool) {
        let before = self.metric("runs_furnished");
        eventually("one takes a child with its mounts", || {
            let seen = self.look(skills);
            assert!(expected(&seen), "{seen}");
            self.metric("runs_furnished") > before
        });
    }

    fn all_wait(&self, furnished: u64) {
        eventually("all wait, with their mounts", || {
            (self.metric("pool_idle"), self.metric("pool_furnished")) == (8, furnished)
        });
    }
}

#[test]
fn a_run_finds_what_it_has_asked_for_and_nothing_that_waited_for_others() {
    let world = World::new();
    let first = world.make_usual(&["a"]);
    assert_eq!(first["seen"], json!({"acme.a": "a"}));
    let others = [&[][..], &["b"], &["a", "b"]];
    for skills in others.into_iter().cycle().take(6) {
        let before = world.metric("runs_furnished");
        let seen = world.look(skills)["seen"].clone();
        let expected: Value = skills
            .iter()
            .map(|s| (format!("acme.{s}"), json!(s)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        assert_eq!(seen, expected);
        assert_eq!(world.metric("runs_furnished"), before, "{skills:?}");
        // As isolated, and as much of it.
        world.taken_furnished(&["a"], |seen| *seen == first);
        world.all_wait(FURNISHED);
    }
}

/// More runs at once than there are children without mounts: theirs are made, and those that wait for others stay.
#[test]
fn runs_of_another_kind_do_not_wait_for_those_that_wait_for_the_usual() {
    let world = World::new();
    world.make_usual(&["a"]);
    let (furnished, fresh) = (world.metric("runs_furnished"), world.metric("runs_fresh"));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(world.look(&[])["seen"], json!({})));
        }
    });
    assert_eq!(world.metric("runs_furnished"), furnished);
    assert_eq!(world.metric("runs_fresh"), fresh, "none was given up");
}

#[test]
fn what_is_at_the_path_now_is_what_a_run_sees() {
    let world = World::new();
    world.make_usual(&["a"]);
    world.write("new", "new");
    let at = |name: &str| world.dir.path().join(name);
    let exchange = |from: &Path, to: &Path| std::fs::rename(from, to).unwrap();
    exchange(&at("a"), &at("old"));
    exchange(&at("new"), &at("a"));
    let before = world.metric("runs_furnished");
    assert_eq!(world.look(&["a"])["seen"], json!({"acme.a": "new"}));
    assert_eq!(world.metric("runs_furnished"), before, "with the old one");
    // The new one becomes the usual one in its turn, and what waited with the old one goes.
    let seen = world.make_usual(&["a"]);
    assert_eq!(seen["seen"], json!({"acme.a": "new"}));
    // In place.
    world.write("a", "newer");
    world.taken_furnished(&["a"], |seen| seen["seen"] == json!({"acme.a": "newer"}));
}

#[test]
fn where_the_usual_mounts_are_gone_children_wait_without() {
    let world = World::new();
    world.make_usual(&["a"]);
    std::fs::remove_dir_all(world.dir.path().join("a")).unwrap();
    let (plugin, services) = (&world.instance.plugin, Services::default());
    let refused = plugin.run(world.request(&["a"]), &services).unwrap_err();
    assert!(refused.message.contains("/skills/acme.a"), "{refused}");
    let idle = || waiting(&world.instance, "skillgate-idle");
    let killed = idle();
    for pid in &killed {
        // One that has gone by itself is dead too.
        let _ = tools::kill("-9", *pid);
    }
    for _ in 0..3 {
        assert_eq!(world.look(&["b"])["seen"], json!({"acme.b": "b"}));
    }
    eventually("eight wait, each of them alive", || {
        let now = idle();
        let alive = now.iter().filter(|pid| !killed.contains(pid));
        world.metric("pool_idle") == 8 && (now.len(), alive.count()) == (8, 8)
    });
    // They are not made and given up, again and again.
    let before = idle();
    world.look(&["b"]);
    let after = idle();
    let stay = before.iter().filter(|pid| after.contains(pid)).count();
    assert!(stay >= 6, "{stay} of eight");
}
