//! The second layer over files: even where a mount were wrong, a run reads what its root holds, executes the
//! interpreter alone and writes to its own tmpfs alone. It also closes TCP but for the gate (ABI 4), and signals and abstract sockets
//! that lead out of the run (ABI 6).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const BIND_TCP: u64 = 1;
const CONNECT_TCP: u64 = 1 << 1;
const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 1 << 1;
/// LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF (Linux 6.15).
const LOG_SAME_EXEC_OFF: u32 = 1;

/// What an ABI has no rule for, of what is wanted: each came with the ABI beside it (landlock(7)). The first has one for what
/// the second can allow.
pub(crate) fn lacks(abi: u32) -> Vec<&'static str> {
    let wanted = [
        (3, "truncation"),
        (4, "TCP"),
        (5, "ioctls of devices"),
        (6, "signals and abstract sockets"),
    ];
    let later = wanted.into_iter().filter(|(since, _)| abi < *since);
    later.map(|(_, what)| what).collect()
}

/// Every file right that an ABI knows: REFER came with 2, TRUNCATE with 3, IOCTL_DEV with 5.
fn all_file_rights(abi: u32) -> u64 {
    let count = match abi {
        1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    (1 << count) - 1
}

/// The rules of a run, for a process that is inside its new root already. The order matters: a rule is about a directory,
/// not about a path, so one that were made before a mount covers it would be about the wrong directory. What is mounted
/// later below `/` is covered by the rule of `/`; the directories that are executable or writable must be in place.
/// `gate` is the one TCP port that may be connected to; none may be bound.
pub(crate) fn rules(
    abi: u32,
    executable: &[String],
    writable: &[&str],
    gate: Option<u16>,
) -> io::Result<OwnedFd> {
    let all = all_file_rights(abi);
    let handled = [
        all,
        if abi >= 4 { BIND_TCP | CONNECT_TCP } else { 0 },
        if abi >= 6 {
            SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL
        } else {
            0
        },
    ];
    let words = match abi {
        0..=3 => 1,
        4 | 5 => 2,
        _ => 3,
    };
    let rules = sys::landlock_ruleset(&handled[..words])?;
    allow(rules.as_fd(), "/", READ_FILE | READ_DIR)?;
    for path in executable {
        allow(rules.as_fd(), path, EXECUTE | READ_FILE)?;
    }
    for device in ["/dev/null", "/dev/zero", "/dev/full"] {
        allow(rules.as_fd(), device, READ_FILE | WRITE_FILE)?;
    }
    for directory in writable {
        allow(rules.as_fd(), directory, all & !EXECUTE)?;
    }
    if let (Some(port), 4..) = (gate, abi) {
        sys::landlock_allow_port(rules.as_fd(), port, CONNECT_TCP)?;
    }
    Ok(rules)
}

/// Puts this process under them, for ever.
pub(crate) fn enter(abi: u32, rules: BorrowedFd<'_>) -> io::Result<()> {
    sys::landlock_enter(rules, flags(abi))
}

/// What is refused is not told to the host's audit log, where that is on: who is refused would choose how often, and in what
/// words. Before ABI 7 nothing was told there, and no flags are known.
fn flags(abi: u32) -> u32 {
    if abi >= 7 { LOG_SAME_EXEC_OFF } else { 0 }
}

fn allow(rules: BorrowedFd<'_>, path: &str, access: u64) -> io::Result<()> {
    let at = sys::open(path, libc::O_PATH)?;
    sys::landlock_allow(rules, at.as_fd(), access)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_told_to_the_audit_log() {
        let of: Vec<u32> = (5..=8).map(flags).collect();
        assert_eq!(of, [0, 0, 1, 1], "flags are unknown before");
    }

    #[test]
    fn what_is_not_ruled_is_what_later_versions_have_brought() {
        for abi in 1..8 {
            let rights = all_file_rights(abi + 1).count_ones() - all_file_rights(abi).count_ones();
            let brought = match abi + 1 {
                2 => 0,
                4 | 6 => 1,
                _ => rights as usize,
            };
            assert_eq!(lacks(abi).len() - lacks(abi + 1).len(), brought, "{abi}");
        }
        assert_eq!(
            lacks(5).join(", "),
            "signals and abstract sockets",
            "Linux 6.10"
        );
        assert!(lacks(6).is_empty(), "Linux 6.12");
    }
}
