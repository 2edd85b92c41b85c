//! Warmed interpreters: what their children share, and what becomes of runs when one dies, hangs or is replaced.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::*;
use crate::tools;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::RunRequest;

const LARGE: u64 = 2 << 20;
const HASH: &str = "def main(args): return hash('a')\n";

/// An instance whose runs are children of zygotes, whatever SANDBOX_MODE says, with one of them warm.
pub(crate) fn warm(mut keys: Value) -> Instance {
    if !is_root() {
        keys["downgrades"] = json!(["cgroup"]);
    }
    Instance::with(&keys.to_string(), None)
}

/// Process ids of the zygotes.
pub(crate) fn zygotes(instance: &Instance) -> Vec<u32> {
    descendants(instance.plugin.launcher_pid().unwrap())
        .into_iter()
        .filter(|pid| name_of(*pid) == "skillgate-warm" && !is_being_born(*pid))
        .collect()
}

/// Process ids of those that take a zygote's place when it dies.
pub(crate) fn spares(instance: &Instance) -> Vec<u32> {
    descendants(instance.plugin.launcher_pid().unwrap())
        .into_iter()
        .filter(|pid| name_of(*pid) == "skillgate-spare")
        .collect()
}

/// The one zygote and its spare, when there is nobody else any more, and none of those that there were `before`.
pub(crate) fn settled(instance: &Instance, before: &[u32]) -> [u32; 2] {
    eventually_there("there is a zygote with its spare, and no other", || {
        let (zygotes, spares) = (zygotes(instance), spares(instance));
        match (&zygotes[..], &spares[..]) {
            ([zygote], [spare])
                if ![zygote, spare].iter().any(|pid| before.contains(pid))
                    && metric(instance, "zygotes") == 1 =>
            {
                Ok([*zygote, *spare])
            }
            _ => Err(format!(
                "zygotes {zygotes:?}, spares {spares:?}, before {before:?}, {:?}",
                instance.plugin.health().unwrap()
            )),
        }
    })
}

/// A child bears the zygote's name until it has one of its own.
fn is_being_born(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find(|l| l.starts_with("NSpid:"));
    ids.is_none_or(|l| l.split_whitespace().count() > 2)
}

pub(crate) fn signal(pid: u32, signal: &str) {
    assert!(tools::kill(signal, pid));
}

fn completed(instance: &Instance, request: RunRequest) -> Value {
    let (result, services) = instance.run(request);
    returned(&result, &services)
}

/// The worst case: everything that keeps state of its own is in the zygote already, and used.
#[test]
fn no_two_children_have_the_same_randomness() {
    for keys in [json!({}), json!({"pool_max": 0})] {
        let mut keys = keys;
        keys["preload"] = json!([
            "multiprocessing",
            "random",
            "secrets",
            "ssl",
            "tempfile",
            "uuid"
        ]);
        let instance = warm(keys);
        let code = "\
import multiprocessing, os, random, secrets, ssl, tempfile, uuid
def main(args):
    return [bytes(multiprocessing.current_process().authkey).hex(), ssl.RAND_bytes(8).hex(), random.random(), secrets.token_hex(8), str(uuid.uuid4()), os.urandom(8).hex(), tempfile.mktemp()]
";
        let mut seen = BTreeSet::new();
        let mut draw = |runs| {
            for _ in 0..runs {
                for value in instance.output(code).as_array().unwrap() {
                    assert!(seen.insert(value.to_string()), "{value} came twice");
                }
            }
        };
        draw(6);
        // The spare was made of the same memory.
        let pair = settled(&instance, &[]);
        signal(pair[0], "-9");
        draw(6);
        settled(&instance, &pair);
        draw(2);
        assert_eq!(metric(&instance, "runs_fresh"), 0);
    }
}

/// What the documentation says is shared, and what a request can ask for instead.
#[test]
fn a_fresh_run_shares_nothing_with_the_zygotes_children() {
    let instance = warm(json!({}));
    let shared = instance.output(HASH);
    assert_eq!(instance.output(HASH), shared, "one zygote, one seed");
    let fresh = |_| {
        let mut request = request(HASH);
        request.fresh = true;
        completed(&instance, request)
    };
    let own: BTreeSet<String> = (0..3).map(fresh).map(|v| v.to_string()).collect();
    assert!(
        own.len() == 3 && !own.contains(&shared.to_string()),
        "{own:?}"
    );
    assert_eq!(metric(&instance, "runs_fresh"), 3);
}

