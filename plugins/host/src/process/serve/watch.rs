//! The gateway's end, seen while nobody reads.
//!
//! A thread that reads sees the end of the socket. Nobody reads while the library is loaded, while `create()` runs, and
//! while the reader itself makes a call that does not block. If one of those hangs when the gateway is killed, this process
//! would stay, and what hangs could go on later, beside the process that the next gateway starts for the same instance.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::harden;
use super::line::Line;

/// Ends the process when the gateway has closed its side: at once, as the reader does. Frames that came before and were
/// not read are lost; there is nobody who waits for what they ask for.
pub(super) fn begin(line: Arc<Line>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("plugin-watch".into());
    thread.spawn(move || {
        loop {
            match is_closed(line.socket(), FOR_EVER) {
                Ok(true) => harden::end(0),
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A limit that the plugin has set itself. The reader goes on seeing the end where it can.
                Err(_) => return,
            }
        }
    })?;
    Ok(())
}

/// Of poll(2).
const FOR_EVER: libc::c_int = -1;

/// Waits so long for the end of the socket. Bytes that can be read are none, and wake nobody here: they are the reader's.
fn is_closed(socket: &UnixStream, wait_ms: libc::c_int) -> io::Result<bool> {
    let mut end = libc::pollfd {
        fd: socket.as_raw_fd(),
        // POLLHUP comes unasked.
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one struct that is ours, and its count.
    let found = unsafe { libc::poll(&raw mut end, 1, wait_ms) };
    if found < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(found > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_end_is_seen_behind_bytes_that_nobody_reads_and_they_are_no_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"a call").unwrap();
        assert!(!is_closed(&ours, 0).unwrap());
        drop(theirs);
        assert!(is_closed(&ours, FOR_EVER).unwrap());
        let mut there = [0; 6];
        io::Read::read_exact(&mut &ours, &mut there).unwrap();
        assert_eq!(&there, b"a call", "none was consumed");
    }
}
