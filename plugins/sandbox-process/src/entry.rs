//! The plugin's file is also a program: the launcher.
//!
//! The launcher must be a fresh, single-threaded process (a fork of the multi-threaded gateway could neither allocate
//! nor hold its memory apart), so something has to be exec'ed, and a second file to install would be a second thing to
//! lose, to pin and to keep in step. libc.so.6 does the same trick: `build.rs` names the ELF entry point, `INTERP` names
//! the dynamic loader, and the kernel then runs the shared object like any position-independent executable. The entry
//! is what crt1.o does, no more: it gives the C library `main` and the initial stack, so the C library, its
//! constructors and Rust's std are set up as in every other program.
#![allow(
    unsafe_code,
    reason = "the first instructions of a process are not Rust"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::path::Path;

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
const LOADER: &[u8; 28] = b"/lib64/ld-linux-x86-64.so.2\0";
#[cfg(all(target_arch = "aarch64", target_env = "gnu"))]
const LOADER: &[u8; 28] = b"/lib/ld-linux-aarch64.so.1\0\0";
#[cfg(all(target_arch = "x86_64", target_env = "musl"))]
const LOADER: &[u8; 28] = b"/lib/ld-musl-x86_64.so.1\0\0\0\0";
#[cfg(all(target_arch = "aarch64", target_env = "musl"))]
const LOADER: &[u8; 28] = b"/lib/ld-musl-aarch64.so.1\0\0\0";

/// The entry point refers to it, so it is kept in the shared object, where the entry point is the root of everything,
/// and dropped from executables that link this crate as a library and have a loader of their own.
#[unsafe(link_section = ".interp")]
static INTERP: [u8; 28] = *LOADER;

unsafe extern "C" {
    /// What every program's `_start` calls. `init` and `fini` are null since glibc 2.34: the library finds them itself.
    fn __libc_start_main(
        main: extern "C" fn(c_int, *const *const c_char, *const *const c_char) -> c_int,
        argc: c_int,
        argv: *const *const c_char,
        init: *const c_void,
        fini: *const c_void,
        rtld_fini: *const c_void,
        stack_end: *const c_void,
    ) -> c_int;
}

extern "C" fn main(
    _argc: c_int,
    _argv: *const *const c_char,
    _envp: *const *const c_char,
) -> c_int {
    crate::launcher::main()
}

/// The ELF entry point. At entry the stack pointer is at argc, argv follows, and the loader's exit function is in rdx.
///
/// # Safety
///
/// Only the kernel (through the dynamic loader) may jump here, at the start of a process.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn skillgate_sandbox_launcher_start() -> ! {
    core::arch::naked_asm!(
        "xor ebp, ebp",           // the outermost frame
        "mov r9, rdx",            // rtld_fini
        "pop rsi",                // argc
        "mov rdx, rsp",           // argv
        "and rsp, -16",           // the ABI's alignment
        "push rax",               // keeps it, below stack_end
        "push rsp",               // stack_end, the seventh argument
        "xor r8d, r8d",           // fini
        "xor ecx, ecx",           // init
        "lea rax, [rip + {interp}]",
        "lea rdi, [rip + {main}]",
        "call qword ptr [rip + {start}@GOTPCREL]",
        "ud2",
        main = sym main, interp = sym INTERP, start = sym __libc_start_main,
    )
}

/// The ELF entry point. At entry the stack pointer is at argc, argv follows, and the loader's exit function is in x0.
///
/// # Safety
///
/// Only the kernel (through the dynamic loader) may jump here, at the start of a process.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn skillgate_sandbox_launcher_start() -> ! {
    core::arch::naked_asm!(
        "mov x29, #0",
        "mov x30, #0",
        "mov x5, x0",
        "ldr x1, [sp]",
        "add x2, sp, #8",
        "mov x6, sp",
        "adrp x7, {interp}",
        "adrp x0, {main}",
        "add x0, x0, :lo12:{main}",
        "mov x3, #0",
        "mov x4, #0",
        "bl {start}",
        "brk #0",
        main = sym main, interp = sym INTERP, start = sym __libc_start_main,
    )
}

/// Why this file could not be executed, where it is for want of the loader: of that the kernel says "no such file", too.
pub(crate) fn without_loader(error: &io::Error) -> Option<String> {
    let named = CStr::from_bytes_until_nul(LOADER).ok()?.to_str().ok()?;
    without(error, named)
}

fn without(error: &io::Error, loader: &str) -> Option<String> {
    let is_lacking = error.kind() == io::ErrorKind::NotFound && !Path::new(loader).exists();
    is_lacking.then(|| format!("its dynamic loader {loader} is not on this host"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_that_is_not_there_is_named() {
        let of = |number| io::Error::from_raw_os_error(number);
        assert_eq!(
            without(&of(libc::ENOENT), "/none/ld.so").unwrap(),
            "its dynamic loader /none/ld.so is not on this host"
        );
        assert_eq!(without(&of(libc::EACCES), "/none/ld.so"), None);
        assert_eq!(without(&of(libc::ENOENT), "/proc/self/exe"), None);
        // Where it is, tests are executed by it, too.
        assert_eq!(without_loader(&of(libc::ENOENT)), None);
    }
}
