//! Process 1 of a pid namespace, beside an interpreter that is process 2 and has the same memory.
//!
//! A run's interpreter is never process 1: signals would mean something else to it, and what looks at process ids to see
//! a fork would see none. So somebody has to be process 1, who reaps, and says how process 2 has ended. A whole process for
//! that costs as much as a short run; this one is a task without memory of its own (CLONE_VM, clone(2)). It is no wall
//! between itself and the run, and needs to be none: by then there is no right left that it could have, and nothing that it
//! says afterwards is believed beyond how the run ended.
//!
//! Process 2 goes on with the stack and the C library's thread record that both came with. So process 1 has a small stack,
//! and makes its system calls itself: nothing from [`keep`] on may use the C library, allocate or panic.

use std::arch::asm;
use std::cell::UnsafeCell;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_long;

use super::process::{code_and_signal, tid_address};

const STACK_BYTES: usize = 16 << 10;
static ALL_SIGNALS: u64 = u64::MAX;
static NOTHING: libc::rlimit64 = libc::rlimit64 {
    rlim_cur: 0,
    rlim_max: 0,
};
/// Of which process 1 needs none, and a run that has made it its own gets none. Those of the run are set in process 2, for itself.
static UNUSED: [usize; 5] = [
    libc::RLIMIT_NPROC as usize,
    // Else it were the launcher's: where the gateway is an ordinary user, what it sends in sockets counts against all runs of it.
    libc::RLIMIT_NOFILE as usize,
    libc::RLIMIT_AS as usize,
    libc::RLIMIT_DATA as usize,
    libc::RLIMIT_FSIZE as usize,
];

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; STACK_BYTES]>);

// SAFETY: nobody but the one process 1 of this memory uses it, see `divide`.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; STACK_BYTES]));

/// For process 1 of a pid namespace that has one thread and no right left: returns in process 2, which it makes. It goes on
/// itself on another stack, with no descriptor but `report`: it reaps, and when process 2 has ended it says how, and ends,
/// and with it all that that has left.
pub(crate) fn divide(report: BorrowedFd<'_>) -> io::Result<()> {
    let tid = tid_address() as usize;
    let mut flags = (libc::CLONE_VM | libc::SIGCHLD) as usize;
    if tid != 0 {
        flags |= (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as usize;
    }
    // The end of the array: stacks grow down. It is aligned as the type is.
    let stack = STACK.0.get().wrapping_add(1).cast::<u8>();
    // SAFETY: process 2 gets no stack and goes on with this one. Process 1 leaves it with its first instruction and uses no
    // other memory than its own stack, which is nobody else's: this memory is a copy that was made for this process alone.
    let made = unsafe { divide_now(flags, tid, stack, report.as_raw_fd() as usize) };
    if made < 0 {
        return Err(io::Error::from_raw_os_error(-made as i32));
    }
    Ok(())
}

/// 0 in process 2, or the error of clone(2): the older call, which is one that a run may make. Process 1 goes on in [`keep`].
#[cfg(target_arch = "x86_64")]
unsafe fn divide_now(flags: usize, tid: usize, stack: *mut u8, report: usize) -> c_long {
    let made: c_long;
    // SAFETY: as `divide` says. System calls change rax, rcx and r11 alone.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jle 2f",
            "mov rsp, r9",
            "mov rdi, r12",
            "mov rsi, rax",
            "xor ebp, ebp",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => made,
            in("rdi") flags,
            in("rsi") 0usize,
            in("rdx") 0usize,
            in("r10") tid,
            in("r8") 0usize,
            in("r9") stack,
            in("r12") report,
            in("r13") keep as unsafe extern "C" fn(usize, usize) -> !,
            out("rcx") _,
            out("r11") _,
        );
    }
    made
}

/// 0 in process 2, or the error of clone(2): the older call, which is one that a run may make. Process 1 goes on in [`keep`].
#[cfg(target_arch = "aarch64")]
unsafe fn divide_now(flags: usize, tid: usize, stack: *mut u8, report: usize) -> c_long {
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
            inlateout("x0") flags => made,
            in("x1") 0usize,
            in("x2") 0usize,
            in("x3") 0usize,
            in("x4") tid,
            in("x5") stack,
            in("x6") report,
            in("x7") keep as unsafe extern "C" fn(usize, usize) -> !,
            in("x8") libc::SYS_clone,
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
unsafe extern "C" fn keep(report: usize, program: usize) -> ! {
    // Signals are process 2's.
    let mask = &raw const ALL_SIGNALS as usize;
    let set = [
        libc::SIG_SETMASK as usize,
        mask,
        0,
        size_of_val(&ALL_SIGNALS),
    ];
    let below = [0, report.wrapping_sub(1), 0, 0];
    let above = [report.wrapping_add(1), u32::MAX as usize, 0, 0];
    // SAFETY: descriptors are this process's own, pointers those of this stack; each is what the call is documented to take.
    unsafe {
        if call(libc::SYS_rt_sigprocmask, set) != 0
            || call(libc::SYS_close_range, below) != 0
            || call(libc::SYS_close_range, above) != 0
        {
            end()
        }
        for resource in &UNUSED {
            let none = [0, *resource, &raw const NOTHING as usize, 0];
            if call(libc::SYS_prlimit64, none) != 0 {
                end()
            }
        }
        loop {
            let mut status = 0i32;
            let (any, out) = (usize::MAX, &raw mut status as usize);
            let pid = call(libc::SYS_wait4, [any, out, libc::__WALL as usize, 0]);
            if pid == program as isize {
                let mut line = Line::new();
                let (code, signal) = code_and_signal(status);
                // It has the room; and nobody reads what does not fit into the pipe.
                let _ = writeln!(
                    line,
                    "{{\"Exited\":{{\"code\":{code},\"signal\":{signal}}}}}"
                );
                let text = line.text();
                let said = [report, text.as_ptr() as usize, text.len(), 0];
                call(libc::SYS_write, said);
            }
            if pid == program as isize || pid < 0 {
                end()
            }
        }
    }
}

/// The code says nothing: whoever wants to know has been told.
unsafe fn end() -> ! {
    loop {
        // SAFETY: the call takes a number.
        unsafe { call(libc::SYS_exit_group, [0; 4]) };
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
