//! [`RunServices`] over the host's table.

use std::os::unix::io::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use skillgate_plugin_abi as abi;

use super::host_table::HostTable;
use crate::model::{Error, Result};
use crate::{RunServices, Secret};

/// The host's services for one run, whoever has them.
pub(super) struct Services {
    host: Arc<HostTable>,
    op: abi::Op,
    ended: AtomicBool,
}

impl Services {
    pub(super) fn new(host: &Arc<HostTable>, op: abi::Op) -> Self {
        Services {
            host: Arc::clone(host),
            op,
            ended: AtomicBool::new(false),
        }
    }

    /// The run is about to be answered: nothing more is asked of the host. A call that another thread is just making may
    /// still reach it, which refuses it by its op.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Asks the host for something, with the run's op, if it offers that.
    fn ask<F, R>(
        &self,
        what: &str,
        offered: impl FnOnce(&abi::Host) -> Option<F>,
        f: impl FnOnce(F, *mut std::ffi::c_void, abi::Op) -> R,
    ) -> Result<R> {
        let ended = || Error::new(abi::E_STALE, "this run has been answered");
        if self.ended.load(Ordering::SeqCst) {
            return Err(ended());
        }
        let answer = self.host.ask(|host| match offered(host) {
            Some(offered) => Ok(f(offered, host.ctx, self.op)),
            None => Err(lacks(what)),
        });
        answer.unwrap_or_else(|| Err(ended()))
    }
}

/// Longest blob id that the contract allows.
const BLOB_ID_BYTES: usize = 128;
/// Room for a secret at first; longer ones say how long they are.
const SECRET_BYTES: usize = 4096;
const SECRET_BYTES_MAX: usize = 64 << 20;

fn lacks(what: &str) -> Error {
    Error::new(
        abi::E_UNIMPLEMENTED,
        format!("this host does not offer {what}"),
    )
}

/// A result of a host call: negative is an error.
fn answer(what: &str, code: impl Into<i64>) -> Result<i64> {
    let code = code.into();
    if code >= 0 {
        return Ok(code);
    }
    let code = i32::try_from(code).unwrap_or(abi::E_PROTOCOL);
    Err(Error::new(code, format!("the host refuses {what}")))
}

/// A length of a host call, at most `max`.
fn length(what: &str, n: i64, max: usize) -> Result<usize> {
    match usize::try_from(answer(what, n)?) {
        Ok(n) if n <= max => Ok(n),
        _ => {
            let message = format!("the host answers {what} with the length {n}, more than {max}");
            Err(Error::new(abi::E_PROTOCOL, message))
        }
    }
}

// In every SAFETY comment below: "while it is asked" means that the host's table is valid, and that what the arguments
// point to is good, during the call. That the run has ended is the host's to see, by its op.
impl RunServices for Services {
    fn output(&self, stream: u32, data: &[u8]) -> bool {
        let data = abi::Bytes::of(data);
        let taken = self.ask(
            "run_output",
            |host| host.run_output,
            |f, ctx, op| {
                // SAFETY: while it is asked.
                unsafe { f(ctx, op, stream, data) }
            },
        );
        taken == Ok(abi::OK)
    }

    fn secret(&self, name: &str) -> Result<Secret> {
        let mut buf = vec![0; SECRET_BYTES];
        for _ in 0..2 {
            let (ptr, cap) = (buf.as_mut_ptr().cast(), buf.len() as u64);
            let n = self.ask(
                "secret_read",
                |host| host.secret_read,
                |f, ctx, op| {
                    // SAFETY: while it is asked; cap bytes are writable.
                    unsafe { f(ctx, op, abi::Str::of(name), ptr, cap) }
                },
            )?;
            let n = length("secret_read", n, SECRET_BYTES_MAX)?;
            if n <= buf.len() {
                buf.truncate(n);
                return Ok(Secret::new(buf));
            }
            // Nothing was copied: the secret is longer than the buffer, and this is how long.
            buf = vec![0; n];
        }
        Err(Error::new(
            abi::E_PROTOCOL,
            "the host answers secret_read with another length each time",
        ))
    }

    fn blob_fd(&self, id: &str) -> Result<OwnedFd> {
        let fd = self.ask(
            "blob_fd",
            |host| host.blob_fd,
            |f, ctx, op| {
                // SAFETY: while it is asked.
                unsafe { f(ctx, op, abi::Str::of(id)) }
            },
        )?;
        answer("blob_fd", fd)?;
        // SAFETY: the contract: a descriptor that is ours from here on.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (ptr, cap) = (buf.as_mut_ptr().cast(), buf.len() as u64);
        let n = self.ask(
            "blob_read",
            |host| host.blob_read,
            |f, ctx, op| {
                // SAFETY: while it is asked; cap bytes are writable.
                unsafe { f(ctx, op, abi::Str::of(id), offset, ptr, cap) }
            },
        )?;
        length("blob_read", n, buf.len())
    }

    fn blob_create(&self, kind: &str) -> Result<i64> {
        let writer = self.ask(
            "blob_create",
            |host| host.blob_create,
            |f, ctx, op| {
                // SAFETY: while it is asked.
                unsafe { f(ctx, op, abi::Str::of(kind)) }
            },
        )?;
        answer("blob_create", writer)
    }

    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()> {
        let code = self.ask(
            "blob_write",
            |host| host.blob_write,
            |f, ctx, op| {
                // SAFETY: while it is asked.
                unsafe { f(ctx, op, writer, abi::Bytes::of(data)) }
            },
        )?;
        answer("blob_write", code).map(|_| ())
    }

    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>> {
        let mut id = [0; BLOB_ID_BYTES];
        let (ptr, cap) = (id.as_mut_ptr(), id.len() as u64);
        let n = self.ask(
            "blob_finish",
            |host| host.blob_finish,
            |f, ctx, op| {
                // SAFETY: while it is asked; cap bytes are writable.
                unsafe { f(ctx, op, writer, i32::from(commit), ptr, cap) }
            },
        )?;
        let n = length("blob_finish", n, id.len())?;
        if !commit {
            return Ok(None);
        }
        match std::str::from_utf8(&id[..n]) {
            Ok(id) => Ok(Some(id.to_owned())),
            Err(_) => Err(Error::new(
                abi::E_PROTOCOL,
                "the host gives a blob id that is not UTF-8",
            )),
        }
    }

    fn gate_serve(&self, listener: OwnedFd) -> Result<()> {
        let fd = listener.as_raw_fd();
        let code = self.ask(
            "gate_serve",
            |host| host.gate_serve,
            |f, ctx, op| {
                // SAFETY: while it is asked; the descriptor is open, and ours until the host says OK.
                unsafe { f(ctx, op, fd) }
            },
        )?;
        answer("gate_serve", code)?;
        // The host's now, and the host closes it.
        let _ = listener.into_raw_fd();
        Ok(())
    }

    fn cancelled(&self) -> bool {
        self.ended.load(Ordering::SeqCst) || self.host.cancelled(self.op)
    }
}
