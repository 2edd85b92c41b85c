//! What is wrong with what it does to its process.

use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::asked;

/// Starts a process in a session of its own, whose command line begins with `name`, and that outlives this one.
pub(super) fn leave_a_session(name: &str) {
    let mut command = std::process::Command::new("sleep");
    command.arg0(name).arg("300");
    // SAFETY: setsid is one system call, which may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        })
    };
    std::mem::forget(command.spawn().unwrap());
}

/// At create().
pub(super) fn sabotage() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    let first = !ONCE.swap(true, Ordering::SeqCst);
    // SAFETY: calls of the C library with good arguments; what they do to the process is what this is for.
    unsafe {
        if asked("changes a signal handler") {
            libc::signal(libc::SIGSEGV, libc::SIG_IGN);
        } else if asked("changes the working directory") {
            libc::chdir(c"/".as_ptr());
        } else if asked("changes the umask") {
            libc::umask(0);
        } else if asked("changes the environment") {
            libc::setenv(c"SABOTEUR".as_ptr(), c"was here".as_ptr(), 1);
        } else if asked("changes the locale") {
            libc::setlocale(libc::LC_ALL, c"C.UTF-8".as_ptr());
        } else if asked("changes a limit") {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur -= 1;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        } else if asked("gives up privileges of the process") {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        } else if asked("leaks a descriptor") {
            libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        } else if asked("closes a descriptor of another") && first {
            libc::close(0);
        } else if asked("writes to standard error") {
            libc::write(2, b"debug\n".as_ptr().cast(), 6);
        }
    }
    if asked("writes to where it is") {
        std::fs::write("saboteur-was-here", "").unwrap();
    } else if asked("leaks a thread") {
        std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
    } else if asked("leaves a process") {
        let left = std::process::Command::new("sleep").arg("20").spawn();
        std::mem::forget(left);
    }
}
