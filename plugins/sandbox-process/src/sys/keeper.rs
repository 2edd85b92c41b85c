//! Process 1 of a pid namespace, beside an interpreter that is process 2 and has the same memory.
//!
//! A run's interpreter is never process 1: signals would mean something else to it, and what looks at process ids to see
//! a fork would see none. So somebody has to be process 1, who reaps, and says how process 2 has ended. A whole process for
//! that costs as much as a short run; this one is a task without memory of its own (CLONE_VM, clone(2)). It is no wall
//! between itself and the run, and needs to be none: it gives up every right before process 2 reads a byte of a job, under a
//! filter that leaves it less than the run has, and nothing that it says afterwards is believed beyond how the run ended.
//!
//! Process 2 goes on with the stack and the C library's thread record that both came with. So process 1 has a small stack,
//! and makes its system calls itself: nothing from [`keep`] on may use the C library, allocate or panic.

use std::arch::asm;
use std::cell::UnsafeCell;
use std::fmt::Write as _;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_long, sock_filter};

use super::process::{CloneArgs, code_and_signal, tid_address};

const STACK_BYTES: usize = 16 << 10;
static ALL_SIGNALS: u64 = u64::MAX;
/// Exit codes of process 1, for whoever looks at it with a debugger: nobody else hears of them.
const CANNOT_SEAL: usize = 126;
const CANNOT_WAIT: usize = 125;

/// What process 1 needs when it is by itself.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// Landlock rules to live under; `None`: excused.
    pub(crate) rules: Option<RawFd>,
    /// Where it says how process 2 has ended. The one descriptor that it keeps.
    pub(crate) report: RawFd,
    pub(crate) filter: &'static [sock_filter],
    /// What it says when it cannot give up its rights.
    pub(crate) cannot_seal: &'static [u8],
}

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; STACK_BYTES]>);

// SAFETY: nobody but the one process 1 of this memory uses it, see `divide`.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; STACK_BYTES]));

/// 1: process 1 has no right left.
static SEALED: AtomicU32 = AtomicU32::new(0);

/// For process 1 of a pid namespace that has one thread: returns in process 2, which it makes. It goes on itself on another
/// stack, seals itself as `keeper` says, reaps, and ends when process 2 has ended, and with it all that that has left.
pub(crate) fn divide(keeper: &'static Keeper) -> io::Result<()> {
    let tid = tid_address();
    let mut args = CloneArgs {
        flags: libc::CLONE_VM as u64,
        exit_signal: libc::SIGCHLD as u64,
        child_tid: tid,
        ..CloneArgs::default()
    };
    if tid != 0 {
        args.flags |= (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
    }
    // The end of the array: stacks grow down. It is aligned as the type is.
    let stack = STACK.0.get().wrapping_add(1).cast::<u8>();
    // SAFETY: `args` is a clone_args of the size given, without a stack: process 2 goes on with this one. Process 1 leaves
    // it with its first instruction and uses no other memory than its own stack and `keeper`, which lives for ever. The
    // stack is nobody else's: this memory is a copy that was made for this process alone.
    let made = unsafe { divide_now(&args, stack, keeper) };
    if made < 0 {
        return Err(io::Error::from_raw_os_error(-made as i32));
    }
    Ok(())
}

/// In process 2: waits until process 1 has no right left. If that ends instead, so does this.
pub(crate) fn wait_sealed() {
    while SEALED.load(Ordering::Acquire) == 0 {
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: a futex of this process's own memory; no time.
        unsafe { libc::syscall(libc::SYS_futex, SEALED.as_ptr(), libc::FUTEX_WAIT, 0, none) };
    }
}

/// 0 in process 2, or the error of clone3(2). Process 1 goes on in [`keep`].
#[cfg(target_arch = "x86_64")]
unsafe fn divide_now(args: &CloneArgs, stack: *mut u8, keeper: &'static Keeper) -> c_long {
    let made: c_long;
    // SAFETY: as `divide` says. System calls change rax, rcx and r11 alone.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jle 2f",
            "mov rsp, r8",
            "mov rdi, r9",
            "mov rsi, rax",
            "xor ebp, ebp",
            "call r10",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => made,
            in("rdi") args,
            in("rsi") size_of::<CloneArgs>(),
            in("r8") stack,
            in("r9") keeper,
            in("r10") keep as unsafe extern "C" fn(&'static Keeper, usize) -> !,
            out("rcx") _,
            out("r11") _,
        );
    }
    made
}