#[test]
fn tenants_may_have_zygotes_of_their_own() {
    let instance = warm(json!({"zygote_per": "tenant", "zygotes_max": 2, "pool_min": 1}));
    let hash = |tenant: &str| {
        let mut request = request(HASH);
        request.tenant = tenant.into();
        completed(&instance, request).to_string()
    };
    let warmed = |count: u64| {
        eventually("the tenants' zygotes are warm", || {
            metric(&instance, "zygotes") == count
        });
    };
    // The first run of a tenant does not wait for its zygote.
    hash("a");
    hash("b");
    warmed(2);
    let (a, b) = (hash("a"), hash("b"));
    assert_eq!((hash("a"), hash("b")), (a.clone(), b.clone()));
    assert_ne!(a, b);
    // A third takes the place of the one that is longest unused: since the launcher saw its last run end, which is after that
    // run's answer, and on a busy host perhaps after the other's.
    for last in ["a", "b"] {
        hash(last);
        let launcher = instance.plugin.launcher_pid().unwrap();
        eventually("the launcher has seen its run end", || {
            processes_of_runs(launcher).is_empty()
        });
    }
    hash("c");
    eventually("c has one", || hash("c") == hash("c"));
    assert_eq!(hash("b"), b, "b has kept its own");
    eventually("two have one", || zygotes(&instance).len() == 2);
    assert_ne!(hash("a"), a, "a's place is taken");
}

/// Its spare serves until there is another pair, with another layout: not one run starts an interpreter of its own.
#[test]
fn a_killed_zygote_is_replaced_and_no_run_is_lost() {
    let instance = warm(json!({"pool_max": 0}));
    let mut pair = settled(&instance, &[]);
    for kills in 1..=3 {
        let seed = instance.output(HASH);
        signal(pair[0], "-9");
        // At the latest when this is answered the launcher knows.
        assert_eq!(instance.output("def main(args): return 1\n"), 1);
        pair = settled(&instance, &pair);
        assert_ne!(instance.output(HASH), seed, "another zygote, another seed");
        assert_eq!(metric(&instance, "zygotes_lost"), kills);
    }
    assert_eq!(metric(&instance, "runs_fresh"), 0);
    assert_eq!(metric(&instance, "launcher_starts"), 1);
}

/// One that is without is replaced, so that the next one's end is no end either.
#[test]
fn a_zygote_does_not_stay_without_a_spare() {
    let instance = warm(json!({"pool_max": 0}));
    let pair = settled(&instance, &[]);
    signal(pair[1], "-9");
    settled(&instance, &pair);
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    let seen = ["runs_fresh", "zygotes_lost", "launcher_starts"].map(|n| metric(&instance, n));
    assert_eq!(seen, [0, 0, 1], "no run came from a spare");
}

/// Both at once: runs start an interpreter of their own until there is another pair.
#[test]
fn a_zygote_that_dies_with_its_spare_is_replaced_too() {
    let instance = warm(json!({"pool_max": 0}));
    let mut pair = settled(&instance, &[]);
    for order in [[0, 1], [1, 0]] {
        for which in order {
            signal(pair[which], "-9");
        }
        assert_eq!(instance.output("def main(args): return 1\n"), 1);
        pair = settled(&instance, &pair);
    }
    assert_eq!(metric(&instance, "launcher_starts"), 1);
}

#[test]
fn a_hung_zygote_is_replaced_and_no_run_waits_for_it() {
    let instance = warm(json!({"pool_max": 0}));
    let mut took = Vec::new();
    let mut pair = settled(&instance, &[]);
    for _ in 0..5 {
        signal(pair[0], "-STOP");
        let started = Instant::now();
        assert_eq!(instance.output("def main(args): return 1\n"), 1);
        took.push(started.elapsed());
        pair = settled(&instance, &pair);
    }
    // The machine of a test may be busy with others: the best of five.
    assert!(
        took.iter().min().unwrap() < &Duration::from_millis(200),
        "{took:?}"
    );
    assert_eq!(metric(&instance, "runs_fresh"), 0, "its spare serves");
}

#[test]
fn a_zygote_is_replaced_after_so_many_children() {
    let instance = warm(json!({"pool_max": 0, "zygote_runs": 3}));
    let first = zygote_of(&instance);
    for _ in 0..12 {
        assert_eq!(instance.output("def main(args): return 1\n"), 1);
    }
    eventually("another has its place, and it is gone", || {
        let now = zygotes(&instance);
        now.len() == 1 && now != [first]
    });
}

#[test]
fn an_old_zygote_is_replaced_and_so_are_its_children() {
    let instance = warm(json!({"zygote_age_s": 1}));
    let first = instance.output(HASH);
    eventually("runs are children of another", || {
        instance.output(HASH) != first
    });
}

