//! The floor of free space, in bytes and in inodes: what the file system of the store keeps for others. The gateway's records
//! are often on the same one, and without room for them no tenant's call is answered: so nobody's data takes the last of it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::StatVfsMountFlags;
use skillgate_plugin_sdk::{Host, Level};

use crate::fault::{Fault, Result};
use crate::ground::TARGET;

/// What is free on a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Free {
    /// `None`: it does not know, as one in memory without a limit.
    pub bytes: Option<u64>,
    /// Files and directories that can be made. `None`: as many as there is room for, as on btrfs.
    pub inodes: Option<u64>,
    /// Nothing can be written, as after an error of its disk (`errors=remount-ro` of ext4(5)).
    pub is_read_only: bool,
}

/// What is free on the file system of a directory, as a parameter: tests say it.
pub type Space = Arc<dyn Fn(BorrowedFd<'_>) -> rustix::io::Result<Free> + Send + Sync>;

pub(crate) fn of_the_file_system() -> Space {
    Arc::new(|dir| {
        let vfs = rustix::fs::fstatvfs(dir)?;
        let bytes = vfs.f_bavail.saturating_mul(vfs.f_frsize);
        Ok(Free {
            bytes: (vfs.f_blocks > 0).then_some(bytes),
            inodes: (vfs.f_files > 0).then_some(vfs.f_favail),
            is_read_only: vfs.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    })
}

/// What a file or a directory may take beside its content, as on ext4: a directory its first block, a file the rest of its
/// last.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// What something takes of a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Of content. [`Floor::begin`] adds a block for each inode.
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl Size {
    /// With a block for each inode: 16,000 directories of nothing take 65 MB.
    pub(crate) fn with_blocks(self) -> Size {
        let blocks = self.inodes.saturating_mul(BLOCK_BYTES);
        Size {
            bytes: self.bytes.saturating_add(blocks),
            ..self
        }
    }
}

impl Free {
    /// What there is when so much of it is somebody's already.
    fn without(self, taken: Size) -> Free {
        Free {
            bytes: self.bytes.map(|free| free.saturating_sub(taken.bytes)),
            inodes: self.inodes.map(|free| free.saturating_sub(taken.inodes)),
            ..self
        }
    }
}

/// What all writers together write between two looks at the file system. Others on it may take as much of the floor
/// meanwhile as they do; a writer waits for a look once in many writes.
const LOOK_EVERY_BYTES: u64 = 8 * 1024 * 1024;

/// Beyond the floor there is room again when there is so much more.
const WELL_ABOVE: Size = Size {
    bytes: LOOK_EVERY_BYTES,
    inodes: 1024,
};

/// One for a store: writers that are open beside each other do not each have a grant of their own.
pub(crate) struct Floor {
    /// 0: none.
    reserve: Size,
    space: Space,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Is going to be written by those who hold a [`Promise`], so the file system does not show it as taken yet.
    promised: Size,
    /// May be written before the next look.
    granted_bytes: u64,
    /// Has been told; ends with [`WELL_ABOVE`], so that a store that goes to and fro around the floor does not fill the log.
    low: bool,
}

/// Room for something whose size is known before it is written: nobody else is let into it meanwhile. What is left of it ends
/// with this.
pub(crate) struct Promise {
    floor: Arc<Floor>,
    left: Size,
}

impl std::fmt::Debug for Promise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Promise")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Promise {
    /// So many bytes are written: from now on the file system counts them.
    pub(crate) fn written(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left.bytes);
        if bytes > 0 {
            self.left.bytes -= bytes;
            self.floor.give_back(Size { bytes, inodes: 0 });
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.floor.give_back(self.left);
    }
}

/// What an operator sees.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) free: Free,
    /// Why things are refused.
    pub(crate) low: Option<String>,
}

impl std::fmt::Debug for Floor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Floor")
            .field("reserve", &self.reserve)
            .finish_non_exhaustive()
    }
}

impl Floor {
    pub(crate) fn new(reserve: Size, space: Space) -> Floor {
        Floor {
            reserve,
            space,
            state: Mutex::default(),
        }
    }

    /// Something new of this size: looks, whatever is granted yet. It stays promised until it is written: many who begin at
    /// once see the same free space, and each of them alone would fit into it. Its inodes, and their blocks, are for as long
    /// as the promise lives.
    pub(crate) fn begin(
        self: &Arc<Floor>,
        root: impl AsFd,
        host: &Host,
        adding: Size,
    ) -> Result<Promise> {
        let adding = adding.with_blocks();
        let mut state = self.state();
        state.granted_bytes = 0;
        self.look(&mut state, root, host, adding)?;
        let promised = &mut state.promised;
        promised.bytes = promised.bytes.saturating_add(adding.bytes);
        promised.inodes = promised.inodes.saturating_add(adding.inodes);
        Ok(Promise {
            floor: Arc::clone(self),
            left: adding,
        })
    }

