//! A run's group as the plugin has it: open directories, no path and no right to remove. So the thread of a run sets its
//! limits and reads what it has used without asking anybody.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::used::{count, use_files};
use super::{GroupLimits, GroupUse, Place, RunGroup, limit_files};
use crate::sys;

/// Which of a group's directories this is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Part {
    pub(crate) v2: bool,
    pub(crate) controllers: Vec<String>,
}

/// The group of a run that has been handed over.
#[derive(Debug)]
pub(crate) struct Held {
    parts: Vec<(Part, OwnedFd)>,
    /// Open already, since every run asks for them: which part, the file's name, the file.
    asked: Vec<(usize, &'static str, OwnedFd)>,
    limits: GroupLimits,
}

impl RunGroup {
    /// What to hand over.
    pub(crate) fn parts(&self) -> (Vec<Part>, Vec<BorrowedFd<'_>>) {
        let part = |place: &Place| Part {
            v2: place.hierarchy.v2,
            controllers: place
                .hierarchy
                .controllers
                .iter()
                .map(|c| (*c).to_owned())
                .collect(),
        };
        self.places()
            .map(|place| (part(place), place.at.as_fd()))
            .unzip()
    }
}

impl Held {
    /// `limits` are those that it has.
    pub(crate) fn new(parts: Vec<(Part, OwnedFd)>, limits: GroupLimits) -> Self {
        let mut asked = Vec::new();
        for (n, (part, dir)) in parts.iter().enumerate() {
            for name in use_files(part.v2, &part.controllers) {
                // What is not there is found not to be there again when it is asked for.
                if let Ok(file) = sys::open_at(dir.as_fd(), name, libc::O_RDONLY) {
                    asked.push((n, name, file));
                }
            }
        }
        Held {
            parts,
            asked,
            limits,
        }
    }

    /// Changes what is to be changed.
    pub(crate) fn limit(&mut self, limits: GroupLimits) -> io::Result<()> {
        let limits = GroupLimits {
            copied_bytes: self.limits.copied_bytes,
            connects: self.limits.connects,
            ..limits
        };
        if limits.memory_bytes == 0 && self.limits.memory_bytes > 0 {
            return Err(io::Error::other("a limit of memory is not taken back"));
        }
        for (part, dir) in &self.parts {
            for controller in &part.controllers {
                let old = limit_files(part.v2, controller, self.limits);
                let mut new = limit_files(part.v2, controller, limits);
                new.retain(|file| !old.contains(file));
                if self.limits.memory_bytes > 0 && limits.memory_bytes > self.limits.memory_bytes {
                    // Version 1: memory with swap is never below memory. 0 is no limit, which only goes down.
                    new.reverse();
                }
                for (file, value, needed) in new {
                    match sys::open_at(dir.as_fd(), file, libc::O_WRONLY) {
                        Ok(file) => sys::write(file.as_fd(), value.as_bytes()).map(drop)?,
                        Err(e) if !needed && e.kind() == io::ErrorKind::NotFound => {}
                        Err(e) => return Err(e),
                    }
                }
            }
        }
        self.limits = limits;
        Ok(())
    }

    /// Whether limits of memory and processes are enforced, and so whether `used` knows.
    pub(crate) fn is_there(&self) -> bool {
        !self.parts.is_empty()
    }

    /// What it has used so far. `events`: also how often a limit was met, which only a failure asks for.
    pub(crate) fn used(&self, events: bool) -> GroupUse {
        let mut total = GroupUse::default();
        for (n, (part, _)) in self.parts.iter().enumerate() {
            let controllers: Vec<&str> = part.controllers.iter().map(String::as_str).collect();
            count(&mut total, part.v2, &controllers, events, |file| {
                self.text(n, file)
            });
        }
        total.with_copied(self.limits.copied_bytes)
    }

    /// Processor time so far, in microseconds, where it is counted.
    pub(crate) fn cpu_us(&self) -> Option<u64> {
        let mut total = GroupUse::default();
        let counts = |p: &Part| p.v2 || p.controllers.iter().any(|c| c == "cpuacct");
        for (n, (part, _)) in self.parts.iter().enumerate().filter(|(_, p)| counts(&p.0)) {
            count(&mut total, part.v2, &["cpuacct"], false, |file| {
                self.text(n, file)
            });
        }
        total.cpu_us
    }

    /// What a small file of a part says; nothing when it is not there.
    fn text(&self, part: usize, name: &str) -> String {
        let mut buf = [0; 1024];
        let open = self
            .asked
            .iter()
            .find(|(n, file, _)| (*n, *file) == (part, name));
        let read = match open {
            Some((_, _, file)) => sys::read_at(file.as_fd(), &mut buf, 0),
            None => sys::open_at(self.parts[part].1.as_fd(), name, libc::O_RDONLY)
                .and_then(|file| sys::read(file.as_fd(), &mut buf)),
        };
        String::from_utf8_lossy(&buf[..read.unwrap_or(0)]).into_owned()
    }
}
