//! What a run leaves to the launcher and to the gateway is little, whatever it does: both have other runs to see to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::*;
use crate::zygote::warm;
use skillgate_plugin_sdk::blocking::Sandbox;

/// Processor time of a process and the children that it has reaped, in milliseconds.
fn cpu_ms(pid: u32) -> u64 {
    let ticks: u64 = [14, 15].map(|field| stat_field(pid, field)).iter().sum();
    // USER_HZ is 100 on every machine that Linux has.
    ticks * 10
}

/// What the launcher has done while something happened.
fn launcher_ms(instance: &Instance, happens: impl FnOnce()) -> u64 {
    let launcher = instance.plugin.launcher_pid().unwrap();
    let before = cpu_ms(launcher);
    happens();
    crate::hostile::assert_gone(instance);
    cpu_ms(launcher) - before
}

const RUNS: usize = 8;

/// The last who holds a mount namespace frees the files in it: the run itself, or the thread that has waited for it.
#[test]
fn the_files_of_a_run_are_not_freed_by_the_launcher() {
    let code = "\
import os
def main(args):
    for n in range(10_000):
        os.close(os.open(f'/workspace/{n}', os.O_CREAT))
    with open('/workspace/large', 'wb') as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
    if args['leaves']:
        os._exit(0)
";
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        instance.output("def main(args): return 1\n");
        for leaves in [false, true] {
            let took = launcher_ms(&instance, || {
                for _ in 0..RUNS {
                    let mut request = request(code);
                    request.args_json = json!({ "leaves": leaves }).to_string().into_bytes();
                    request.limits.disk_bytes = 200 << 20;
                    request.limits.disk_inodes = 16_384;
                    let (result, _) = instance.run(request);
                    assert_eq!(result.exit_code, 0, "{result:?}");
                }
            });
            let each = took / RUNS as u64;
            assert!(
                each < 15,
                "{}: {each} ms for each run (leaves: {leaves})",
                mode.name
            );
        }
    }
}

/// Process 1 of a forked run has the memory of the run: a program that makes it do something else.
#[cfg(target_arch = "x86_64")]
const TAKES_PROCESS_1: &str = "\
import ctypes, mmap, os, struct, time
shell = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
address = lambda m: ctypes.addressof(ctypes.c_char.from_buffer(m))
def take():
    # Process 1 waits in a call of the launcher's: wherever one comes back to, but for those of the C library.
    jump, libc = b'\\x48\\xb8' + struct.pack('<Q', address(shell)) + b'\\xff\\xe0', ctypes.CDLL(None)
    library = ctypes.cast(libc.getpid, ctypes.c_void_p).value
    for line in open('/proc/self/maps').read().splitlines():
        begin, end = (int(x, 16) for x in line.split()[0].split('-'))
        if ' r-xp ' not in line or '[' in line or begin <= library < end or begin == address(shell):
            continue
        code = ctypes.string_at(begin, end - begin)
        at = code.find(b'\\x0f\\x05')
        while at >= 0:
            page = (begin + at + 2) & ~4095
            libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(8192), 7)
            ctypes.memmove(begin + at + 2, jump, len(jump))
            at = code.find(b'\\x0f\\x05', at + 2)
    # An orphan ends, and process 1 wakes.
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
";

/// It has the pipe on which it says how the run has ended.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_process_1_is_made_to_say_is_not_listened_to_for_long() {
    let code = "\
BYTES = 64 << 10
def main(args):
    text = mmap.mmap(-1, BYTES)
    text.write(b'\\n' * BYTES)
    # For each descriptor: more room than a pipe has, which is refused, and as many empty lines as it has. Then the end.
    shell.write(
        bytes.fromhex('31db' 'b848000000' '89df' 'be07040000') + b'\\xba' + struct.pack('<I', 1 << 20) + bytes.fromhex('0f05' 'b801000000' '89df' '48be')
        + struct.pack('<Q', address(text)) + b'\\xba' + struct.pack('<I', BYTES - 8192)
        + bytes.fromhex('0f05' 'ffc3' '83fb40' '7cce' 'b8e7000000' '31ff' '0f05')
    )
    take()
    time.sleep(100)
";
    let instance = warm(json!({}));
    let took = launcher_ms(&instance, || {
        let mut request = request(&[TAKES_PROCESS_1, code].concat());
        request.limits.wall_ms = 5000;
        let (result, _) = instance.run(request);
        assert_ne!(
            result.error_type, "Timeout",
            "process 1 was not reached: {result:?}"
        );
    });
    assert!(took < 200, "{took} ms");
}