/// A zygote that cannot be: the module does not exist. Runs go on, and the report says why they are slow.
#[test]
fn without_a_zygote_runs_start_their_own_interpreter() {
    let mut keys = json!({"preload": ["no_such_module"]});
    if !is_root() {
        keys["downgrades"] = json!(["cgroup"]);
    }
    let instance = Instance::cold(&keys.to_string());
    let line = || layer(&instance, "zygote");
    eventually("it has been tried", || line()["state"] == "degraded");
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    assert_eq!(
        (
            metric(&instance, "runs_fresh"),
            metric(&instance, "zygotes")
        ),
        (1, 0)
    );
    let said = line()["detail"].to_string();
    assert!(said.contains("before it was warm"), "{said}");
    let message = instance.plugin.health().unwrap().message;
    assert!(
        message.contains("; they start slowly: ") && message.contains("before it was"),
        "{message}"
    );
}

/// Nothing of the zygote, of its orders or of the rehearsal is to be seen.
#[test]
fn a_child_looks_like_an_interpreter_of_its_own() {
    let code = "\
import gc, importlib, linecache, os, signal, sys, threading
def main(args):
    import runtime
    return {
        'argv': sys.argv, 'path': sys.path, 'meta': len(sys.meta_path), 'flags': str(sys.flags), 'env': sorted(os.environ),
        'run': [runtime.run.id != '', runtime.run.deadline > 1e9], 'gc': [gc.isenabled(), gc.get_threshold()], 'lines': sorted(linecache.cache),
        'main': sorted(n for n in vars(sys.modules['_skillgate.main']._first_main) if 'native' in n), 'recursion': sys.getrecursionlimit(),
        'threads': threading.active_count(), 'main_thread': threading.current_thread() is threading.main_thread(),
        'int': str(signal.getsignal(signal.SIGINT)).split(' at ')[0], 'out': [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.seekable()],
        'comm': open('/proc/self/comm').read(),
        'limits': open('/proc/self/limits').read(), 'mounts': len(open('/proc/self/mountinfo').read().splitlines()),
        'finders': importlib.import_module.__name__, 'modules': [m for m in sys.modules if 'zygote' in m or m == 'run_code'],
    }
";
    let all: Vec<Value> = [json!({}), json!({"pool_max": 0}), json!({"fresh": true})]
        .into_iter()
        .map(|keys| {
            let fresh = keys["fresh"] == true;
            let mut keys = keys;
            let instance = if fresh {
                if !is_root() {
                    keys["downgrades"] = json!(["cgroup"]);
                }
                Instance::with(&keys.to_string(), None)
            } else {
                warm(keys)
            };
            let mut request = request(code);
            request.limits.output_bytes = 1 << 16;
            let value = completed(&instance, request);
            assert_eq!(metric(&instance, "runs_fresh"), u64::from(fresh));
            value
        })
        .collect();
    for (key, value) in all[2].as_object().unwrap() {
        assert_eq!(&all[0][key], value, "{key}: waiting, and of its own");
        assert_eq!(&all[1][key], value, "{key}: on demand, and of its own");
    }
}

/// Process 1 has the memory of the run: whoever destroys it has ended his own run, and nothing else.
#[test]
fn what_is_done_to_the_memory_of_process_1_is_done_to_the_run() {
    let instance = warm(json!({}));
    let code = "\
import ctypes, os
def main(args):
    before, found = '', 0
    for line in open('/proc/self/maps').read().splitlines():
        # What follows the launcher's file, of which no name is left, is what it has for variables, and process 1's stack.
        if before.endswith(' /') and not line.endswith(' /') and ' rw-p ' in line:
            begin, end = (int(x, 16) for x in line.split()[0].split('-'))
            ctypes.memset(begin, args['byte'], end - begin)
            found += 1
        before = line
    os._exit(found)
";
    for byte in [0, 0xff] {
        let (result, _) = instance.run(RunRequest {
            args_json: json!({ "byte": byte }).to_string().into_bytes(),
            ..request(code)
        });
        // It comes back from its wait to an address that is none. An optimized one may have nothing there that it needs, and
        // says how the program has ended, which had found the one place.
        let seen = (result.error_type.as_str(), result.exit_code, result.signal);
        let survives = !cfg!(debug_assertions) && seen == ("SandboxError", 1, 0);
        if !survives {
            assert_eq!(seen, ("SandboxError", -1, libc::SIGSEGV), "{result:?}");
        }
        crate::hostile::assert_gone(&instance);
        assert_eq!(instance.output("def main(args): return 1\n"), 1);
    }
}

