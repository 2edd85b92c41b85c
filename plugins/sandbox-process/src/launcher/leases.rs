//! Namespaces that are made ahead and leased to one run after the other: network, ipc and user.
//!
//! Making a network namespace costs more than all else of a child together, and taking many away keeps the kernel busy.
//! One is leased again only when nothing can be left in it: its run had no network (its filter let it make AF_UNIX
//! sockets alone, and no System V or message queue object at all), every process of the run has been reaped, and the
//! plugin has closed the socket through which one of the run's could still be on its way. Else it is thrown away.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::ids::Id;
use crate::isolate::INSIDE_ID;
use crate::sys::{self, Fork};

/// The namespaces of one run, and the user id that goes with them.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: Id,
    pub(crate) network: OwnedFd,
    pub(crate) ipc: OwnedFd,
    /// `None`: excused.
    pub(crate) user: Option<OwnedFd>,
}

/// All leases of a launcher.
#[derive(Debug)]
pub(crate) struct Leases {
    /// A network and an ipc namespace of the launcher's own, which it comes back to: nothing is ever in them.
    home: [OwnedFd; 2],
    free: Vec<Lease>,
    /// So many free ones are kept, a burst may have made more; 0: none is leased twice.
    free_max: usize,
    slots: BTreeSet<u32>,
    with_user: bool,
}

impl Leases {
    /// Moves the launcher into its home.
    pub(crate) fn new(with_user: bool, free_max: usize) -> io::Result<Self> {
        Ok(Leases {
            home: new_pair()?,
            free: Vec::new(),
            free_max,
            slots: BTreeSet::new(),
            with_user,
        })
    }

    /// Whether a slot is some lease's.
    pub(crate) fn has(&self, slot: u32) -> bool {
        self.slots.contains(&slot)
    }

    /// One that is free, or else a new one with this id.
    pub(crate) fn take(&mut self, id: impl FnOnce(&Self) -> io::Result<Id>) -> io::Result<Lease> {
        if let Some(lease) = self.free.pop() {
            return Ok(lease);
        }
        let id = id(self)?;
        let made = new_pair();
        self.go_home();
        let [network, ipc] = made?;
        let user = if self.with_user {
            Some(new_user_namespace(id.outer())?)
        } else {
            None
        };
        self.slots.insert(id.slot());
        Ok(Lease {
            id,
            network,
            ipc,
            user,
        })
    }

    /// A run with network has one thing in its network namespace: a listener, of which the plugin gets the only
    /// descriptor.
    pub(crate) fn open_gate(&self, lease: &Lease, notice: BorrowedFd<'_>) -> io::Result<()> {
        sys::enter_namespace(lease.network.as_fd(), libc::CLONE_NEWNET)?;
        let opened = crate::isolate::open_gate(notice);
        self.go_home();
        opened
    }

    /// In any case: what is inside a leased namespace is the run's, and its network ends with it.
    fn go_home(&self) {
        let [network, ipc] = &self.home;
        let gone = sys::enter_namespace(network.as_fd(), libc::CLONE_NEWNET)
            .and_then(|()| sys::enter_namespace(ipc.as_fd(), libc::CLONE_NEWIPC));
        if gone.is_err() {
            // What is made from here on would be in there with it.
            sys::exit_now(3);
        }
    }

    /// After its run, which is dead and reaped. `pristine`: nothing can be left in it.
    pub(crate) fn give_back(&mut self, lease: Lease, pristine: bool) {
        if pristine && self.free.len() < self.free_max {
            self.free.push(lease);
        } else {
            self.slots.remove(&lease.id.slot());
        }
    }

    /// Those that no run has.
    pub(crate) fn let_go(&mut self) {
        for lease in self.free.drain(..) {
            self.slots.remove(&lease.id.slot());
        }
    }
}

/// New network and ipc namespaces, which this process is then in.
fn new_pair() -> io::Result<[OwnedFd; 2]> {
    sys::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWIPC)?;
    Ok([
        sys::open("/proc/self/ns/net", libc::O_RDONLY)?,
        sys::open("/proc/self/ns/ipc", libc::O_RDONLY)?,
    ])
}

/// A user namespace that knows one id: the run's. It lives as long as somebody holds it; the process that it is made
/// with is gone when this returns.
fn new_user_namespace(outer_id: u32) -> io::Result<OwnedFd> {
    let (until, go) = sys::pipe()?;
    match sys::clone_process(libc::CLONE_NEWUSER, None)? {
        Fork::Child => {
            // Its own copy of the writing end would keep it here for ever.
            let gone = sys::close_all_from(0, &[std::os::fd::AsRawFd::as_raw_fd(&until)]);
            let _ = gone.and_then(|()| sys::read(until.as_fd(), &mut [0]));
            sys::exit_now(0)
        }
        Fork::Parent { pid, pidfd } => {
            let made = || -> io::Result<OwnedFd> {
                let map = format!("{INSIDE_ID} {outer_id} 1");
                fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
                fs::write(format!("/proc/{pid}/gid_map"), &map)?;
                fs::write(format!("/proc/{pid}/uid_map"), &map)?;
                sys::open(format!("/proc/{pid}/ns/user"), libc::O_RDONLY)
            };
            let namespace = made();
            drop(go);
            sys::kill_by_pidfd(pidfd.as_fd())?;
            sys::wait(pid)?;
            namespace
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    #[ignore = "the launcher of `a_launcher_that_cannot_go_home_goes_no_further`"]
    fn launcher_without_a_home() {
        let nowhere = || sys::open("/dev/null", libc::O_RDONLY).unwrap();
        let mut leases = Leases {
            home: [nowhere(), nowhere()],
            free: Vec::new(),
            free_max: 0,
            slots: BTreeSet::new(),
            with_user: false,
        };
        let gate = std::env::var_os("LEASES_TEST_GATE");
        if gate.is_some() {
            let (notice, _plugins) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
            let [network, ipc] = new_pair().unwrap();
            let lease = Lease {
                id: Id::of_a_test(),
                network,
                ipc,
                user: None,
            };
            let _ = leases.open_gate(&lease, notice.as_fd());
        } else {
            let _ = leases.take(|_| Ok(Id::of_a_test()));
        }
    }

    /// The kernel may have no memory for the way back, say.
    #[test]
    fn a_launcher_that_cannot_go_home_goes_no_further() {
        if sys::unshare(libc::CLONE_NEWNET).is_err() {
            return; // an ordinary user
        }
        for gate in [false, true] {
            let mut launcher = Command::new(std::env::current_exe().unwrap());
            launcher
                .args(["--ignored", "--exact"])
                .arg("launcher::leases::tests::launcher_without_a_home")
                .stdout(Stdio::null())
                .env_remove("LEASES_TEST_GATE");
            if gate {
                launcher.env("LEASES_TEST_GATE", "");
            }
            assert_eq!(launcher.status().unwrap().code(), Some(3), "{gate}");
        }
    }
}
