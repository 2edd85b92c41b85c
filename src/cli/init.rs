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
/// ended, until that program has.
pub(super) fn attend() -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    runtime
        .and_then(|runtime| runtime.block_on(attended()))
        .map_err(|error| failed(&format!("cannot be process 1: {error}")))
        .and_then(exit_of)
}

async fn attended() -> io::Result<WaitStatus> {
    // Before there is anybody to hear of.
    let mut ended = signal(SignalKind::child())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut arguments = std::env::args_os();
    let mut gateway = Command::new("/proc/self/exe");
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
            _ = hangup.recv() => Signal::HUP,
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

/// What the gateway ended with is what this ends with.
fn exit_of(status: WaitStatus) -> Result<Exit, Failure> {
    let exits = [
        Exit::Fine,
        Exit::Findings,
        Exit::Usage,
        Exit::Configuration,
        Exit::Runtime,
    ];
    let code = status.exit_status();
    let exit = exits.into_iter().find(|exit| code == Some(*exit as i32));
    exit.ok_or_else(|| match (code, status.terminating_signal()) {
        (Some(code), _) => failed(&format!("the gateway has ended with {code}")),
        (None, Some(signal)) => failed(&format!("the gateway was ended by signal {signal}")),
        (None, None) => failed("the gateway has ended"),
    })
}

fn failed(why: &str) -> Failure {
    Failure::new(Exit::Runtime, why)
}
