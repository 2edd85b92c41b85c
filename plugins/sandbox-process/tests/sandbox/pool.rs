//! Children that wait, and the namespaces that they are lent.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::json;

use crate::basics::mount;
use crate::support::*;
use crate::tools;
use crate::zygote::{settled, warm, zygotes};
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::{RunRequest, Source};

pub(crate) fn waiting(instance: &Instance, name: &str) -> Vec<u32> {
    descendants(instance.plugin.launcher_pid().unwrap())
        .into_iter()
        .filter(|pid| name_of(*pid) == name)
        .collect()
}

/// Network namespaces that the launcher holds: its own, and those of leases.
pub(crate) fn namespaces(launcher: u32) -> usize {
    std::fs::read_dir(format!("/proc/{launcher}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter(|to| to.to_string_lossy().starts_with("net:"))
        .count()
}

#[test]
fn children_wait_and_each_has_one_run() {
    let instance = warm(json!({"pool_min": 3}));
    let mut used = BTreeSet::new();
    for i in 1..=8 {
        eventually("three wait", || {
            metric(&instance, "pool_idle") == 3 && waiting(&instance, "skillgate-idle").len() == 3
        });
        let before: BTreeSet<u32> = waiting(&instance, "skillgate-idle").into_iter().collect();
        assert!(before.is_disjoint(&used), "one waits again");
        assert_eq!(instance.output("def main(args): return 1\n"), 1);
        assert_eq!(metric(&instance, "runs_from_pool"), i);
        eventually("the one that had the run is gone", || {
            let now: BTreeSet<u32> = waiting(&instance, "skillgate-idle").into_iter().collect();
            let gone: Vec<u32> = before.difference(&now).copied().collect();
            used.extend(&gone);
            gone.len() == 1
        });
    }
}

/// Groups are what a terminal and kill(2) send signals to.
#[test]
fn signals_to_a_group_stay_in_a_run() {
    let instance = warm(json!({"pool_min": 3}));
    let named = |name: &str| waiting(&instance, name);
    eventually("three wait", || named("skillgate-idle").len() == 3);
    let [group, session, terminal] = [5, 6, 7];
    for init in named("skillgate-init") {
        assert_eq!(stat_field(init, group), u64::from(init), "process 1");
        assert_eq!(stat_field(init, terminal), 0, "process 1");
    }
    for program in named("skillgate-idle") {
        let own = [group, session].map(|field| stat_field(program, field));
        assert_eq!(own, [u64::from(program); 2], "process 2");
    }
}

/// The kernel counts for each user what is under way between sockets, and where the gateway is an ordinary user's that is one
/// with those of its runs.
#[test]
fn descriptors_that_a_run_has_under_way_keep_nobody_from_work() {
    let instance = warm(json!({"pool_min": 3}));
    let mut hoard = request(
        "import os, socket, time\ndef main(args):\n    a, b = socket.socketpair()\n    sent = 0\n    try:\n        while True: socket.send_fds(a, [b'x'], [0] * 253); sent += 253\n    except OSError: pass\n    print('under way', sent > 1000, flush=True)\n    time.sleep(100)\n",
    );
    hoard.run_id = "run-hoards".into();
    let id = hoard.run_id.clone();
    let services = Services::default();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| instance.plugin.run(hoard, &services).unwrap());
        eventually("it has them", || services.text().contains("under way"));
        let made = [
            metric(&instance, "zygotes_lost"),
            metric(&instance, "runs_fresh"),
        ];
        for n in 0..20 {
            assert_eq!(instance.output(&format!("def main(args): return {n}\n")), n);
        }
        let now = [
            metric(&instance, "zygotes_lost"),
            metric(&instance, "runs_fresh"),
        ];
        instance.plugin.cancel(&id);
        assert_eq!(run.join().unwrap().error_type, "Cancelled");
        assert!(services.text().contains("True"), "{}", services.text());
        assert_eq!(
            now, made,
            "zygotes lost and runs with an interpreter of their own"
        );
    });
}

