//! A plugin in this process that calls exit(). The contract forbids it, and nothing else would tell: the process would be gone with
//! the plugin's own code, 0 for one, without a line, and a service manager that restarts what has failed would not.

use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

/// As the program's own for what goes wrong while it runs.
const EXIT_CODE: i32 = 4;
const SAID: &[u8] = b"error: a plugin in the gateway called exit(), which the plugin contract forbids: the gateway ends here, with code 4\n\
    hint: give that plugin a process of its own (isolation = \"process\"), where exit() ends no more than that, and tell its vendor\n";

/// The process whose exit() is no end of its own accord; 0: none.
static GUARDED: AtomicI32 = AtomicI32::new(0);

/// As long as it lives exit() is nothing that this program calls: it is taken for a plugin's, told of on standard error, and ends
/// the process with code 4. Whoever lets the process end has dropped it, or called [`ExitGuard::done`].
#[derive(Debug)]
pub struct ExitGuard(());

impl ExitGuard {
    /// From now on, in this process; not in one that is forked from it.
    #[must_use]
    pub fn set() -> Self {
        static ASKED: Once = Once::new();
        // Without room for one more handler all is as it would be without the guard.
        ASKED.call_once(|| {
            // SAFETY: a function that lives as long as the program.
            let _ = unsafe { libc::atexit(at_exit) };
        });
        // SAFETY: takes nothing, and always succeeds.
        GUARDED.store(unsafe { libc::getpid() }, Ordering::SeqCst);
        ExitGuard(())
    }

    /// The program ends the process itself, from wherever it is.
    pub fn done() {
        GUARDED.store(0, Ordering::SeqCst);
    }
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        ExitGuard::done();
    }
}

/// On the thread that has called exit(), which may hold any lock: so it takes none.
extern "C" fn at_exit() {
    // SAFETY: takes nothing. A forked child has another number, and an end of its own.
    if GUARDED.load(Ordering::SeqCst) != unsafe { libc::getpid() } {
        return;
    }
    let mut stderr = libc::pollfd {
        fd: libc::STDERR_FILENO,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one descriptor, and no wait: where nobody reads what is full, the process is to end all the same.
    let takes = unsafe { libc::poll(&raw mut stderr, 1, 0) } == 1;
    // SAFETY: reads so many bytes, fewer than a pipe takes at once. What standard error does not take nobody hears.
    let _ =
        takes && 0 < unsafe { libc::write(libc::STDERR_FILENO, SAID.as_ptr().cast(), SAID.len()) };
    // SAFETY: does not return. What else is to be done at an exit is not: other threads go on in what it would take down.
    unsafe { libc::_exit(EXIT_CODE) }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};

    use super::*;

    const MODE: &str = "SKILLGATE_TEST_EXIT";

    /// This test alone, in a process of its own, which ends as it is told to.
    fn ended(mode: &str) -> Output {
        let program = std::env::current_exe().unwrap();
        let name = "exits::tests::exit_is_told_of_while_it_is_nobodys";
        let mut test = Command::new(program);
        test.args(["--exact", name, "--nocapture"]).env(MODE, mode);
        test.output().unwrap()
    }

    fn exit(code: i32) -> ! {
        // SAFETY: does not return. The standard library's would do the same.
        unsafe { libc::exit(code) }
    }

    fn end(mode: &str) -> ! {
        let guard = ExitGuard::set();
        match mode {
            "exit" => drop(std::thread::spawn(|| exit(0)).join()),
            "done" => ExitGuard::done(),
            "over" => drop(guard),
            "again" => {
                drop(guard);
                let _again = ExitGuard::set();
                exit(0);
            }
            "child" => {
                // SAFETY: the child does nothing but end.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    exit(7);
                }
                let mut status = 0;
                // SAFETY: a child of this process, and memory for its status.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                ExitGuard::done();
                exit(libc::WEXITSTATUS(status));
            }
            mode => unreachable!("{mode}"),
        }
        exit(5)
    }

    #[test]
    fn exit_is_told_of_while_it_is_nobodys() {
        if let Ok(mode) = std::env::var(MODE) {
            end(&mode);
        }
        for (mode, code, is_told) in [
            ("exit", 4, true),
            ("again", 4, true),
            ("done", 5, false),
            ("over", 5, false),
            ("child", 7, false),
        ] {
            let output = ended(mode);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{mode}: {said}");
            let told = said.contains("a plugin in the gateway called exit()");
            assert_eq!(told, is_told, "{mode}: {said}");
        }
    }
}
