//! Which run has which user id, on the whole host.
//!
//! Runs of one launcher never share an id, for it gives each another. Launchers do not know of each other: there are two
//! while a sandbox is exchanged, and two gateways, or one and `skillgate skill run`, may have the same `uid_base`. So each id
//! that is in use is a locked byte of one file, at the offset of its number. The kernel lets go of a lock with its holder,
//! however that ends.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::rc::Rc;

use crate::probe::Standing;
use crate::sys;

/// Nobody but root can open it, so nobody else can hold ids that are not theirs.
const REGISTRY: &str = "/run/skillgate-user-ids.lock";
/// Room above `uid_base` for as many runs as can ever live at once.
pub(crate) const UID_ROOM: u32 = 1 << 20;

/// An id that no run can have (`chown(2)` takes it for "as it is").
const NOBODYS: u32 = u32::MAX;

/// The ids that a launcher may give to runs.
#[derive(Debug)]
pub(crate) struct Ids {
    standing: Standing,
    base: u32,
    /// `None`: nobody else is asked.
    registry: Option<Rc<OwnedFd>>,
}

/// A run's number, and its user id outside, which no other run of this host has until this is dropped.
#[derive(Debug)]
pub(crate) struct Id {
    slot: u32,
    outer: u32,
    registry: Option<Rc<OwnedFd>>,
}

impl Ids {
    /// Those from `base` up. An ordinary user has one id, which all of its runs have. Without the registry (a host that has
    /// no `/run`, or does not let it be written) they are this launcher's own choice, which [`Ids::described`] says.
    pub(crate) fn new(standing: Standing, base: u32) -> Self {
        let registry = match standing {
            Standing::Root => registry(Path::new(REGISTRY)).ok().map(Rc::new),
            Standing::User => None,
        };
        Ids {
            standing,
            base,
            registry,
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    /// For the report on the layers.
    pub(crate) fn described(&self) -> String {
        let base = self.base;
        match (self.standing, &self.registry) {
            (Standing::User, _) => "every run has the gateway's own user id outside".into(),
            (Standing::Root, Some(_)) => {
                format!(
                    "user ids {base} and up outside (no two live runs of this host have the same)"
                )
            }
            (Standing::Root, None) => format!(
                "user ids {base} and up outside; {REGISTRY} cannot be used, so runs of another gateway may have the same"
            ),
        }
    }

    /// The first id that is nobody's; `has`: the slots that are taken here.
    ///
    /// # Errors
    /// All [`UID_ROOM`] are taken, or the kernel cannot lock.
    pub(crate) fn take(&self, has: impl Fn(u32) -> bool) -> io::Result<Id> {
        for slot in (0..UID_ROOM).filter(|slot| !has(*slot)) {
            let outer = match self.standing {
                Standing::Root => self.base + slot,
                Standing::User => 0,
            };
            let is_ours = match &self.registry {
                Some(registry) => sys::try_lock_byte(registry.as_fd(), outer.into())?,
                None => true,
            };
            if is_ours {
                let registry = self.registry.clone();
                return Ok(Id {
                    slot,
                    outer,
                    registry,
                });
            }
        }
        Err(io::Error::other(format!(
            "all {UID_ROOM} user ids from {} up are in use (uid_base)",
            self.base
        )))
    }
}

impl Id {
    /// The number of the run in its launcher.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// The run's user and group id, in the launcher's user namespace.
    pub(crate) fn outer(&self) -> u32 {
        self.outer
    }

    /// Nobody's, for tests.
    #[cfg(test)]
    pub(crate) fn of_a_test() -> Self {
        Id {
            slot: 0,
            outer: 0,
            registry: None,
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if let Some(registry) = &self.registry {
            // One that stays locked is not given again by others, which does no harm; it is free to this launcher.
            let _ = sys::unlock_byte(registry.as_fd(), self.outer.into());
        }
    }
}

fn registry(path: &Path) -> io::Result<OwnedFd> {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.uid() != sys::effective_ids().0 || meta.mode() & 0o077 != 0 {
        return Err(io::Error::other("others can lock it"));
    }
    let file = OwnedFd::from(file);
    // A file system may have no locks (NFS without its daemon). Whoever has this byte meanwhile is another that asks.
    if sys::try_lock_byte(file.as_fd(), NOBODYS.into())? {
        sys::unlock_byte(file.as_fd(), NOBODYS.into())?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn ids(path: &Path, base: u32) -> Ids {
        Ids {
            standing: Standing::Root,
            base,
            registry: Some(Rc::new(registry(path).unwrap())),
        }
    }

    #[test]
    fn two_launchers_never_give_the_same_id() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids");
        let (old, new, other) = (ids(&path, 5000), ids(&path, 5000), ids(&path, 5002));
        let a = old.take(|_| false).unwrap();
        let b = new.take(|_| false).unwrap();
        let c = old.take(|slot| slot == a.slot()).unwrap();
        let d = other.take(|_| false).unwrap();
        let outer = [&a, &b, &c, &d].map(Id::outer);
        assert_eq!(outer, [5000, 5001, 5002, 5003]);
        assert_eq!([&a, &b, &c, &d].map(Id::slot), [0, 1, 2, 1]);
        drop(b);
        let again = new.take(|_| false).unwrap();
        assert_eq!(again.outer(), 5001, "one that was given back");
        // Killed, say.
        drop((old, a, c));
        assert_eq!(new.take(|_| false).unwrap().outer(), 5000);
    }

    #[test]
    fn an_ordinary_user_has_one_id() {
        let ids = Ids::new(Standing::User, 5000);
        let (a, b) = (ids.take(|_| false).unwrap(), ids.take(|s| s == 0).unwrap());
        assert_eq!((a.outer(), b.outer()), (0, 0));
        assert_eq!((a.slot(), b.slot()), (0, 1));
        assert!(ids.described().contains("the gateway's own"));
    }

    #[test]
    fn a_range_that_is_full_is_said() {
        let ids = Ids {
            standing: Standing::Root,
            base: 5000,
            registry: None,
        };
        let described = ids.described();
        assert!(described.contains("may have the same"), "{described}");
        let error = ids.take(|_| true).unwrap_err().to_string();
        assert!(error.contains("1048576 user ids from 5000 up"), "{error}");
    }

    #[test]
    fn a_registry_that_others_can_open_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(registry(&path).is_err());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
        assert!(registry(&link).is_err());
        assert!(registry(&dir.path().join("fine")).is_ok());
    }
}
