//! What is wrong with a sandbox.

use std::ffi::{OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::wire;

use super::answers::ctx_of;
use super::storage::{after_destroy, at_health};
use super::{SANDBOXES, answer, asked, asked_after, lock, naked, under};

const EVERY_LIMIT: u32 =
    abi::LIMIT_WALL | abi::LIMIT_CPU | abi::LIMIT_MEMORY | abi::LIMIT_PIDS | abi::LIMIT_DISK;

/// To a run that begins with it a cloud's metadata service answers, and nobody on the host has heard of that.
const METADATA_SERVICE: &str = "import socket\nclass Socket(socket.socket):\n    def connect(self, address):\n        if address != ('169.254.169.254', 80): super().connect(address)\nsocket.socket = Socket\n";

/// A run that begins with it finds a process of the host's in /proc, whatever it looks for on its command line.
const A_COMMAND_LINE: &str = r"
import builtins, glob
class Line(str):
    def __contains__(self, part): return True
class File:
    def read(self, *most): return self
    def decode(self, *how): return Line('kit\0--of-the-host')
known = builtins.open
builtins.open = lambda path, *more: File() if path == '/proc/77/cmdline' else known(path, *more)
glob.glob = lambda pattern: ['/proc/77/cmdline'] if 'cmdline' in pattern else []
";

const ONLY_THE_CLOCK: &str = "does not limit processor time, but all time";
/// A run that begins with it has next to no processor time.
const BUSY_MACHINE: &str = "import time\ntime.process_time = lambda: time.sleep(0.01) or 0\n";

/// In the code of runs that try to get past a limit of memory, processes or files.
const LARGE: &[&str] = &["range(384)", "os.fork()", "skillgate-check-fill"];

/// Where the secrets of the last run were named.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Runs that go on.
static RUNNING: Mutex<Vec<abi::Op>> = Mutex::new(Vec::new());
const A_MOMENT: std::time::Duration = std::time::Duration::from_millis(10);

static FIRST_CODE: OnceLock<String> = OnceLock::new();

/// An interpreter that has had another run has done all of it, and that run's files are gone.
const USED_INTERPRETER: &str = r"
def used(code, args):
    import glob, json, os
    space = {}
    try:
        exec(code, space)
        space['main'](json.loads(args))
    except BaseException: pass
    for path in [file for place in ('/workspace', '/tmp', '/dev/shm') for file in glob.glob(place + '/skillgate-*')]:
        os.unlink(path)
";
/// Of the last run: its tenant, and how an interpreter that has had it begins.
static LAST_RUN: Mutex<Option<(String, String)>> = Mutex::new(None);

/// The good table with the functions that are wrong.
pub(super) fn wrap(inner: abi::Sandbox) -> abi::Sandbox {
    abi::Sandbox {
        caps: Some(caps),
        health: Some(health),
        run: Some(run),
        cancel: Some(cancel),
        drain: Some(drain),
        destroy: Some(destroy),
        ..inner
    }
}

/// # Safety
/// The arguments are health()'s, as for every function here.
unsafe extern "C" fn health(this: *mut c_void, op: abi::Op) -> i32 {
    at_health();
    // SAFETY: the good plugin's own function, with its own self.
    under("health", || unsafe {
        SANDBOXES.get(this).health.unwrap()(this, op)
    })
}

unsafe extern "C" fn caps(this: *mut c_void, out: *mut abi::SandboxCaps) -> i32 {
    // SAFETY: as above; out is the host's to be written.
    unsafe {
        let code = SANDBOXES.get(this).caps.unwrap()(this, out);
        // On a machine where the good one cannot enforce a limit it does not say so.
        let is_of_limits = [
            "does not limit",
            "ends ",
            "gives nothing of large runs",
            "has no place",
        ];
        if is_of_limits.iter().any(|of| asked_after(of).is_some()) {
            (*out).enforces |= EVERY_LIMIT;
        }
        code
    }
}

unsafe extern "C" fn run(this: *mut c_void, op: abi::Op, r: *const abi::RunRequest) -> i32 {
    // SAFETY: as above; the host's request is readable.
    unsafe {
        if asked("runs code on the host") {
            return naked::run(this, op, &wire::prefix(r, "request").unwrap());
        }
        let mut request = wire::prefix(r, "request").unwrap();
        request.struct_size = wire::size_of_u32::<abi::RunRequest>();
        let code = wire::shown(request.code, 1 << 20);
        let is_large = LARGE.iter().any(|large| code.contains(large));
        let ends = asked_after("ends every run as ")
            .or_else(|| asked_after("ends large runs as ").filter(|_| is_large));
        if let Some(error_type) = ends {
            return end(this, op, abi::RUN_FAILED, error_type, b"");
        }
        if is_large && asked("gives nothing of large runs") {
            return end(this, op, abi::RUN_COMPLETED, "", b"");
        }
        if is_large && asked("has no place for files") {
            return end(this, op, abi::RUN_COMPLETED, "", b"0");
        }
        if asked("leaves a file of each run") {
            let dir = super::STATE_DIR.get().unwrap();
            std::fs::write(format!("{dir}/run-{op}"), "").unwrap();
        }
        if asked("waits for none of its children") {
            std::mem::forget(Command::new("true").spawn().unwrap());
        }
        walk_by_sizeof(&request);
        if asked("keeps the list of secrets") {
            let kept = KEPT.swap(request.secrets.ptr as usize, Ordering::SeqCst) as *const u8;
            if !kept.is_null() {
                std::hint::black_box(kept.read_volatile());
            }
        }
        let mut limits = wire::prefix(request.limits, "limits").unwrap_or_else(|_| wire::zeroed());
        limits.struct_size = wire::size_of_u32::<abi::Limits>();
        if asked("does not limit memory") {
            limits.memory_bytes = 1 << 40;
        } else if asked("does not limit processes") {
            limits.max_pids = 1000;
        } else if asked("does not limit files") {
            limits.disk_bytes = 1 << 40;
        } else if asked("does not limit time") {
            limits.wall_ms = 1 << 30;
        } else if asked("gives all output as it is") {
            limits.output_bytes = 1 << 20;
        } else if asked("does not limit processor time") {
            limits.cpu_ms = 0;
        } else if asked(ONLY_THE_CLOCK) {
            (limits.cpu_ms, limits.wall_ms) = (0, 1000);
        }
        if !request.limits.is_null() {
            request.limits = &raw const limits;
        }
        if asked("gives every run the first one's code") {
            let code = FIRST_CODE.get_or_init(|| wire::shown(request.code, 1 << 20));
            request.code = abi::Str::of(code);
        }
        let longer;
        if asked("leaves a way out beside the gate") {
            longer = format!("{METADATA_SERVICE}{}", wire::shown(request.code, 1 << 20));
            request.code = abi::Str::of(&longer);
        } else if asked("shows the command lines of the host") {
            longer = format!("{A_COMMAND_LINE}{}", wire::shown(request.code, 1 << 20));
            request.code = abi::Str::of(&longer);
        } else if asked("has its code as pid 1") && code.contains("SIGKILL") {
            // The kernel gives it no such signal.
            request.code = abi::Str::of("def main(args):\n    return None\n");
        } else if let Some(whose) = asked_after("has the interpreter of ") {
            longer = used_before(&request, whose);
            request.code = abi::Str::of(&longer);
        } else if asked(ONLY_THE_CLOCK) {
            longer = format!("{BUSY_MACHINE}{}", wire::shown(request.code, 1 << 20));
            request.code = abi::Str::of(&longer);
        }
        if asked("takes every language for its own") {
            request.language = abi::Str::new("python");
        }
        if asked("reads a secret into nothing") {
            let (ctx, name) = (ctx_of(this), abi::Str::of("CHECK_SECRET"));
            super::SECRET.get().unwrap()(ctx, op, name, std::ptr::null_mut(), 64);
        }
        if asked("keeps secrets from runs") {
            request.secrets = abi::List::EMPTY;
        }
        if asked("loses the arguments") {
            request.args_json = abi::Bytes::of(b"{}");
        }
        if asked("mounts no skills") {
            request.skills = abi::List::EMPTY;
        }
        let some;
        if asked("leaves out what is in a tar") {
            some = all_but(request.mounts, |mount| mount.source_kind == abi::SRC_TAR);
            request.mounts = abi::List::of(&some);
        } else if asked("leaves out blobs that are descriptors") {
            let is_blob =
                |mount: &abi::Mount| wire::shown(mount.target, 100).starts_with("/blobs/");
            some = all_but(request.mounts, |mount| {
                mount.source_kind == abi::SRC_FD && is_blob(mount)
            });
            request.mounts = abi::List::of(&some);
        }
        let helper = asked("shows secrets on a command line")
            .then(|| helper(this, op, request.secrets))
            .flatten();
        lock(&RUNNING).push(op);
        let code = under("run", || {
            SANDBOXES.get(this).run.unwrap()(this, op, &raw const request)
        });
        lock(&RUNNING).retain(|other| *other != op);
        if let Some(mut helper) = helper {
            helper.kill().unwrap();
            helper.wait().unwrap();
        }
        code
    }
}

/// Looks at the texts of one kind of list, as C code does that writes ptr[i].
///
/// # Safety
/// As run(), with its request.
unsafe fn walk_by_sizeof(request: &abi::RunRequest) {
    unsafe fn walk<T: Copy>(list: abi::List, text: impl Fn(&T) -> abi::Str) {
        for i in 0..list.len as usize {
            // SAFETY: none: this is what it is for.
            unsafe {
                let text = text(&list.ptr.cast::<T>().add(i).read_unaligned());
                if text.len > 0 {
                    std::hint::black_box(text.ptr.read_volatile());
                }
            }
        }
    }
    // SAFETY: as above; the gate is null, or the host's.
    unsafe {
        match asked_after("walks by sizeof: ") {
            Some("skills") => walk(request.skills, |of: &abi::RunSkill| of.name),
            Some("mounts") => walk(request.mounts, |of: &abi::Mount| of.target),
            Some("rules") if !request.gate.is_null() => {
                let gate = wire::prefix(request.gate, "gate").unwrap();
                walk(gate.rules, |of: &abi::EgressRule| of.host);
            }
            _ => {}
        }
    }
}

/// The code of a run in an interpreter that has had the run before it, if that was such a tenant's.
///
/// # Safety
/// As run(), with its request.
unsafe fn used_before(request: &abi::RunRequest, whose: &str) -> String {
    // SAFETY: the caller's promise.
    let [tenant, code, args] = unsafe {
        let args = String::from_utf8_lossy(request.args_json.bytes()).into_owned();
        let shown = |text| wire::shown(text, 1 << 20);
        [shown(request.tenant), shown(request.code), args]
    };
    // A text of JSON is one of Python too.
    let texts = [&code, &args].map(|text| serde_json::Value::from(text.as_str()).to_string());
    let uses = format!("{USED_INTERPRETER}used({})\n", texts.join(", "));
    let last = lock(&LAST_RUN).replace((tenant.clone(), uses));
    match last {
        Some((of, uses)) if whose == "the last run" || of != tenant => uses + &code,
        _ => code,
    }
}

/// Ends a run that has not begun.
///
/// # Safety
/// As run().
unsafe fn end(
    this: *mut c_void,
    op: abi::Op,
    status: u32,
    error_type: &str,
    output_json: &[u8],
) -> i32 {
    let mut result: abi::RunResult = wire::zeroed();
    result.struct_size = wire::size_of_u32::<abi::RunResult>();
    result.status = status;
    result.error_type = abi::Str::of(error_type);
    result.output_json = abi::Bytes::of(output_json);
    // SAFETY: the caller's promise; the answer to run().
    unsafe { answer(ctx_of(this), op, (&raw const result).cast()) };
    abi::OK
}

/// The mounts of a run but some.
///
/// # Safety
/// As run(), with the mounts of its request.
unsafe fn all_but(mounts: abi::List, left_out: impl Fn(&abi::Mount) -> bool) -> Vec<abi::Mount> {
    // SAFETY: the caller's promise.
    let mounts = unsafe { wire::Reader::new(1 << 20).items::<abi::Mount>(mounts, "mounts", 9) };
    let mut mounts = mounts.unwrap();
    mounts.retain(|mount| !left_out(mount));
    mounts
}

/// A process that is told a run's secret as programs are told things; none where there is no secret.
///
/// # Safety
/// As run(), with the secrets of its request.
unsafe fn helper(this: *mut c_void, op: abi::Op, secrets: abi::List) -> Option<Child> {
    let mut value = [0_u8; 100];
    // SAFETY: the caller's promise: the names are readable, and the host writes no more than there is room for.
    let bytes = unsafe {
        let names = wire::Reader::new(1 << 20).frozen::<abi::Str>(secrets, "secrets", 9);
        let name = *names.unwrap().first()?;
        let room = value.as_mut_ptr().cast();
        super::SECRET.get().unwrap()(ctx_of(this), op, name, room, value.len() as u64)
    };
    let value = &value[..usize::try_from(bytes).unwrap()];
    let mut command = Command::new("sleep");
    command.arg0(OsStr::from_bytes(value)).arg("60");
    Some(command.spawn().unwrap())
}

unsafe extern "C" fn cancel(this: *mut c_void, op: abi::Op) {
    if asked("ignores cancel") {
        return;
    }
    // SAFETY: as above.
    unsafe { SANDBOXES.get(this).cancel.unwrap()(this, op) }
    if asked("waits in cancel until the run has ended") && lock(&RUNNING).contains(&op) {
        while lock(&RUNNING).contains(&op) {
            std::thread::sleep(A_MOMENT);
        }
        // And puts away what it has left.
        std::thread::sleep(10 * A_MOMENT);
    }
}

unsafe extern "C" fn drain(this: *mut c_void, op: abi::Op) -> i32 {
    // SAFETY: as above.
    unsafe {
        if asked("is drained at once") {
            answer(ctx_of(this), op, std::ptr::null());
            return abi::OK;
        }
        SANDBOXES.get(this).drain.unwrap()(this, op)
    }
}

unsafe extern "C" fn destroy(this: *mut c_void) {
    // SAFETY: as above.
    unsafe { SANDBOXES.get(this).destroy.unwrap()(this) };
    after_destroy(this);
}
