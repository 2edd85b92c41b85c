//! The gate of the kit's runs: it lets everything through to nowhere, and its answer is `hello`.
//!
//! What a plugin may hand over it takes as the gateway does: a TCP or a unix socket that listens, whether its calls block or
//! not. Connections are served at the same time: one that a client keeps open for later keeps nobody waiting.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{socket_acceptconn, socket_domain};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};

use super::lock;

/// Listeners of one run, as many as the gateway takes.
const LISTENERS_MAX: usize = 4;
/// Connections of one listener that are served at the same time; more wait in its queue.
const CONNECTIONS_MAX: usize = 32;
/// Until there are descriptors again.
const ACCEPT_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};
/// A request has no more.
const HEAD_BYTES_MAX: usize = 64 << 10;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";

/// When it is dropped, its listeners and connections end.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// First lines of what it was asked.
    asked: Arc<Mutex<Vec<String>>>,
    /// Each with the end of a pipe: who accepts sees that it is closed.
    listeners: Mutex<Vec<(PipeWriter, JoinHandle<()>)>>,
}

impl Gate {
    /// Serves on a listening socket, from now on.
    pub(crate) fn serve(&self, listener: OwnedFd) -> io::Result<()> {
        if !socket_acceptconn(&listener)? {
            return Err(io::Error::other("the socket does not listen"));
        }
        let family = socket_domain(&listener)?;
        let families = [
            AddressFamily::INET,
            AddressFamily::INET6,
            AddressFamily::UNIX,
        ];
        if !families.contains(&family) {
            let why = format!("it is no TCP and no unix socket, but one of family {family:?}");
            return Err(io::Error::other(why));
        }
        let mut listeners = lock(&self.listeners);
        if listeners.len() == LISTENERS_MAX {
            let why = format!("a run has no more than {LISTENERS_MAX} listeners");
            return Err(io::Error::other(why));
        }
        // Who was there when poll() looked may have left since.
        ioctl_fionbio(&listener, true)?;
        let (ended, end) = io::pipe()?;
        let serving = Serving {
            asked: Arc::clone(&self.asked),
            ended,
            places: Places::default(),
        };
        let thread = thread::Builder::new().name("kit-gate".into());
        let accepts = thread.spawn(move || serving.accept(&listener))?;
        listeners.push((end, accepts));
        Ok(())
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        lock(&self.asked).clone()
    }

    /// Has a listener been handed over?
    pub(crate) fn has_listener(&self) -> bool {
        !lock(&self.listeners).is_empty()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let listeners = self.listeners.get_mut();
        for (end, accepts) in listeners.unwrap_or_else(PoisonError::into_inner).drain(..) {
            drop(end);
            // One that has panicked has ended too.
            let _ = accepts.join();
        }
    }
}

/// What the threads of one listener share.
struct Serving {
    asked: Arc<Mutex<Vec<String>>>,
    ended: PipeReader,
    places: Places,
}

/// For connections of one listener.
#[derive(Default)]
struct Places {
    taken: Mutex<Taken>,
    changed: Condvar,
}

#[derive(Default)]
struct Taken {
    places: usize,
    /// The next connection is left in the queue until one of these ends.
    all: bool,
}

impl Places {
    /// Waits until there is one, which is taken then.
    fn take(&self) {
        let mut taken = lock(&self.taken);
        taken.all = taken.places == CONNECTIONS_MAX;
        self.changed.notify_all();
        let full = |taken: &mut Taken| taken.places == CONNECTIONS_MAX;
        let waited = self.changed.wait_while(taken, full);
        let mut taken = waited.unwrap_or_else(PoisonError::into_inner);
        (taken.places, taken.all) = (taken.places + 1, false);
    }

    fn give_back(&self) {
        lock(&self.taken).places -= 1;
        self.changed.notify_all();
    }
}

impl Serving {
    /// Accepts and serves; what it has begun ends with it.
    fn accept(&self, listener: &OwnedFd) {
        thread::scope(|connections| {
            while self.waits_for(Some(listener), None) {
                // At the end of all this every connection ends too.
                self.places.take();
                let stream = match accept_with(listener, SocketFlags::CLOEXEC) {
                    Ok(stream) => stream,
                    Err(error) => {
                        self.places.give_back();
                        // Who has left is not there, and the next one is waited for.
                        if ![Errno::AGAIN, Errno::CONNABORTED].contains(&error) {
                            self.waits_for(None, Some(&ACCEPT_AGAIN));
                        }
                        continue;
                    }
                };
                let serve = || {
                    // Who leaves early has asked nothing.
                    let _ = self.answer(stream);
                    self.places.give_back();
                };
                let thread = thread::Builder::new().spawn_scoped(connections, serve);
                if thread.is_err() {
                    self.places.give_back();
                }
            }
        });
    }

