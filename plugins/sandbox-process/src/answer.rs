//! What a run's end is called: from the guest's result, or its absence, and what the launcher has counted.

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{RunRequest, RunResult};

use crate::channel::{GuestResult, Object, Status};
use crate::wire::End;

const SUMMARY_BYTES_MAX: usize = 4096;
const TYPE_BYTES_MAX: usize = 256;
const MESSAGE_TEXT_BYTES_MAX: usize = 64 << 10;

/// The interpreter's own, when it cannot send its result (`_EXIT_LOST_CHANNEL`).
const CHANNEL_LOST: i32 = 70;

/// What the sandbox says of a run that it has ended, and the gateway of one that it has lost. The code may have classes of these
/// names, as `requests` does.
const NOT_OF_THE_CODE: [&str; 5] = [
    abi::RUN_TIMEOUT,
    abi::RUN_OUT_OF_MEMORY,
    abi::RUN_CANCELLED,
    abi::RUN_SANDBOX_ERROR,
    "WorkerLost",
];

/// The ways to fill in a result.
pub(crate) trait Fill {
    fn fail(&mut self, kind: &str, message: String);
    fn take(&mut self, guest: GuestResult, request: &RunRequest, end: &End);
    fn died(&mut self, request: &RunRequest, end: &End);
    fn lost_one_for_memory(&mut self, request: &RunRequest, end: &End);
}

impl Fill for RunResult {
    fn fail(&mut self, kind: &str, message: String) {
        self.completed = false;
        self.error_type = kind.into();
        self.error_message = message;
    }

    /// What the guest said, within its limits.
    fn take(&mut self, guest: GuestResult, request: &RunRequest, end: &End) {
        self.summary = cut(guest.summary.unwrap_or_default(), SUMMARY_BYTES_MAX);
        match (guest.status, guest.error) {
            (Status::Completed, _) => {
                let output = guest
                    .output
                    .map(|o| o.get().as_bytes().to_vec())
                    .unwrap_or_default();
                if output.len() as u64 > request.limits.output_bytes {
                    return self.fail(
                        abi::RUN_SANDBOX_ERROR,
                        format!(
                            "the run sent {} bytes of output past its limit of {}",
                            output.len(),
                            request.limits.output_bytes
                        ),
                    );
                }
                if guest.spilled && (self.output_blobs.is_empty() || !output.is_empty()) {
                    return self.fail(
                        abi::RUN_SANDBOX_ERROR,
                        "the run says that its output is a blob and there is none".into(),
                    );
                }
                self.completed = true;
                self.output_spilled = guest.spilled;
                self.output_json = output;
            }
            (Status::Failed, None) => self.fail(
                abi::RUN_SANDBOX_ERROR,
                "the run failed and did not say how".into(),
            ),
            (Status::Failed, Some(Object(error))) => {
                let kind = cut(
                    error.kind.lines().next().unwrap_or_default().to_owned(),
                    TYPE_BYTES_MAX,
                );
                let message = cut(error.message, MESSAGE_TEXT_BYTES_MAX);
                // EAGAIN, and what the guest makes of it for a thread. It may have got on without, and failed of something else.
                let says = match kind.as_str() {
                    "BlockingIOError" | "OSError" => "[Errno 11]",
                    "RuntimeError" | abi::RUN_TOO_MANY_PROCESSES => "can't start new thread",
                    _ => "",
                };
                let refused = !says.is_empty() && message.contains(says) && end.pids_refused > 0;
                // ENOSPC, and EFBIG of a file that was to be longer than the disk, which the guest has called so. `DiskFull` of
                // `runtime.blobs` is the store's, of which nothing here is the size.
                let is_of_disk = |line: &str| {
                    ["28", "27"]
                        .iter()
                        .any(|e| line.starts_with(&format!("OSError: [Errno {e}]")))
                };
                let full = [abi::RUN_DISK_FULL, "OSError"].contains(&&*kind)
                    && message.lines().any(is_of_disk);
                if refused {
                    self.fail(
                        abi::RUN_TOO_MANY_PROCESSES,
                        format!(
                            "the run reached its limit of {} processes and threads\n{message}",
                            request.limits.max_pids
                        ),
                    );
                } else if full {
                    self.fail(
                        abi::RUN_DISK_FULL,
                        format!(
                            "the run filled its {} bytes or {} files\n{message}",
                            request.limits.disk_bytes, request.limits.disk_inodes
                        ),
                    );
                } else if kind == "MemoryError" && message.lines().any(|line| line == kind) {
                    // Python asked for more at once than there is, and says nothing of it. (The parser says why it has one.)
                    self.fail(
                        &kind,
                        format!(
                            "the run has {} bytes of memory\n{message}",
                            request.limits.memory_bytes
                        ),
                    );
                } else {
                    let kind = match kind.as_str() {
                        "" => abi::RUN_SANDBOX_ERROR.to_owned(),
                        word if NOT_OF_THE_CODE.contains(&word) => format!("code.{word}"),
                        _ => kind,
                    };
                    self.fail(&kind, message);
                }
            }
        }
    }