#[test]
fn a_program_that_a_run_executes_has_no_way_to_speak_for_it() {
    let code = "\
import subprocess, sys
LIST = 'import os; print([n for n in map(int, os.listdir(\"/proc/self/fd\")) if os.path.exists(\"/proc/self/fd/%d\" % n)])'
def main(args):
    return subprocess.run([sys.executable, '-I', '-S', '-c', LIST], close_fds=False, capture_output=True, text=True).stdout
";
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        assert_eq!(instance.output(code), "[0, 1, 2]\n", "{}", mode.name);
    }
}

/// Process 1 dies with the run, and nobody has waited for what it had made: the group knows, or who has looked before. It is killed
/// when it says that it has used something, which on a busy host may be long after its begin.
#[test]
fn what_a_killed_run_has_used_is_known() {
    const USED_US: u64 = 60_000;
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        // A name of bytes that are no text hides nothing.
        let code = format!(
            "\
import ctypes, time
def main(args):
    ctypes.CDLL(None).prctl(15, b'\\xff')
    until = time.process_time_ns() + {USED_US} * 1000
    while time.process_time_ns() < until: pass
    print('used', flush=True)
    while True: pass
"
        );
        let (busy, services) = (request(&code), Services::default());
        let (id, began) = (busy.run_id.clone(), Instant::now());
        let result = std::thread::scope(|scope| {
            let run = scope.spawn(|| instance.plugin.run(busy, &services).unwrap());
            eventually("it has used something", || services.text() == "used\n");
            instance.plugin.cancel(&id);
            run.join().unwrap()
        });
        let took = began.elapsed();
        assert_eq!(result.error_type, "Cancelled", "{}: {result:?}", mode.name);
        // One thread.
        let used = USED_US..=took.as_micros() as u64;
        assert!(used.contains(&result.cpu_us), "{}: {result:?}", mode.name);
        // A child that waits has about 1 MiB of its own, counted in steps.
        let least = 100 << 10;
        assert!(
            result.peak_memory_bytes > least,
            "{}: {result:?}",
            mode.name
        );
    }
}

/// Of an instance that has one.
fn zygote_of(instance: &Instance) -> u32 {
    // Its spare bears its name until it has one of its own.
    let [zygote, _] = settled(instance, &[]);
    zygote
}

/// What a process has open.
fn open_files(pid: u32) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let link =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.unwrap().path());
    entries.filter_map(move |entry| Some(link(entry).ok()?.display().to_string()))
}

/// Whether the kernel gives what these lines of Python ask for.
pub(crate) fn is_given(asked: &str) -> bool {
    let output = Command::new("python3").args(["-c", asked]).output();
    output.is_ok_and(|o| o.status.success())
}

/// Only for speed; but if it is not so, nobody would notice.
#[test]
fn the_program_lies_in_large_pages_where_the_kernel_has_them() {
    let asked = "import mmap; m = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.write(bytes(8 << 20)); m.madvise(25)";
    let could = is_given(asked);
    let instance = warm(json!({}));
    let zygote = zygote_of(&instance);
    let smaps = std::fs::read_to_string(format!("/proc/{zygote}/smaps")).unwrap();
    let mut moved = 0;
    // Of the program's file, read-only and side by side, from the first on.
    let mut program: Option<(std::ops::Range<u64>, &str)> = None;
    let mut is_moved = false;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "Size:" if is_moved => moved += number(1),
            "AnonHugePages:" if is_moved => moved -= number(1),
            word if !word.ends_with(':') => {
                is_moved = words[1] == "r-xp" && words.len() == 5;
                let (begin, end) = word.split_once('-').unwrap();
                let [begin, end] = [begin, end].map(|at| u64::from_str_radix(at, 16).unwrap());
                let file = words.last().unwrap();
                match &mut program {
                    None => program = Some((begin..end, file)),
                    Some((pages, name)) => {
                        if name == file && pages.end == begin && !words[1].contains('w') {
                            pages.end = end;
                        }
                    }
                }
                if is_moved {
                    assert_eq!((begin % LARGE, end % LARGE), (0, 0), "{line}");
                }
            }
            _ => {}
        }
    }
    assert_eq!(
        moved, 0,
        "KiB of code are in small pages of nobody's file: {smaps}"
    );
    let (pages, name) = program.unwrap();
    let whole = pages.start.next_multiple_of(LARGE) < pages.end / LARGE * LARGE;
    let is_file = name.starts_with('/');
    assert!(
        !(could && is_file && whole),
        "{pages:x?} of {name} could be moved: {smaps}"
    );
}

