//! Process 1 of a pid namespace, which a container's first program is.
//!
//! Whoever has lost its parent becomes a child of process 1, and stays a zombie until that one asks for its status: a launcher
//! that is killed leaves dozens, each with a number of the container's `pids.max`. The gateway itself cannot ask for all of them:
//! that would take from those who wait for a child of their own (the standard library, tokio, a plugin) what they wait for. So
//! process 1 does nothing else, and the gateway is its child.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::Exit;
use super::failure::Failure;

/// Whether this is process 1.
pub(super) fn is_first() -> bool {
    std::process::id() == 1
}

/// Starts this program again with the same arguments, hands on what it is to hear of, and asks for the status of everybody who has
/// ended, until that program has; and ends as that has.
pub(super) fn attend() -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let status = runtime
        .and_then(|runtime| runtime.block_on(attended()))
        .map_err(|error| {
            Failure::new(
                Exit::Runtime,
                format!("cannot be process 1, which starts the gateway: {error}"),
            )
        })?;
    std::process::exit(code_of(status))
}

async fn attended() -> io::Result<WaitStatus> {
    // Before there is anybody to hear of.
    let mut ended = signal(SignalKind::child())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut arguments = std::env::args_os();
    let mut gateway = Command::new(std::env::current_exe()?);
    gateway
        .arg0(arguments.next().unwrap_or_default())
        .args(arguments)
        // A terminal interrupts a whole group: the gateway would hear of it twice.
        .process_group(0);
    let gateway = i32::try_from(gateway.spawn()?.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(io::ErrorKind::InvalidData)?;
    loop {
        let said = tokio::select! {
            _ = ended.recv() => {
                if let Some(status) = reap(gateway)? {
                    return Ok(status);
                }
                continue;
            }
            // Nothing is lost by one that it would not hear yet, and die of: it hears before it reads anything, so what is written
            // now it has still to read.
            _ = hangup.recv() => match hears_hangup(gateway) {
                true => Signal::HUP,
                false => continue,
            },
            _ = terminate.recv() => Signal::TERM,
            _ = interrupt.recv() => Signal::INT,
        };
        // It is there, or its status would have been asked for.
        kill_process(gateway, said)?;
    }
}

/// Asks for the status of all that have ended; the gateway's, if it has.
fn reap(gateway: Pid) -> io::Result<Option<WaitStatus>> {
    while let Some((pid, status)) = wait(WaitOptions::NOHANG)? {
        if pid == gateway {
            return Ok(Some(status));
        }
    }
    Ok(None)
}

/// Whether it has a handler for SIGHUP by now (proc_pid_status(5), SigCgt: the lowest bit is signal 1).
fn hears_hangup(gateway: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.as_raw_nonzero()));
    let status = status.unwrap_or_default();
    let mut lines = status.lines();
    let caught = lines.find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    caught.is_some_and(|caught| caught & 1 != 0)
}

/// What a shell would say of its end.
fn code_of(status: WaitStatus) -> i32 {
    let by_signal = || status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or_else(by_signal);
    code.unwrap_or(Exit::Runtime as i32)
}