    /// So many bytes more of what has been begun.
    pub(crate) fn go_on(&self, root: impl AsFd, host: &Host, bytes: u64) -> Result<()> {
        let mut state = self.state();
        match state.granted_bytes.checked_sub(bytes) {
            Some(left) => {
                state.granted_bytes = left;
                Ok(())
            }
            None => self.look(&mut state, root, host, Size { bytes, inodes: 0 }),
        }
    }

    /// For the operator; what has changed is told although nobody writes.
    pub(crate) fn room(&self, root: impl AsFd, host: &Host) -> Room {
        let known = (self.space)(root.as_fd()).ok();
        let mut state = self.state();
        if let Some(free) = known {
            let is_low = self.left(free, Size::default()).is_err();
            let unpromised = free.without(state.promised);
            self.note(&mut state, host, unpromised, is_low);
        }
        let free = known.unwrap_or_default();
        let low = state.low.then(|| {
            let Size { bytes, inodes } = self.reserve;
            format!(
                "{} bytes and {} inodes are free on the store's file system: what would leave less than {bytes} (reserve_bytes) or {inodes} (reserve_inodes) is refused",
                said(free.bytes),
                said(free.inodes)
            )
        });
        let read_only = "the store's file system is read-only: nothing can be stored until it is writable again (has its disk failed?)";
        let low = if free.is_read_only {
            Some(read_only.to_owned())
        } else {
            low
        };
        Room { free, low }
    }

    fn look(&self, state: &mut State, root: impl AsFd, host: &Host, adding: Size) -> Result<()> {
        if self.reserve == Size::default() {
            return Ok(());
        }
        let free =
            (self.space)(root.as_fd()).map_err(Fault::os("ask for the free space of", "."))?;
        // What is just being written counts twice until its file is complete, and blocks of inodes until all of it is: too
        // little is the safe side.
        let unpromised = free.without(state.promised);
        let mut there_is = unpromised;
        if adding.inodes == 0 {
            // What goes on takes no more than it was promised: it stops only when somebody else has taken of the floor.
            there_is.inodes = free.inodes;
        }
        let left = self.left(there_is, adding);
        self.note(state, host, unpromised, left.is_err());
        let left_bytes = left.map_err(|what| {
            Fault::Full(format!(
                "the store would have less than {what} free, which it keeps for records: store less, or ask the operator for room"
            ))
        })?;
        state.granted_bytes = left_bytes.min(LOOK_EVERY_BYTES);
        Ok(())
    }

    /// How many bytes are left above the floor when so much is added; an error says of what there would be less.
    fn left(&self, free: Free, adding: Size) -> std::result::Result<u64, String> {
        let left = |free: Option<u64>, reserve: u64, adding: u64| match free {
            Some(free) if reserve > 0 => free.checked_sub(reserve)?.checked_sub(adding),
            _ => Some(u64::MAX),
        };
        let Size { bytes, inodes } = self.reserve;
        left(free.inodes, inodes, adding.inodes).ok_or_else(|| format!("{inodes} inodes"))?;
        left(free.bytes, bytes, adding.bytes).ok_or_else(|| format!("{bytes} bytes"))
    }

    fn note(&self, state: &mut State, host: &Host, free: Free, low: bool) {
        let (level, message) = match (state.low, low) {
            (false, true) => (
                Level::Warn,
                "the store's file system has no more free space than is kept: what would leave less is refused",
            ),
            (true, false) if self.left(free, WELL_ABOVE).is_ok() => {
                (Level::Info, "the store's file system has room again")
            }
            _ => return,
        };
        state.low = low;
        let Size { bytes, inodes } = self.reserve;
        host.log(
            level,
            TARGET,
            message,
            &[
                ("free_bytes", &said(free.bytes)),
                ("reserve_bytes", &bytes.to_string()),
                ("free_inodes", &said(free.inodes)),
                ("reserve_inodes", &inodes.to_string()),
            ],
        );
    }

    fn give_back(&self, size: Size) {
        let promised = &mut self.state().promised;
        promised.bytes = promised.bytes.saturating_sub(size.bytes);
        promised.inodes = promised.inodes.saturating_sub(size.inodes);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves a few values, all of them valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number that a file system may not know.
fn said(free: Option<u64>) -> String {
    free.map_or_else(
        || "an unknown number of".to_owned(),
        |free| free.to_string(),
    )
}