#[test]
fn a_child_that_dies_while_it_waits_loses_no_run() {
    let instance = warm(json!({"pool_min": 4}));
    eventually("four wait", || {
        waiting(&instance, "skillgate-idle").len() == 4
    });
    for name in ["skillgate-idle", "skillgate-init"] {
        let killed = waiting(&instance, name);
        for pid in &killed {
            // One that has gone by itself is dead too.
            let _ = tools::kill("-9", *pid);
        }
        // On a busy host an init dies a little later, and takes what has begun by then with it.
        eventually("they are dead", || {
            let all = descendants(instance.plugin.launcher_pid().unwrap());
            killed.iter().all(|pid| !all.contains(pid))
        });
        for _ in 0..6 {
            assert_eq!(instance.output("def main(args): return 1\n"), 1);
        }
    }
    eventually("as many wait as are wanted, and no dead one", || {
        let idle = waiting(&instance, "skillgate-idle").len() as u64;
        let metric = |name| metric(&instance, name);
        idle >= 4 && [metric("pool_idle"), metric("pool_target")] == [idle; 2]
    });
}

/// The group that counts a process among others, of either version.
fn group_of_pids(process: &str) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let find = |mark| groups.lines().find_map(|line| line.split(mark).nth(1));
    let version_1 = find(":pids:").map(|group| format!("/sys/fs/cgroup/pids{group}"));
    let either = version_1.or_else(|| Some(format!("/sys/fs/cgroup{}", find("0::")?)));
    either.map(PathBuf::from)
}

/// As in a container whose limit leaves the gateway what it has and nothing more.
#[test]
fn where_no_process_is_left_children_are_not_made_again_and_again() {
    let instance = warm(json!({"pool_min": 1, "pool_max": 1}));
    let child = eventually_there("one waits", || {
        let idle = waiting(&instance, "skillgate-idle");
        idle.first().copied().ok_or("none")
    });
    let group = group_of_pids(&child.to_string());
    let all = group.and_then(|group| Some(group.parent()?.join("pids.max")));
    let Some(all) = all.filter(|all| is_root() && all.exists()) else {
        return tools::left_out("there is no limit for all runs together here");
    };
    std::fs::write(&all, "1").unwrap();
    assert!(tools::kill("-9", child));
    let said = || instance.plugin.health().unwrap().report_json;
    eventually("health says why", || {
        said().contains("its children die at their birth: isolation step Init")
    });
    std::fs::write(&all, "max").unwrap();
    eventually("children live again", || metric(&instance, "zygotes") == 1);
    assert!(!said().contains("die at their birth"));
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    let ways = ["runs_fresh", "zygotes_lost"].map(|name| metric(&instance, name));
    assert_eq!(ways, [0, 0]);
}

/// ... nor three for each run where none waits: those have a run when they die.
#[test]
fn where_no_process_is_left_runs_do_not_try_one_child_after_the_other() {
    let skills = tempfile::tempdir().unwrap();
    let path = skills.path().to_str().unwrap().to_owned();
    no_process_is_left_for(request("def main(args): return 1\n"));
    let mut of_a_skill = request("def main(args): return 1\n");
    of_a_skill.mounts = vec![mount("/skills/a", Source::Path(path))];
    no_process_is_left_for(of_a_skill);
}

fn no_process_is_left_for(run: RunRequest) {
    let instance = warm(json!({"pool_min": 0, "pool_max": 0}));
    let launcher = instance.plugin.launcher_pid().unwrap();
    let name = format!("-{launcher}");
    // In the launcher's own group, or beside it.
    let own = group_of_pids("self").unwrap_or_default();
    let around = own.ancestors().take(2);
    let mut groups = around
        .filter_map(|dir| std::fs::read_dir(dir).ok())
        .flatten();
    let of_all = groups.find_map(|group| {
        let path = group.ok()?.path();
        let is_it = path.to_string_lossy().ends_with(&name);
        Some(path.join("pids.max")).filter(|file| is_it && file.exists())
    });
    let Some(of_all) = of_all else {
        return tools::left_out("there is no limit for all runs together here");
    };
    std::fs::write(of_all, "1").unwrap();
    let failed = instance.plugin.run(run, &Services::default()).unwrap_err();
    assert!(failed.not_executed, "{failed:?}");
    let said = instance.plugin.health().unwrap().report_json;
    let why = "its children die at their birth: isolation step Init";
    assert!(said.contains(why), "{said}");
}