    /// Waits until there is something to take from a socket, no longer than `most`. `false`: it is over.
    fn waits_for(&self, socket: Option<&OwnedFd>, most: Option<&Timespec>) -> bool {
        let ended = PollFd::from_borrowed_fd(self.ended.as_fd(), PollFlags::IN);
        let socket = socket.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
        let mut fds: Vec<_> = [ended].into_iter().chain(socket).collect();
        loop {
            match poll(&mut fds, most) {
                Err(Errno::INTR) => {}
                Err(_) => return false,
                Ok(_) => return fds[0].revents().is_empty(),
            }
        }
    }

    fn answer(&self, stream: OwnedFd) -> io::Result<()> {
        let (mut head, mut piece) = (Vec::new(), [0; 4096]);
        while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
            if !self.waits_for(Some(&stream), None) {
                return Ok(());
            }
            let (_, n) = recv(&stream, &mut piece, RecvFlags::empty())?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            head.extend_from_slice(&piece[..n]);
        }
        let head = String::from_utf8_lossy(&head);
        lock(&self.asked).push(head.lines().next().unwrap_or_default().to_owned());
        // A run is not to end this process with a signal. So few bytes have room in every socket.
        send(&stream, ANSWER, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::Duration;

    use super::*;

    /// Only there to fail.
    const LONG: Option<Duration> = Some(Duration::from_secs(10));

    fn ask(mut stream: impl Read + Write) -> String {
        stream.write_all(b"GET http://x/ HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Somebody asks although another one is there and says nothing, who is let go at the end.
    fn serves<S: Read + Write>(gate: Gate, connect: impl Fn() -> S) {
        let mut silent = connect();
        for _ in 0..2 {
            assert!(ask(connect()).ends_with("\r\n\r\nhello"));
        }
        assert_eq!(gate.asked(), ["GET http://x/ HTTP/1.1"; 2]);
        assert!(gate.has_listener());
        drop(gate);
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn it_serves_what_listens_as_the_gateway_does() {
        let dir = tempfile::tempdir().unwrap();
        for nonblocking in [false, true] {
            let gate = Gate::default();
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            tcp.set_nonblocking(nonblocking).unwrap();
            let address = tcp.local_addr().unwrap();
            gate.serve(tcp.into()).unwrap();
            serves(gate, || {
                let stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(LONG).unwrap();
                stream
            });

            let gate = Gate::default();
            let path = dir.path().join(format!("gate-{nonblocking}"));
            let unix = UnixListener::bind(&path).unwrap();
            unix.set_nonblocking(nonblocking).unwrap();
            gate.serve(unix.into()).unwrap();
            serves(gate, || {
                let stream = UnixStream::connect(&path).unwrap();
                stream.set_read_timeout(LONG).unwrap();
                stream
            });
        }
    }

    #[test]
    fn more_connections_than_it_serves_at_once_wait_for_their_turn() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        tcp.set_nonblocking(true).unwrap();
        let (ended, end) = io::pipe().unwrap();
        let serving = Serving {
            asked: Arc::default(),
            ended,
            places: Places::default(),
        };
        let connect = || TcpStream::connect(address).unwrap();
        thread::scope(|threads| {
            threads.spawn(|| serving.accept(&tcp.into()));
            let silent: Vec<_> = (0..CONNECTIONS_MAX).map(|_| connect()).collect();
            let waits = connect();
            waits.set_read_timeout(LONG).unwrap();
            let asks = threads.spawn(move || ask(waits));
            let places = &serving.places;
            let room = |taken: &mut Taken| !taken.all;
            let waited = (places.changed)
                .wait_timeout_while(lock(&places.taken), LONG.unwrap(), room)
                .unwrap();
            assert!(!waited.1.timed_out(), "it has a place for one more");
            drop(waited);
            assert_eq!(*lock(&serving.asked), Vec::<String>::new());
            drop(silent);
            assert!(asks.join().unwrap().ends_with("hello"));
            drop(end);
        });
    }

    #[test]
    fn what_does_not_listen_and_more_than_a_few_are_refused() {
        let gate = Gate::default();
        let (connected, _other) = UnixStream::pair().unwrap();
        let error = gate.serve(connected.into()).unwrap_err();
        assert_eq!(error.to_string(), "the socket does not listen");
        assert!(gate.serve(tempfile::tempfile().unwrap().into()).is_err());
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap().into();
        for _ in 0..LISTENERS_MAX {
            gate.serve(listener()).unwrap();
        }
        let error = gate.serve(listener()).unwrap_err();
        assert!(error.to_string().contains("no more than 4"), "{error}");
    }
}