    /// It ended without a result.
    fn died(&mut self, request: &RunRequest, end: &End) {
        let limits = &request.limits;
        let cpu_used =
            end.signal == libc::SIGXCPU || end.signal != 0 && end.cpu_us / 1000 >= limits.cpu_ms;
        // Without a limit the code has sent itself that signal.
        if end.cpu_exhausted || limits.cpu_ms > 0 && cpu_used {
            self.fail(
                abi::RUN_TIMEOUT,
                format!(
                    "the run has used its {} ms of processor time",
                    limits.cpu_ms
                ),
            );
        } else if end.oom_kills > 0 && end.killed_for_others {
            self.fail(
                abi::RUN_OUT_OF_MEMORY,
                format!(
                    "the host had no memory left and ended this run, which had {} of its {} bytes: call again later",
                    end.peak_memory_bytes, limits.memory_bytes
                ),
            );
        } else if end.oom_kills > 0 {
            self.fail(
                abi::RUN_OUT_OF_MEMORY,
                format!(
                    "the run needed more than its {} bytes of memory",
                    limits.memory_bytes
                ),
            );
        } else if end.signal != 0 {
            self.fail(
                abi::RUN_SANDBOX_ERROR,
                format!(
                    "the interpreter was ended by signal {}{} before it gave a result",
                    end.signal,
                    of_signal(end.signal)
                ),
            );
        } else {
            let why = match end.exit_code {
                CHANNEL_LOST => {
                    "the code has closed the descriptor that it is sent by, as `os.closerange` does with all that there are"
                }
                _ => "`os._exit` and `os.exec` do that; return a value instead",
            };
            self.fail(
                abi::RUN_SANDBOX_ERROR,
                format!(
                    "the interpreter ended with exit code {} before it gave a result: {why}",
                    end.exit_code
                ),
            );
        }
    }

    /// A process that the kernel has ended for its memory is missed by those that waited for it, in whatever words: they do not
    /// know why. (With version 2 it has ended the whole run.)
    fn lost_one_for_memory(&mut self, request: &RunRequest, end: &End) {
        if self.completed || end.oom_kills == 0 || self.error_type == abi::RUN_OUT_OF_MEMORY {
            return;
        }
        let why = match end.killed_for_others {
            true => "the host had no memory left".to_owned(),
            false => format!(
                "the run needed more than its {} bytes of memory",
                request.limits.memory_bytes
            ),
        };
        let line = format!("a process of the run was ended: {why}\n");
        self.error_message.insert_str(0, &line);
    }
}

/// What a signal is, and whose: none comes from outside of a run but SIGKILL.
fn of_signal(signal: i32) -> &'static str {
    match signal {
        libc::SIGSEGV => {
            " (SIGSEGV, by a recursion beyond Python's own limit or by ctypes in the code)"
        }
        libc::SIGBUS => " (SIGBUS, by a mapped file that has become shorter, or by ctypes)",
        libc::SIGABRT => " (SIGABRT, by os.abort or a failed assertion of a library in C)",
        libc::SIGFPE => " (SIGFPE, by ctypes in the code)",
        libc::SIGILL => " (SIGILL, by ctypes in the code)",
        libc::SIGSYS => " (SIGSYS, by a system call that no run can make)",
        libc::SIGALRM => " (SIGALRM, which the code has set, without a handler)",
        libc::SIGXCPU => " (SIGXCPU, by a limit that the code has set, or by itself)",
        libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGUSR1 | libc::SIGUSR2 => {
            ", which the code has sent itself,"
        }
        _ => "",
    }
}