/// It may have so many files, or its user so many namespaces: with another zygote it would have as few.
#[test]
fn a_launcher_that_lacks_what_a_child_needs_keeps_its_zygote() {
    if !is_root() {
        return tools::left_out("the launcher of an ordinary user does not show its descriptors");
    }
    let instance = warm(json!({"pool_min": 0, "pool_max": 0}));
    // Its spare has its name for a moment.
    let [before, _] = settled(&instance, &[]);
    let launcher = instance.plugin.launcher_pid().unwrap().to_string();
    let limit = |of: &str| {
        let mut prlimit = Command::new("prlimit");
        prlimit.args(["--noheadings", "--output", "SOFT", "--pid", &launcher, of]);
        succeeds(&mut prlimit).trim().to_owned()
    };
    let files = limit("--nofile");
    // Groups that were made ahead would make room.
    let is_free = |fd: &u32| {
        let leads_to = std::fs::read_link(format!("/proc/{launcher}/fd/{fd}"));
        leads_to.is_err() || leads_to.is_ok_and(|to| to.starts_with("/sys/fs/cgroup"))
    };
    let next = (0..).find(is_free).unwrap();
    limit(&format!("--nofile={next}:"));
    let run = request("def main(args): return 1\n");
    let failed = instance.plugin.run(run, &Services::default()).unwrap_err();
    assert!(failed.not_executed, "{failed:?}");
    let said = instance.plugin.health().unwrap().report_json;
    assert!(said.contains("Too many open files"), "{said}");
    limit(&format!("--nofile={files}:"));
    eventually("children are made again", || {
        metric(&instance, "zygotes") == 1
    });
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    assert_eq!(zygotes(&instance), [before]);
    let counted = ["zygotes_lost", "launcher_starts"].map(|name| metric(&instance, name));
    assert_eq!(counted, [0, 1]);
}

#[test]
fn the_pool_grows_with_what_is_needed_and_stays_in_its_bounds() {
    let instance = warm(json!({"pool_min": 1, "pool_max": 6}));
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                for _ in 0..4 {
                    assert_eq!(instance.output("def main(args): return 1\n"), 1);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.into_inner(), 48);
    // On a slow machine it may be shrinking again.
    let target = metric(&instance, "pool_target");
    assert!((2..=6).contains(&target), "{target}");
    eventually("it is full", || {
        let idle = metric(&instance, "pool_idle");
        idle == metric(&instance, "pool_target")
            && waiting(&instance, "skillgate-idle").len() == idle as usize
    });
}

#[test]
fn without_a_pool_each_child_is_made_for_its_run() {
    let instance = warm(json!({"pool_max": 0}));
    let begun = Instant::now();
    let all_us = || begun.elapsed().as_micros() as u64;
    let mut waited_us = metric(&instance, "runs_waited_us");
    for _ in 0..5 {
        assert_eq!(instance.output("def main(args): return 1\n"), 1);
        let before = std::mem::replace(&mut waited_us, metric(&instance, "runs_waited_us"));
        assert!((before + 1..before + all_us()).contains(&waited_us));
    }
    assert_eq!(
        [
            "runs_on_demand",
            "runs_from_pool",
            "runs_fresh",
            "runs_waiting"
        ]
        .map(|name| metric(&instance, name)),
        [5, 0, 0, 0]
    );
    eventually("nobody waits", || {
        waiting(&instance, "skillgate-idle").is_empty() && metric(&instance, "pool_idle") == 0
    });
}

