//! The floor of free space: what the file system of the store keeps for others. The gateway's records are often on the same
//! one, and without room for them no tenant's call is answered: so nobody's data takes the last of it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skillgate_plugin_sdk::{Host, Level};

use crate::fault::{Fault, Result};
use crate::ground::TARGET;

/// How many bytes are free on the file system of a directory, as a parameter: tests say it. `None`: the file system does not
/// know, as one in memory without a limit.
pub type Space = Arc<dyn Fn(BorrowedFd<'_>) -> rustix::io::Result<Option<u64>> + Send + Sync>;

pub(crate) fn of_the_file_system() -> Space {
    Arc::new(|dir| {
        let vfs = rustix::fs::fstatvfs(dir)?;
        let free = vfs.f_bavail.saturating_mul(vfs.f_frsize);
        Ok((vfs.f_blocks > 0).then_some(free))
    })
}

/// What all writers together write between two looks at the file system. Others on it may take as much of the floor
/// meanwhile as they do; a writer waits for a look once in many writes.
pub(crate) const LOOK_EVERY_BYTES: u64 = 8 * 1024 * 1024;

/// One for a store: writers that are open beside each other do not each have a grant of their own.
pub(crate) struct Floor {
    /// 0: none.
    reserve_bytes: u64,
    space: Space,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Is going to be written by those who hold a [`Promise`], so the file system does not show it as taken yet.
    promised_bytes: u64,
    /// May be written before the next look.
    granted_bytes: u64,
    /// Has been told; ends with [`LOOK_EVERY_BYTES`] above the floor, so that a store that goes to and fro around it does not
    /// fill the log.
    low: bool,
}

/// Room for something whose size is known before it is written: nobody else is let into it meanwhile. What is left of it ends
/// with this.
pub(crate) struct Promise {
    floor: Arc<Floor>,
    bytes: u64,
}

impl std::fmt::Debug for Promise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Promise")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Promise {
    /// So many bytes are written: from now on the file system counts them.
    pub(crate) fn written(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        if bytes > 0 {
            self.bytes -= bytes;
            let mut state = self.floor.state();
            state.promised_bytes = state.promised_bytes.saturating_sub(bytes);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.written(self.bytes);
    }
}

/// What an operator sees.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) free_bytes: Option<u64>,
    /// Why things are refused.
    pub(crate) low: Option<String>,
}

impl std::fmt::Debug for Floor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Floor")
            .field("reserve_bytes", &self.reserve_bytes)
            .finish_non_exhaustive()
    }
}

impl Floor {
    pub(crate) fn new(reserve_bytes: u64, space: Space) -> Floor {
        Floor {
            reserve_bytes,
            space,
            state: Mutex::default(),
        }
    }

    /// Something new of so many bytes: looks, whatever is granted yet. They stay promised until they are written: many who
    /// begin at once see the same free space, and each of them alone would fit into it.
    pub(crate) fn begin(
        self: &Arc<Floor>,
        root: impl AsFd,
        host: &Host,
        adding_bytes: u64,
    ) -> Result<Promise> {
        let mut state = self.state();
        state.granted_bytes = 0;
        self.look(&mut state, root, host, adding_bytes)?;
        state.promised_bytes = state.promised_bytes.saturating_add(adding_bytes);
        Ok(Promise {
            floor: Arc::clone(self),
            bytes: adding_bytes,
        })
    }

    /// So many bytes more of what has been begun.
    pub(crate) fn go_on(&self, root: impl AsFd, host: &Host, adding_bytes: u64) -> Result<()> {
        let mut state = self.state();
        match state.granted_bytes.checked_sub(adding_bytes) {
            Some(left) => {
                state.granted_bytes = left;
                Ok(())
            }
            None => self.look(&mut state, root, host, adding_bytes),
        }
    }

    /// For the operator; what has changed is told although nobody writes.
    pub(crate) fn room(&self, root: impl AsFd, host: &Host) -> Room {
        let free_bytes = (self.space)(root.as_fd()).ok().flatten();
        let mut state = self.state();
        if let Some(free) = free_bytes {
            let unpromised = free.saturating_sub(state.promised_bytes);
            self.note(&mut state, host, unpromised, free < self.reserve_bytes);
        }
        let low = state.low.then(|| {
            format!(
                "{} bytes are free on the store's file system: what would leave less than {} (reserve_bytes) is refused",
                free_bytes.unwrap_or_default(),
                self.reserve_bytes
            )
        });
        Room { free_bytes, low }
    }

    fn look(
        &self,
        state: &mut State,
        root: impl AsFd,
        host: &Host,
        adding_bytes: u64,
    ) -> Result<()> {
        if self.reserve_bytes == 0 {
            return Ok(());
        }
        let free =
            (self.space)(root.as_fd()).map_err(Fault::os("ask for the free space of", "."))?;
        let Some(free) = free else {
            return Ok(());
        };
        // What is just being written counts twice until its file is complete: too little is the safe side.
        let unpromised = free.saturating_sub(state.promised_bytes);
        let left = unpromised
            .checked_sub(self.reserve_bytes)
            .and_then(|room| room.checked_sub(adding_bytes));
        self.note(state, host, unpromised, left.is_none());
        let Some(left) = left else {
            return Err(Fault::Full(format!(
                "the store would have less than {} bytes free, which it keeps for records: store less, or ask the operator for room",
                self.reserve_bytes
            )));
        };
        state.granted_bytes = left.min(LOOK_EVERY_BYTES);
        Ok(())
    }

    fn note(&self, state: &mut State, host: &Host, free_bytes: u64, low: bool) {
        let well_above = self.reserve_bytes.saturating_add(LOOK_EVERY_BYTES);
        let (level, message) = match (state.low, low) {
            (false, true) => (
                Level::Warn,
                "the store's file system has no more free space than is kept: what would leave less is refused",
            ),
            (true, false) if free_bytes >= well_above => {
                (Level::Info, "the store's file system has room again")
            }
            _ => return,
        };
        state.low = low;
        let (free, reserve) = (free_bytes.to_string(), self.reserve_bytes.to_string());
        host.log(
            level,
            TARGET,
            message,
            &[("free_bytes", &free), ("reserve_bytes", &reserve)],
        );
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves two values, both of them valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