/// At most `bytes_max` bytes, never through a character.
pub(crate) fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let end = (0..=bytes_max)
            .rev()
            .find(|i| text.is_char_boundary(*i))
            .unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{GuestError, Object};

    /// The type and the text of a run that its limit of processes has refused one.
    fn failed(kind: &str, message: &str) -> (String, String) {
        let guest = GuestResult {
            status: Status::Failed,
            output: None,
            spilled: false,
            summary: None,
            error: Some(Object(GuestError {
                kind: kind.into(),
                message: message.into(),
            })),
        };
        let end = End {
            pids_refused: 1,
            ..End::default()
        };
        let mut request = RunRequest::default();
        request.limits.max_pids = 7;
        request.limits.disk_bytes = 8192;
        request.limits.disk_inodes = 9;
        request.limits.memory_bytes = 65536;
        let mut result = RunResult::default();
        result.take(guest, &request, &end);
        (result.error_type, result.error_message)
    }

    /// The operator's alarms go by these words, and the caller gives a run that says `Timeout` more time.
    #[test]
    fn what_the_code_raises_is_not_what_the_sandbox_says() {
        for kind in [
            "Timeout",
            "OutOfMemory",
            "Cancelled",
            "SandboxError",
            "WorkerLost",
        ] {
            let text = format!("requests.exceptions.{kind}: no answer");
            assert_eq!(failed(kind, &text), (format!("code.{kind}"), text));
        }
        for kind in ["TimeoutError", "MemoryError", "acme.Timeout"] {
            assert_eq!(failed(kind, "").0, kind);
        }
    }

    /// Nor is a signal that the code has sent itself.
    #[test]
    fn only_a_limit_can_be_used_up() {
        for (cpu_ms, kind) in [(0, abi::RUN_SANDBOX_ERROR), (1000, abi::RUN_TIMEOUT)] {
            let mut request = RunRequest::default();
            request.limits.cpu_ms = cpu_ms;
            let end = End {
                signal: libc::SIGXCPU,
                ..End::default()
            };
            let mut result = RunResult::default();
            result.died(&request, &end);
            assert_eq!(result.error_type, kind, "{}", result.error_message);
        }
    }

    /// Who reads it is to change the code for the one, and not for the other.
    #[test]
    fn who_is_killed_for_the_host_has_not_needed_too_much() {
        let mut request = RunRequest::default();
        request.limits.memory_bytes = 65536;
        for (killed_for_others, words) in [
            (false, "the run needed more than its 65536 bytes of memory"),
            (
                true,
                "the host had no memory left and ended this run, which had 4096 of its 65536 bytes: call again later",
            ),
        ] {
            let end = End {
                signal: libc::SIGKILL,
                oom_kills: 1,
                peak_memory_bytes: 4096,
                killed_for_others,
                ..End::default()
            };
            let mut result = RunResult::default();
            result.died(&request, &end);
            assert_eq!(
                (&*result.error_type, &*result.error_message),
                (abi::RUN_OUT_OF_MEMORY, words)
            );
        }
    }

    /// Nor is it its deadline alone that has ended a run which waits for a process that is gone.
    #[test]
    fn a_process_that_is_lost_for_its_memory_is_told_of() {
        let mut request = RunRequest::default();
        request.limits.memory_bytes = 65536;
        let told = |kind: &str, end: End| {
            let mut result = RunResult::default();
            result.fail(kind, "x".into());
            result.completed = kind.is_empty();
            result.lost_one_for_memory(&request, &end);
            result.error_message
        };
        let killed = |oom_kills, killed_for_others| End {
            oom_kills,
            killed_for_others,
            ..End::default()
        };
        let own =
            "a process of the run was ended: the run needed more than its 65536 bytes of memory\nx";
        let of_others = "a process of the run was ended: the host had no memory left\nx";
        assert_eq!(told(abi::RUN_TIMEOUT, killed(1, false)), own);
        assert_eq!(told("BrokenProcessPool", killed(2, false)), own);
        assert_eq!(told(abi::RUN_TIMEOUT, killed(1, true)), of_others);
        for (kind, kills) in [(abi::RUN_TIMEOUT, 0), (abi::RUN_OUT_OF_MEMORY, 1), ("", 1)] {
            assert_eq!(told(kind, killed(kills, false)), "x", "{kind}");
        }
    }

    #[test]
    fn how_an_interpreter_has_ended_itself_is_said_in_words() {
        let said = |signal, exit_code| {
            let end = End {
                signal,
                exit_code,
                ..End::default()
            };
            let mut result = RunResult::default();
            result.died(&RunRequest::default(), &end);
            result.error_message
        };
        for (signal, words) in [
            (libc::SIGSEGV, "signal 11 (SIGSEGV, by a recursion"),
            (libc::SIGABRT, "signal 6 (SIGABRT, by os.abort"),
            (libc::SIGTERM, "signal 15, which the code has sent itself,"),
            (libc::SIGKILL, "signal 9 before it gave a result"),
        ] {
            assert!(said(signal, 0).contains(words), "{}", said(signal, 0));
        }
        assert!(said(0, 3).contains("exit code 3 before it gave a result: `os._exit`"));
        assert!(said(0, CHANNEL_LOST).contains("has closed the descriptor"));
    }

    /// As the guest calls them (`_known_limit`). Who reads it may do with less, when it knows how much there is.
    #[test]
    fn what_a_limit_has_ended_says_how_much_it_is() {
        let thread = "Traceback (most recent call last):\nRuntimeError: can't start new thread";
        let full =
            "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device";
        let long =
            "Traceback (most recent call last):\nOSError: [Errno 27] File too large\nsay less";
        let memory = "Traceback (most recent call last):\nMemoryError";
        for (kind, message, limit) in [
            (
                abi::RUN_TOO_MANY_PROCESSES,
                thread,
                "the run reached its limit of 7 processes and threads",
            ),
            (
                abi::RUN_DISK_FULL,
                full,
                "the run filled its 8192 bytes or 9 files",
            ),
            (
                abi::RUN_DISK_FULL,
                long,
                "the run filled its 8192 bytes or 9 files",
            ),
            ("MemoryError", memory, "the run has 65536 bytes of memory"),
        ] {
            assert_eq!(
                failed(kind, message),
                (kind.into(), format!("{limit}\n{message}"))
            );
        }
        let parser = "MemoryError: Parser stack overflowed";
        assert_eq!(failed("MemoryError", parser).1, parser);
        // The store is full, or the code has a class of this name.
        for message in [
            "runtime.blobs.DiskFull: [Errno 28] the store is full",
            "acme: no disk",
        ] {
            assert_eq!(
                failed(abi::RUN_DISK_FULL, message),
                (abi::RUN_DISK_FULL.into(), message.into())
            );
        }
    }

    #[test]
    fn a_run_has_failed_of_its_limit_of_processes_where_it_says_so() {
        let fork = "BlockingIOError: [Errno 11] Resource temporarily unavailable";
        let thread = "RuntimeError: can't start new thread";
        for (kind, message) in [("BlockingIOError", fork), ("RuntimeError", thread)] {
            let (found, text) = failed(kind, message);
            assert_eq!(found, abi::RUN_TOO_MANY_PROCESSES, "{message}");
            assert!(text.ends_with(message), "{text}");
        }
        // It went on with fewer, and was wrong later.
        for (kind, message) in [
            (
                "RuntimeError",
                "RuntimeError: page 3 of the report is empty",
            ),
            ("OSError", "OSError: [Errno 5] Input/output error"),
            ("ValueError", fork),
        ] {
            assert_eq!(failed(kind, message), (kind.into(), message.into()));
        }
    }
}