/// Without a pool one run after the other has the same lease; a run of its own gets new ones, whatever their numbers.
#[test]
fn namespaces_are_leased_to_one_run_after_the_other() {
    let code = "import os\ndef main(args): return [os.stat('/proc/self/ns/' + n).st_ino for n in ('net', 'ipc', 'user')]\n";
    let instance = warm(json!({"pool_max": 0}));
    let seen: BTreeSet<String> = (0..8)
        .map(|_| {
            let at = instance.output(code).to_string();
            eventually("its lease is free", || {
                processes_of_runs(instance.plugin.launcher_pid().unwrap()).is_empty()
            });
            at
        })
        .collect();
    assert!(seen.len() <= 3, "{seen:?}");
    let open = |instance: &Instance| namespaces(instance.plugin.launcher_pid().unwrap());
    // Home, and leases.
    assert!(open(&instance) >= 2);
    let instance = warm(json!({"pool_max": 0, "namespaces": "fresh"}));
    for _ in 0..4 {
        instance.output(code);
    }
    eventually("nothing is kept", || open(&instance) == 1);
}

/// Of a control group version 1, where each controller has a directory: that of memory is each run's own, others are lent to
/// the next, but not after a run that has met their limit.
#[test]
fn directories_that_keep_nothing_of_a_run_are_lent() {
    let code = "def main(args): return 1\n";
    let bomb = "\
import os, time
def main(args):
    try:
        while True:
            if os.fork() == 0: time.sleep(10); os._exit(0)
    except OSError as e:
        return e.errno
";
    let instance = warm(json!({"pool_min": 1, "pool_max": 1}));
    let launcher = instance.plugin.launcher_pid().unwrap();
    let (mut before, mut of_memory, mut of_pids, mut bombed) =
        (0, BTreeSet::new(), BTreeSet::new(), None);
    for run in 0..16 {
        let mut of_next = String::new();
        eventually("another waits", || {
            // The one that the plugin knows: a run that has to wait would have a second one made.
            let idle = waiting(&instance, "skillgate-idle");
            let [pid] = idle[..] else {
                return false;
            };
            if pid == before || metric(&instance, "pool_idle") != 1 {
                return false;
            }
            before = pid;
            of_next = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            !of_next.is_empty()
        });
        let directory = |controller: &str| {
            let line = of_next
                .lines()
                .find(|l| l.contains(&format!(":{controller}:")));
            line.map(|l| l.rsplit(':').next().unwrap_or_default().to_owned())
        };
        let (Some(memory), Some(pids)) = (directory("memory"), directory("pids")) else {
            return tools::left_out("no control groups of version 1 here");
        };
        if !pids.contains("/run-") {
            return tools::left_out("no control groups for runs here");
        }
        assert_ne!(bombed.as_ref(), Some(&pids), "lent after its limit was met");
        assert!(of_memory.insert(memory.clone()), "{memory} a second time");
        if run == 8 {
            assert_eq!(instance.output(bomb), libc::EAGAIN);
            bombed = Some(pids.clone());
        } else {
            assert_eq!(instance.output(code), 1);
        }
        of_pids.insert(pids);
        eventually("it is over", || processes_of_runs(launcher).is_empty());
    }
    assert!(of_pids.len() < 10, "{of_pids:?}");
}

/// Looks while a run of `code`, which says "here", is under way, and ends it.
pub(crate) fn while_it_runs(instance: &Instance, code: &str, look: impl FnOnce()) {
    let services = Services::default();
    let request = request(code);
    let id = request.run_id.clone();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| instance.plugin.run(request, &services));
        eventually("it is there", || services.text() == "here\n");
        look();
        instance.plugin.cancel(&id);
        run.join().unwrap().unwrap();
    });
    let launcher = instance.plugin.launcher_pid().unwrap();
    eventually("it is over", || processes_of_runs(launcher).is_empty());
}

