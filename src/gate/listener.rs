//! Where a run's connections come from: a socket that the sandbox has made.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use skillgate_plugin_host::watched_fd;
use tokio::io::unix::AsyncFd;

/// A run's listener, of which whoever made it may have a copy.
#[derive(Debug)]
pub(super) struct Listener(AsyncFd<OwnedFd>);

impl Listener {
    pub(super) fn new(listener: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        watched_fd(listener).map(Listener)
    }

    /// The next connection. O_NONBLOCK is every copy's (open(2)): where one of them has taken it off, a look before each call
    /// keeps this from waiting in it, on a thread that is everybody's.
    pub(super) async fn next(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let mut ready = self.0.readable().await?;
            if is_waiting(self.0.get_ref())? {
                match accept_with(self.0.get_ref(), flags) {
                    // The one that waited has gone.
                    Err(Errno::AGAIN | Errno::CONNABORTED) => {}
                    accepted => return Ok(accepted?),
                }
            } else {
                ready.clear_ready();
            }
        }
    }
}

/// Whether a connection waits to be accepted, or the listener is none any more.
fn is_waiting(listener: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(listener, PollFlags::IN)];
    Ok(poll(&mut polled, Some(&Timespec::default()))? > 0)
}
