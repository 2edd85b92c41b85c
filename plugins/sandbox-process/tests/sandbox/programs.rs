//! What honest programs find: the standard library at work, and what is answered without being done.

use serde_json::json;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Sandbox as _;

use crate::support::*;
use crate::tools;
use crate::zygote::{is_given, warm};

#[test]
fn the_standard_library_works() {
    let instance = Instance::new();
    let code = "\
import asyncio, concurrent.futures, csv, ctypes, datetime, decimal, hashlib, io, json, lzma, math, multiprocessing, os, pathlib, pwd, random, re
import shutil, socket, sqlite3, ssl, statistics, subprocess, sys, tempfile, threading, time, unittest, urllib.request, uuid, xml.etree.ElementTree, zipfile, zlib, zoneinfo
def square(x): return x * x
async def later(): 
    await asyncio.sleep(0.01)
    p = await asyncio.create_subprocess_exec(sys.executable, '-I', '-S', '-c', 'print(1)', stdout=asyncio.subprocess.PIPE)
    return (await p.communicate())[0].decode()
def main(args):
    out = {}
    with tempfile.NamedTemporaryFile('w+') as f:
        f.write('x'); f.flush(); shutil.copy2(f.name, '/workspace/copy')
    db = sqlite3.connect('/workspace/db'); db.execute('create table t(a)'); db.execute('insert into t values (1)'); db.commit()
    out['sqlite'] = db.execute('select count(*) from t').fetchone()[0]
    with concurrent.futures.ThreadPoolExecutor(4) as pool: out['threads'] = sum(pool.map(square, range(5)))
    out['async'] = asyncio.run(later())
    ctx = multiprocessing.get_context('fork')
    q = ctx.SimpleQueue(); p = ctx.Process(target=lambda: q.put(7)); p.start(); out['fork'] = q.get(); p.join()
    out['ssl'] = len(ssl.RAND_bytes(8)); out['sha'] = hashlib.sha256(b'').hexdigest()[:4]
    out['user'] = pwd.getpwuid(os.getuid()).pw_name
    out['zip'] = zlib.decompress(lzma.decompress(lzma.compress(zlib.compress(b'ok')))).decode()
    return out
";
    let s = instance.output(code);
    assert_eq!(
        s,
        json!({"sqlite": 1, "threads": 30, "async": "1\n", "fork": 7, "ssl": 8, "sha": "e3b0", "user": "sandbox", "zip": "ok"})
    );
}

/// Programs ask for it at their start (`setlocale(LC_ALL, "")`), and many end where it is none.
#[test]
fn the_locale_that_the_environment_names_is_there() {
    if !is_given("import locale; locale.setlocale(locale.LC_ALL, 'C.UTF-8')") {
        return tools::left_out("this host has no C.UTF-8");
    }
    let code = "\
import locale, subprocess, sys
ASKS = 'import locale; print(locale.setlocale(locale.LC_ALL, \"\"), locale.nl_langinfo(locale.CODESET))'
def main(args):
    own = [locale.setlocale(locale.LC_ALL, ''), locale.nl_langinfo(locale.CODESET), '{:n}'.format(1234567)]
    return own + [subprocess.run([sys.executable, '-c', ASKS], capture_output=True, text=True).stdout]
";
    assert_eq!(
        Instance::new().output(code),
        json!(["C.UTF-8", "UTF-8", "1234567", "C.UTF-8 UTF-8\n"])
    );
}

/// Programs ask for it to name themselves in a log or a message.
#[test]
fn the_machine_has_an_address() {
    let code = "import socket\ndef main(args):\n    name = socket.gethostname()\n    return [name, socket.getfqdn(), socket.gethostbyname(name), socket.gethostbyname('localhost')]\n";
    assert_eq!(
        Instance::new().output(code),
        json!(["sandbox", "sandbox", "127.0.1.1", "127.0.0.1"])
    );
}

/// The root has these names, and programs that log to a file are given them.
#[test]
fn output_is_opened_by_its_names() {
    let code = "\
import subprocess, sys
def main(args):
    print('one')
    for name in ('/dev/stdout', '/dev/stderr', '/proc/self/fd/1', '/dev/fd/2'):
        with open(name, 'w') as file: file.write(name + '\\n')
    subprocess.run([sys.executable, '-I', '-S', '-c', 'open(\"/dev/stderr\", \"w\").write(\"two\\\\n\")'])
";
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        let (result, services) = instance.code(code);
        assert!(result.completed, "{}: {result:?}", mode.name);
        let said = "one\n/dev/stdout\n/dev/stderr\n/proc/self/fd/1\n/dev/fd/2\ntwo\n";
        assert_eq!(services.text(), said, "{}", mode.name);
    }
}

/// File locks, and waiting for the disk, are answered without being made (`seccomp/allow.rs` says why): who asks for them gets on.
#[test]
fn programs_get_on_with_what_is_answered_and_not_made() {
    let instance = Instance::new();
    let code = "\
import fcntl, mmap, os, sqlite3
def flock():
    with open('/workspace/lock', 'w') as one, open('/workspace/lock', 'w') as other:
        return [fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB) for f in (one, other, one)]