/// A run's limit is that of its own request, whatever the run before was given that had the same directory.
#[test]
fn what_is_lent_has_the_limits_of_the_run() {
    let instance = warm(json!({"pool_min": 1, "pool_max": 1}));
    let launcher = instance.plugin.launcher_pid().unwrap();
    let limit_of = |pid: &u32| {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let path = groups.lines().find_map(|l| l.split(":pids:").nth(1))?;
        std::fs::read_to_string(format!("/sys/fs/cgroup/pids{path}/pids.max")).ok()
    };
    let over = || {
        eventually("it is over", || processes_of_runs(launcher).is_empty());
    };
    for _ in 0..6 {
        let mut larger = request("def main(args): return 1\n");
        larger.limits.max_pids = 200;
        assert!(instance.run(larger).0.completed);
        over();
        let sleeps = "import time\ndef main(args): print('here', flush=True); time.sleep(60)\n";
        while_it_runs(&instance, sleeps, || {
            // One that is just being made, for a run like the last, has no interpreter yet.
            let interpreters = processes_of_runs(launcher)
                .into_iter()
                .filter(|pid| name_of(*pid) != "skillgate-init");
            for pid in interpreters {
                // Elsewhere there is nothing that is lent.
                if let Some(limit) = limit_of(&pid) {
                    assert_eq!(limit.trim(), (limits().max_pids + 1).to_string());
                }
            }
        });
    }
}

/// Of the processors a run that has had some has a smaller share than one that has just begun, and hands it on to nobody.
#[test]
fn a_run_that_lasts_makes_way() {
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        let launcher = instance.plugin.launcher_pid().unwrap();
        let shares = || -> Vec<u64> {
            let all = processes_of_runs(launcher);
            all.iter().filter_map(share_of).collect()
        };
        for _ in 0..3 {
            let busy = "def main(args):\n    print('here', flush=True)\n    while True: pass\n";
            while_it_runs(&instance, busy, || {
                if !shares().is_empty() && is_root() {
                    eventually("it makes way", || shares().iter().any(|s| *s < SHARE / 5));
                }
            });
            for _ in 0..4 {
                assert_eq!(instance.output("def main(args): return 1\n"), 1);
                let waiting = waiting(&instance, "skillgate-idle");
                let all: Vec<u64> = waiting.iter().filter_map(share_of).collect();
                assert!(
                    all.iter().all(|share| *share >= SHARE),
                    "{}: {all:?}",
                    mode.name
                );
            }
        }
    }
}

/// Those made under load rehearse when the load is over: a rehearsal closes the descriptors that it was given.
#[test]
fn children_that_a_burst_leaves_behind_rehearse() {
    if !is_root() {
        return tools::left_out("what belongs to the users of runs does not show its descriptors");
    }
    let instance = warm(json!({"pool_min": 4, "pool_max": 8}));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..8 {
                    assert_eq!(instance.output("def main(args): return 1\n"), 1);
                }
            });
        }
    });
    eventually("all that wait have rehearsed", || {
        let idle = waiting(&instance, "skillgate-idle");
        let has =
            |pid: &u32, fd: u32| std::path::Path::new(&format!("/proc/{pid}/fd/{fd}")).exists();
        idle.len() >= 4
            && idle
                .iter()
                .all(|pid| has(pid, 3) && !has(pid, 8) && !has(pid, 9))
    });
}