/// 0 in process 2, or the error of clone3(2). Process 1 goes on in [`keep`].
#[cfg(target_arch = "aarch64")]
unsafe fn divide_now(args: &CloneArgs, stack: *mut u8, keeper: &'static Keeper) -> c_long {
    let made: c_long;
    // SAFETY: as `divide` says. System calls change x0 alone.
    unsafe {
        asm!(
            "svc 0",
            "cmp x0, 0",
            "b.le 2f",
            "mov sp, x5",
            "mov x1, x0",
            "mov x0, x6",
            "mov x29, xzr",
            "mov x30, xzr",
            "br x7",
            "2:",
            inlateout("x0") args => made,
            in("x1") size_of::<CloneArgs>(),
            in("x5") stack,
            in("x6") keeper,
            in("x7") keep as unsafe extern "C" fn(&'static Keeper, usize) -> !,
            in("x8") libc::SYS_clone3,
        );
    }
    made
}

/// A system call without the C library, which would write its error where process 2 has its own. Negative: an error.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: c_long, args: [usize; 4]) -> isize {
    let ret;
    // SAFETY: the caller's to say; system calls change rax, rcx and r11 alone.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => ret,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    ret
}

/// A system call without the C library, which would write its error where process 2 has its own. Negative: an error.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: c_long, args: [usize; 4]) -> isize {
    let ret;
    // SAFETY: the caller's to say; system calls change x0 alone.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] => ret,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            options(nostack),
        );
    }
    ret
}

/// Process 1. `program` is process 2.
unsafe extern "C" fn keep(keeper: &'static Keeper, program: usize) -> ! {
    // SAFETY: descriptors are this process's own, pointers those of `keeper` and of this stack; each is what the call is
    // documented to take.
    unsafe {
        if !seal(keeper) {
            say(keeper, keeper.cannot_seal);
            end(CANNOT_SEAL);
        }
        SEALED.store(1, Ordering::Release);
        let [futex, wake, one] = [SEALED.as_ptr() as usize, libc::FUTEX_WAKE as usize, 1];
        call(libc::SYS_futex, [futex, wake, one, 0]);
        loop {
            let mut status = 0i32;
            let out = &raw mut status as usize;
            let any = usize::MAX;
            let pid = call(libc::SYS_wait4, [any, out, libc::__WALL as usize, 0]);
            if pid < 0 {
                end(CANNOT_WAIT);
            }
            if pid == program as isize {
                // It has the room.
                let mut line = Line::new();
                let (code, signal) = code_and_signal(status);
                let _ = writeln!(
                    line,
                    "{{\"Exited\":{{\"code\":{code},\"signal\":{signal}}}}}"
                );
                say(keeper, line.text());
                end(0);
            }
        }
    }
}

/// Every right away, every signal, every descriptor but one, and all system calls but those that [`keep`] makes from then on.
unsafe fn seal(keeper: &Keeper) -> bool {
    let header = [0x2008_0522u32, 0]; // _LINUX_CAPABILITY_VERSION_3, this process
    let nothing = [0u32; 6];
    let filter = libc::sock_fprog {
        len: keeper.filter.len() as u16,
        filter: keeper.filter.as_ptr().cast_mut(),
    };
    let signals = [
        libc::SIG_SETMASK as usize,
        &raw const ALL_SIGNALS as usize,
        0,
        size_of_val(&ALL_SIGNALS),
    ];
    let report = keeper.report as usize;
    // SAFETY: as `keep` says.
    unsafe {
        call(libc::SYS_rt_sigprocmask, signals) == 0
            && keeper.rules.is_none_or(|rules| {
                call(libc::SYS_landlock_restrict_self, [rules as usize, 0, 0, 0]) == 0
            })
            && call(
                libc::SYS_capset,
                [header.as_ptr() as usize, nothing.as_ptr() as usize, 0, 0],
            ) == 0
            && call(libc::SYS_close_range, [0, report - 1, 0, 0]) == 0
            && call(libc::SYS_close_range, [report + 1, u32::MAX as usize, 0, 0]) == 0
            && call(
                libc::SYS_seccomp,
                [
                    libc::SECCOMP_SET_MODE_FILTER as usize,
                    0,
                    &raw const filter as usize,
                    0,
                ],
            ) == 0
    }
}

/// As much as the pipe takes: nobody reads what does not fit.
unsafe fn say(keeper: &Keeper, text: &[u8]) {
    let report = keeper.report as usize;
    // SAFETY: as `keep` says.
    unsafe {
        call(
            libc::SYS_write,
            [report, text.as_ptr() as usize, text.len(), 0],
        )
    };
}

unsafe fn end(code: usize) -> ! {
    loop {
        // SAFETY: as `keep` says.
        unsafe { call(libc::SYS_exit_group, [code, 0, 0, 0]) };
    }
}

/// A short text.
struct Line {
    bytes: [u8; 64],
    length: usize,
}

impl Line {
    fn new() -> Self {
        Line {
            bytes: [0; 64],
            length: 0,
        }
    }

    fn text(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let end = self.length + s.len();
        let place = self.bytes.get_mut(self.length..end);
        place.ok_or(std::fmt::Error)?.copy_from_slice(s.as_bytes());
        self.length = end;
        Ok(())
    }
}