/// As above: what children write to is copied at their birth, and they do not get it by one page fault after the other.
#[test]
fn what_children_write_to_is_theirs_from_the_start() {
    let asked = "
import ctypes, mmap
kernel, ring, memory = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint * 30)(), mmap.mmap(-1, 2 << 20)
memory.write(bytes(len(memory)))
buffer = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory))
made = kernel.syscall(425, 1, ring)
assert made >= 0 and kernel.syscall(427, made, 0, buffer, 1) == 0";
    let could = is_given(asked);
    let instance = warm(json!({}));
    assert_eq!(metric(&instance, "zygotes_copied_ahead"), u64::from(could));
    let health = instance.plugin.health().unwrap();
    let lack = "copies ahead of what its children write to: ";
    for said in [health.report_json, health.message] {
        assert_eq!(said.contains(lack), !could, "{said}");
    }
    // As long as there is this.
    let zygote = zygote_of(&instance);
    let rings = open_files(zygote).filter(|link| link.contains("io_uring"));
    assert_eq!(rings.count(), usize::from(could));
    let looks = "import resource
def main(args):
    with open('/proc/self/smaps_rollup') as file:
        own = sum(int(line.split()[1]) for line in file if line.startswith('Private_Dirty'))
    return [own // (resource.getpagesize() // 1024), resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
";
    let answer = instance.output(looks);
    let [own, faults] = [0, 1].map(|at| answer[at].as_u64().unwrap());
    // Without, it can be so too: what nobody else has any more is one's own.
    assert!(own > faults || !could, "{own} pages, {faults} page faults");
}

/// As above. Nobody can write to the file in which lies what a zygote has.
#[test]
fn what_a_zygote_has_is_mapped_by_its_children() {
    let asked = "import mmap, os; f = os.memfd_create('x'); os.write(f, bytes(4 << 20)); m = mmap.mmap(f, 4 << 20); m[0], m[2 << 20]; m.madvise(25)";
    let could = is_given(asked);
    let instance = warm(json!({}));
    let zygote = zygote_of(&instance);
    let maps = std::fs::read_to_string(format!("/proc/{zygote}/maps")).unwrap();
    let kib_of = |is_it: fn(&str) -> bool| -> u64 {
        let bytes = |line: &str| {
            let (begin, end) = line.split_whitespace().next()?.split_once('-')?;
            let [begin, end] = [begin, end].map(|at| u64::from_str_radix(at, 16).unwrap());
            Some(end - begin)
        };
        maps.lines()
            .filter(|l| is_it(l))
            .filter_map(bytes)
            .sum::<u64>()
            / 1024
    };
    let mapped = kib_of(|l| l.contains("rw-p") && l.contains("skillgate-memory"));
    let copied =
        kib_of(|l| l.contains("rw-p") && !l.contains("skillgate-memory") && !l.contains("[stack]"));
    let said = metric(&instance, "zygotes_in_large_pages");
    assert_eq!(said, u64::from(mapped > 0));
    if could {
        assert!(
            mapped > 2048 && copied < mapped / 4,
            "{mapped} and {copied} KiB: {maps}"
        );
        assert!(
            kib_of(|l| l.contains("r-xp") && l.contains("skillgate-memory")) > 0,
            "{maps}"
        );
    }
    for link in open_files(zygote) {
        assert!(!link.contains("skillgate-memory"), "{link}");
    }
    // Root alone gets hold of it, from outside, and cannot write to it either.
    let range = maps
        .lines()
        .find(|l| l.starts_with('7') && l.contains("skillgate-memory"));
    if let (Some(line), true) = (range, is_root()) {
        let range = line.split_whitespace().next().unwrap();
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(format!("/proc/{zygote}/map_files/{range}"));
        let written = file.unwrap().write_all(b"x").unwrap_err();
        assert_eq!(written.kind(), std::io::ErrorKind::PermissionDenied);
    }
    // What one child writes over is what it was for the next; and there is no other way to it.
    let overwrites = "import ctypes, os, sys
def main(args):
    at = id(os.name) + sys.getsizeof('') - 1
    before = ctypes.string_at(at, 5).decode()
    ways = []
    for line in open('/proc/self/maps'):
        if 'skillgate-memory' in line:
            try:
                ways.append(os.open('/proc/self/map_files/' + line.split()[0], os.O_RDWR))
            except OSError:
                pass
    ctypes.memset(at, 65, 5)
    return [before, ways, ctypes.string_at(at, 5).decode()]
";
    for _ in 0..3 {
        assert_eq!(instance.output(overwrites), json!(["posix", [], "AAAAA"]));
    }
}