/// Where no control group counts processes and memory, limits of each process do; and what a user has in sockets, on the way to
/// whoever reads there, may be as much as the files that one process of that user may open.
#[test]
#[cfg(target_arch = "x86_64")]
fn process_1_has_no_use_for_a_run() {
    let code = "\
def main(args):
    mark = mmap.mmap(-1, 4096)
    struct.pack_into('<q', mark, 0, 1 << 40)
    # A call, clone or socketpair, whose result is kept; then it waits for ever.
    numbers = {'fork': '38000000' 'bf11000000' '31f6', 'socket': '35000000' 'bf01000000' 'be01000000'}[args['call']]
    shell.write(
        bytes.fromhex('b8' + numbers + '31d2' '49ba') + struct.pack('<Q', address(mark) + 8 if args['call'] == 'socket' else 0)
        + bytes.fromhex('4d31c0' '0f05' '48be') + struct.pack('<Q', address(mark))
        + bytes.fromhex('488906' 'b807000000' '31ff' '31f6' 'baffffffff' '0f05' 'ebee')
    )
    take()
    kept = lambda: struct.unpack_from('<q', mark)[0]
    while kept() == 1 << 40:
        time.sleep(0.001)
    return kept()
";
    let instance = warm(json!({}));
    for (call, refused) in [("fork", libc::EAGAIN), ("socket", libc::EMFILE)] {
        let mut request = request(&[TAKES_PROCESS_1, code].concat());
        request.args_json = json!({ "call": call }).to_string().into_bytes();
        let (result, _) = instance.run(request);
        let got: i32 = serde_json::from_slice(&result.output_json).unwrap();
        assert_eq!(got, -refused, "{call}: {result:?}");
    }
}

/// It has given its result and is gone, while the thread of the run still keeps a blob of its.
#[test]
fn what_a_run_has_used_is_known_however_fast_it_leaves() {
    let code = "\
import os, socket, struct, time
def main(args):
    memory = bytearray(b'x') * (40 << 20)
    until = time.process_time() + 0.2
    while time.process_time() < until: pass
    s = socket.socket(fileno=3)
    frame = lambda kind, text: struct.pack('<I', 1 + len(text)) + kind + text
    s.sendall(frame(b'C', b'{\"kind\":\"a/b\"}'))
    (length,) = struct.unpack('<I', s.recv(4, socket.MSG_WAITALL))
    s.recv(length, socket.MSG_WAITALL)
    result = b'{\"status\":\"completed\",\"output\":1,\"spilled\":false,\"summary\":null}'
    blob = frame(b'W', struct.pack('<Q', 1) + memory[:1000])
    s.sendall(blob + frame(b'F', b'{\"writer\":1,\"commit\":true}') + frame(b'R', result))
    os._exit(0)
";
    for mode in modes() {
        let instance = Arc::new(Instance::with(&mode.config, None));
        let others = instance.clone();
        let others_run = move || {
            crate::hostile::assert_gone(&others);
            for _ in 0..4 {
                others.output("def main(args): return 1\n");
            }
        };
        let services = Services {
            on_commit: Some(Box::new(others_run)),
            ..Services::default()
        };
        let result = instance.plugin.run(request(code), &services).unwrap();
        assert_eq!(result.output_blobs.len(), 1, "{result:?}");
        let used = (result.cpu_us / 1000, result.peak_memory_bytes >> 20);
        assert!(
            (180..2000).contains(&used.0) && used.1 >= 35,
            "{}: {used:?} ms, MiB: {result:?}",
            mode.name
        );
    }
}

/// Its child was made and has rehearsed before, which takes some milliseconds. To end takes something too, and more where no group
/// counts it: then process 1 has waited for all of it.
#[test]
fn a_run_that_ends_without_a_result_has_used_what_it_has_used() {
    let instance = warm(json!({"pool_min": 4, "pool_max": 4}));
    let used_us = |code: &str| {
        let one = |_| {
            eventually("children wait", || metric(&instance, "pool_idle") == 4);
            instance.code(code).0.cpu_us as f64
        };
        median((0..9).map(one).collect())
    };
    let returns = used_us("def main(args): return 1\n");
    let ends = used_us("import os\ndef main(args): os._exit(0)\n");
    println!("returned {returns} us, ended {ends} us");
    let most = if is_root() { 3.0 } else { 5.5 };
    assert!(ends < returns * most);
}

/// After a mebibyte it is taken 64 KiB in a millisecond, whoever wants it.
#[test]
fn output_without_end_is_taken_slowly() {
    const MIB: usize = 16;
    let code = "\
import os
def main(args):
    piece, left = bytes(1 << 16), args['mib'] << 20
    while left > 0:
        left -= os.write(1, piece)
";
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        let mut request = request(code);
        request.args_json = json!({ "mib": MIB }).to_string().into_bytes();
        let services = Services {
            keep: Some((2 * MIB) << 20),
            ..Services::default()
        };
        let began = Instant::now();
        let result = instance.plugin.run(request, &services).unwrap();
        let took = began.elapsed();
        assert!(result.completed, "{}: {result:?}", mode.name);
        assert_eq!(services.output.lock().unwrap().len(), MIB << 20);
        // What is left in the pipe at the end is taken at once.
        let least = Duration::from_millis(16 * (MIB as u64 - 2));
        assert!(took >= least, "{}: {took:?}", mode.name);
    }
}

/// A descriptor that comes to the gateway is closed there, and there are files that it takes long to close.
#[test]
fn a_run_sends_the_gateway_no_descriptors_where_the_kernel_can_refuse_them() {
    let can = "import socket; a, b = socket.socketpair(); a.setsockopt(socket.SOL_SOCKET, 83, 0)";
    let code = "\
import os, socket
def main(args):
    s = socket.socket(fileno=os.dup(3))
    try:
        socket.send_fds(s, [b'x'], [0])
    except OSError as e:
        return e.errno
";
    if crate::zygote::is_given(can) {
        for mode in modes() {
            let instance = Instance::with(&mode.config, None);
            assert_eq!(instance.output(code), libc::EPERM, "{}", mode.name);
        }
    }
}
