//! Directories of a group that are lent to one run after the other.
//!
//! Version 1 wants a directory for each controller, and to make and remove four for each run costs as much as the rest of what
//! a launcher does for it. Those without memory have nothing of a run when its processes are gone but counters, which are set
//! back, or are looked at and say that nothing has happened. Memory stays charged to the group where it was used: its
//! directory is never lent twice, and that it could be removed is how it is known that nothing of the run is left.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::used::field_of;
use super::{GroupLimits, Place, limit_files};
use crate::sys;

/// The directories that go together.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) places: Vec<Place>,
    /// Processor time so far, which is set back.
    usage: Option<OwnedFd>,
    /// How many processes a run may have: the only limit that differs between runs.
    pids_max: Option<OwnedFd>,
    /// Counters that cannot be: the file, and the field that says 0 as long as a limit was not met.
    counters: Vec<(OwnedFd, &'static str)>,
    /// Its share of the processors is another than at first.
    pub(super) is_changed: bool,
}

impl Lent {
    pub(super) fn of(places: Vec<Place>) -> Self {
        Lent {
            places,
            usage: None,
            pids_max: None,
            counters: Vec::new(),
            is_changed: false,
        }
    }

    /// Opens what is read and set back between two runs.
    pub(super) fn open(&mut self) -> io::Result<()> {
        for place in &self.places {
            for controller in &place.hierarchy.controllers {
                let open = |file, flags| sys::open_at(place.at.as_fd(), file, flags);
                match *controller {
                    "cpuacct" => self.usage = Some(open("cpuacct.usage", libc::O_WRONLY)?),
                    "pids" => {
                        self.pids_max = Some(open("pids.max", libc::O_WRONLY)?);
                        self.counters
                            .push((open("pids.events", libc::O_RDONLY)?, "max"));
                    }
                    "cpu" if place.hierarchy.bounds_cpu => self
                        .counters
                        .push((open("cpu.stat", libc::O_RDONLY)?, "nr_throttled")),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Whether the run was short and met no limit, so that the next one finds what the first one has found.
    pub(super) fn is_as_new(&self) -> bool {
        !self.is_changed
            && self.counters.iter().all(|(file, field)| {
                let mut buf = [0; 256];
                let read = sys::read_at(file.as_fd(), &mut buf, 0).unwrap_or(0);
                let text = String::from_utf8_lossy(&buf[..read]);
                field_of(&text, field) == Some(0)
            })
    }

    /// Removes all of it. `false`: something is still in it, try again soon.
    pub(super) fn try_remove(&mut self) -> bool {
        // Whatever is left of it is lent to nobody any more: without its files nothing could be told of it.
        self.is_changed = true;
        // See `Place::remove`.
        self.usage = None;
        self.pids_max = None;
        self.counters.clear();
        self.places.retain_mut(|place| place.remove().is_err());
        self.places.is_empty()
    }

    /// For the next run. What limits there are now is not known: the plugin has changed them for the run before.
    pub(super) fn prepare(&self, limits: GroupLimits) -> io::Result<()> {
        if let Some(usage) = &self.usage {
            sys::write(usage.as_fd(), b"0")?;
        }
        if let Some(file) = &self.pids_max {
            for (_, value, _) in limit_files(false, "pids", limits) {
                sys::write(file.as_fd(), value.as_bytes())?;
            }
        }
        Ok(())
    }
}