/// As long as many runs that came at once want the processors, none of them goes to children for later.
#[test]
fn a_burst_has_the_processors_for_itself() {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    if processors > 16 {
        return tools::left_out("what is many goes by the processors, of which there are too many");
    }
    let many = 4 * processors as u64 + 2;
    let left = 8;
    let all = many + left;
    let instance = warm(json!({"pool_min": all, "pool_max": all}));
    eventually("all wait", || metric(&instance, "pool_idle") == all);
    // Long enough to make all anew.
    let busy = "import time\ndef main(args):\n    while time.process_time() < 0.1: pass\n    print('here', flush=True)\n    while True: pass\n";
    // The quietest of three: while other work keeps the runs waiting there are processors for children, as there should be.
    let made = (0..3).map(|_| {
        let services: Vec<Services> = (0..many).map(|_| Services::default()).collect();
        let idle = std::thread::scope(|scope| {
            let mut ids = Vec::new();
            for services in &services {
                let mut request = request(busy);
                request.limits.wall_ms = 60_000;
                ids.push(request.run_id.clone());
                scope.spawn(|| instance.plugin.run(request, services).unwrap());
            }
            eventually("all have been under way for a while", || {
                services.iter().all(|s| s.text() == "here\n")
            });
            let idle = metric(&instance, "pool_idle");
            ids.iter().for_each(|id| instance.plugin.cancel(id));
            idle
        });
        eventually("all wait again", || metric(&instance, "pool_idle") == all);
        idle.saturating_sub(left)
    });
    let least = made.min().unwrap();
    println!("{least} children made of {many} that could have been");
    assert!(least < many / 2, "{least} of {many}");
}

/// What the documentation says of memory: a child that waits, with its init, which has the same memory.
#[test]
fn a_waiting_child_is_small() {
    let instance = warm(json!({"pool_min": 8}));
    let all = || waiting(&instance, "skillgate-idle");
    eventually("eight wait", || all().len() == 8);
    let kib_of = |key: &str, pid: &u32| -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with(key));
        line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok())
            .unwrap_or(0)
    };
    if is_root() {
        // Some of the eight still rehearse.
        let kib = all().iter().map(|pid| kib_of("Pss:", pid)).sum::<u64>() / 8;
        assert!((100..4096).contains(&kib), "{kib} KiB");
        // What it shares with the others is less for each the more they are.
        for pid in all() {
            let kib = kib_of("Private_Dirty:", &pid);
            assert!(kib < 1536, "{kib} KiB of its own");
        }
    }
}

/// From the activation to its first line a run meets hardly a page for the first time: a rehearsal has been there. A few are
/// a matter of luck, since CPython finds methods by their addresses: those of the zygote, so that its children all have the same.
#[test]
fn what_a_run_does_first_has_been_rehearsed() {
    if !is_root() {
        return tools::left_out("what belongs to the users of runs does not show its descriptors");
    }
    // Without a rehearsal there are some seventy. Linux 6.1 was seen to have eight.
    let most = if has_old_landlock() { 12 } else { 5 };
    let mut new = Vec::new();
    while new.iter().all(|faults| *faults > most) {
        assert!(new.len() < 5, "{new:?} page faults");
        new.push(first_faults());
    }
}

/// Page faults between the activation and the first line of a run, of one zygote's children.
fn first_faults() -> u64 {
    let instance = warm(json!({"pool_min": 1, "pool_max": 1}));
    let faults_of = |stat: &str| -> u64 {
        let after_name = stat.rsplit_once(") ").unwrap().1;
        let field = after_name.split_whitespace().nth(7);
        field.unwrap().parse().unwrap()
    };
    // With `os` alone: `open` has pages of its own, and a run does not do that first.
    let so_far = "import os\ndef main(args):\n    return os.read(os.open('/proc/self/stat', os.O_RDONLY), 1000).decode()\n";
    let mut idle = Vec::new();
    eventually("one has rehearsed and waits", || {
        idle = waiting(&instance, "skillgate-idle");
        // Beside those with fixed numbers: for the order and for the report.
        let kept = |pid: &u32| {
            let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter();
            let number = |fd: std::io::Result<std::fs::DirEntry>| {
                fd.ok()?.file_name().to_str()?.parse::<u32>().ok()
            };
            let numbers = fds.flatten().filter_map(number);
            numbers.filter(|fd| *fd > 3).count()
        };
        metric(&instance, "pool_idle") == 1 && idle.len() == 1 && kept(&idle[0]) == 2
    });
    let before = std::fs::read_to_string(format!("/proc/{}/stat", idle[0])).unwrap();
    let answer = instance.output(so_far);
    faults_of(answer.as_str().unwrap()) - faults_of(&before)
}