def journal(mode):
    db = sqlite3.connect('/workspace/' + mode)
    got = [db.execute('pragma journal_mode = ' + mode).fetchone()[0]]
    db.execute('create table t(a)')
    for n in range(3):
        with db: db.execute('insert into t values (?)', (n,))
    # What another connection sees has been committed.
    got += sqlite3.connect('/workspace/' + mode).execute('select sum(a) from t').fetchone()
    return got + list(db.execute('pragma integrity_check').fetchone())
def main(args):
    out = {'flock': flock(), 'delete': journal('delete'), 'wal': journal('wal')}
    with open('/workspace/mapped', 'wb+') as f:
        f.truncate(4096); os.fsync(f); os.fdatasync(f)
        with mmap.mmap(f.fileno(), 4096) as m:
            m[0:2] = b'ok'; m.flush()
        out['mapped'] = os.pread(f.fileno(), 2, 0).decode()
    fd = os.open(os.__file__, os.O_RDONLY)
    os.fsync(fd); os.fdatasync(fd)
    for n in range(5000): fcntl.lockf(fd, fcntl.LOCK_SH, 1, 2 * n)
    return out
";
    assert_eq!(
        instance.output(code),
        json!({"flock": [null, null, null], "delete": ["delete", 3, "ok"], "wal": ["wal", 3, "ok"], "mapped": "ok"})
    );
}

/// With a function of the code, which a new interpreter does not have by itself.
#[test]
fn processes_that_begin_anew_find_the_code() {
    let code = "\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
def square(n): return n * n
def main(args):
    out = []
    for how in ('spawn', 'forkserver'):
        context = multiprocessing.get_context(how)
        with context.Pool(1) as pool: out.append(pool.map(square, [1, 2]))
        with ProcessPoolExecutor(1, context) as pool: out.append(list(pool.map(square, [3])))
    return out
";
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        let (result, services) = instance.code(code);
        let said = (result.output_json, services.text());
        assert_eq!(
            said.0, b"[[1,4],[9],[1,4],[9]]",
            "{}: {}",
            mode.name, said.1
        );
    }
}

/// Where a shell would say that something is not there, and a number alone would send its reader nowhere.
#[test]
fn a_command_without_a_shell_says_what_is_lacking() {
    let (result, services) =
        Instance::new().code("import os\ndef main(args): return os.system('ls /')");
    assert_eq!(result.output_json, b"32512");
    let said = services.text();
    assert!(
        said.starts_with("[warning] os.system: a run has no shell"),
        "{said}"
    );
}

/// The kernel's words for what a run may not do are those for a user who lacks a right: they send a reader to ask for it.
#[test]
fn what_is_refused_says_what_to_do() {
    let instance = Instance::new();
    let call = "the sandbox refuses this system call to every run: do without it";
    let places = "a run writes files below its current directory (/workspace) and /tmp alone";
    let reads = "a run may not open this file: it reads its skills, its blobs, the Python library and what it wrote itself, \
                 and writes below its current directory (/workspace) and /tmp alone";
    for (line, said) in [
        ("os.nice(1)", call),
        ("os.sched_setaffinity(0, [0])", call),
        ("os.memfd_create('x')", call),
        ("open(os.path.dirname(os.__file__) + '/x', 'w')", places),
        ("os.mkdir('/skills/cache')", places),
        ("open(__import__('sys').executable, 'rb')", reads),
        (
            "input()",
            "nobody types anything in a run: what it needs comes with the arguments of the call",
        ),
    ] {
        let (result, _) = instance.code(&format!("import os\ndef main(args): {line}"));
        let text = result.error_message;
        assert!(text.starts_with(&format!("{said}\n")), "{line}: {text}");
    }
}

/// A pool has as many processes as there are processors, unless it is told otherwise: on a large host more than a run may have.
#[test]
fn a_run_is_told_of_the_processors_that_it_is_given() {
    let here = std::thread::available_parallelism().unwrap().get() as u64;
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        // A host may count what a run uses, and have nothing by which it could be held to one processor.
        let report = instance.plugin.health().unwrap().report_json;
        let is_held = instance.plugin.caps().enforces & abi::LIMIT_CPU != 0
            && !report.contains("no cpu controller");
        let given = if is_held { 1 } else { here };
        let counted = instance.output("import os\ndef main(args): return os.cpu_count()");
        assert_eq!(counted, json!(given), "{}", mode.name);
    }
}

/// What waits for descriptors chooses how when it is imported, which may have been where more is allowed.
#[test]
fn asyncio_and_selectors_work_whoever_has_imported_them() {
    let code = "\
import asyncio, selectors, subprocess, sys
async def both():
    p = await asyncio.create_subprocess_exec(sys.executable, '-I', '-S', '-c', 'print(1)', stdout=asyncio.subprocess.PIPE)
    async def later(n):
        await asyncio.sleep(0.01 * n)
        return n
    return [(await p.communicate())[0].decode()] + await asyncio.gather(*map(later, range(3)))
def main(args):
    return [asyncio.run(both()), selectors.DefaultSelector.__name__, subprocess.run([sys.executable, '-I', '-S', '-c', 'print(2)'], capture_output=True).stdout.decode()]
";
    for preload in [json!([]), json!(["asyncio", "selectors", "subprocess"])] {
        let instance = warm(json!({"preload": preload}));
        let expected = json!([["1\n", 0, 1, 2], "PollSelector", "2\n"]);
        assert_eq!(instance.output(code), expected, "{preload}");
        assert_eq!(metric(&instance, "runs_fresh"), 0);
    }
}
