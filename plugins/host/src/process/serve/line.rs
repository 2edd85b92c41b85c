//! What the threads of a plugin's process share: the socket, the calls that are under way, and what runs wait for.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{Error, Result};

use super::super::frame::{Frame, Kind, Packet};
use super::super::services::WINDOW_BYTES;
use super::super::socket;
use super::harden;
use crate::logs::Record;

/// No code of a plugin runs under these locks, and what a panic leaves is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Line {
    socket: UnixStream,
    /// Where the gateway looks for runs that have begun.
    begins: File,
    /// Held while a packet is sent, whole.
    sending: Mutex<()>,
    ops: Mutex<HashMap<u64, abi::Op>>,
    /// Of runs that have put out something.
    windows: Mutex<HashMap<u64, Arc<Window>>>,
    replies: Mutex<HashMap<u64, SyncSender<Frame>>>,
    last_service: AtomicU64,
}

impl Line {
    pub(super) fn new(socket: UnixStream, begins: File) -> Self {
        Line {
            socket,
            begins,
            sending: Mutex::default(),
            ops: Mutex::default(),
            windows: Mutex::default(),
            replies: Mutex::default(),
            last_service: AtomicU64::new(0),
        }
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends a packet, waiting for room. Without the gateway there is nothing to go on for.
    pub(super) fn send(&self, packet: &Packet) {
        if self.try_send(packet).is_err() {
            // Nobody would be told: what has descriptors is sent by who tells.
            harden::end(1);
        }
    }

    /// The same for one with descriptors. An error: of these there are too many now, and nothing was sent.
    pub(super) fn try_send(&self, packet: &Packet) -> Result<()> {
        let send = || -> io::Result<()> {
            let _sending = lock(&self.sending);
            let mut sent = socket::send(&self.socket, &[&packet.bytes], &packet.fds, 0)?;
            while sent < packet.bytes.len() {
                sent += socket::send(&self.socket, &[&packet.bytes[sent..]], &[], 0)?;
            }
            Ok(())
        };
        match send() {
            Ok(()) => Ok(()),
            Err(error) if socket::are_too_many(&error) => {
                Err(Error::new(abi::E_EXHAUSTED, socket::TOO_MANY).retryable(100))
            }
            Err(_) => harden::end(0),
        }
    }

    pub(super) fn log(&self, record: &Record<'_>) {
        let packet = Packet::new(Kind::Log, 0, |out| {
            out.u32(record.level);
            out.text(record.target);
            out.text(record.run_id);
            out.text(record.fields);
            out.text(record.message);
        });
        if let Ok(packet) = packet {
            self.send(&packet);
        }
    }

    // === calls ===

    pub(super) fn begun(&self, call: u64, op: abi::Op) {
        lock(&self.ops).insert(call, op);
    }

    pub(super) fn op_of(&self, call: u64) -> Option<abi::Op> {
        lock(&self.ops).get(&call).copied()
    }

    /// The plugin is about to begin with a run.
    pub(super) fn started(&self, call: u64) {
        // A pipe takes so few bytes whole or not at all (pipe(7)).
        if (&self.begins).write(&call.to_le_bytes()).is_ok() {
            return;
        }
        if let Ok(packet) = Packet::new(Kind::Started, call, |_| {}) {
            self.send(&packet);
        }
    }

    pub(super) fn ended(&self, call: u64) {
        lock(&self.ops).remove(&call);
        let window = lock(&self.windows).remove(&call);
        if let Some(window) = window {
            window.close();
        }
    }

    // === output ===

    /// The window of a run. Of one that has ended, beside a thread that is still at it, it is closed: the gateway does
    /// not say any more what it has taken.
    pub(super) fn window(&self, call: u64) -> Arc<Window> {
        // Held until there is a window: the end of a call takes it from here first.
        let ops = lock(&self.ops);
        if !ops.contains_key(&call) {
            let closed = Window::default();
            closed.close();
            return Arc::new(closed);
        }
        Arc::clone(lock(&self.windows).entry(call).or_default())
    }

    pub(super) fn taken(&self, call: u64, bytes: usize, more: bool) {
        // Of a run that has ended nobody waits for it.
        let window = lock(&self.windows).get(&call).cloned();
        if let Some(window) = window {
            window.taken(bytes, more);
        }
    }

    // === services ===

    /// A number for a service, and where its reply will come.
    pub(super) fn expect(&self) -> (u64, Receiver<Frame>) {
        let number = self.last_service.fetch_add(1, Ordering::Relaxed) + 1;
        let (send, receive) = sync_channel(1);
        lock(&self.replies).insert(number, send);
        (number, receive)
    }

    /// There will be none.
    pub(super) fn forget(&self, number: u64) {
        lock(&self.replies).remove(&number);
    }

    pub(super) fn reply(&self, frame: Frame) {
        let waiting = lock(&self.replies).remove(&frame.call);
        if let Some(waiting) = waiting {
            // There is room for the one reply, and whoever waits does so until it comes.
            drop(waiting.try_send(frame));
        }
    }
}

/// How much of a run's output is under way.
#[derive(Debug, Default)]
pub(super) struct Window {
    state: Mutex<WindowState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WindowState {
    under_way: usize,
    /// The gateway wants no more, or the run has ended.
    enough: bool,
    over: bool,
}

impl WindowState {
    fn enter(&mut self, bytes: usize) -> bool {
        if self.over || self.enough {
            return false;
        }
        self.under_way += bytes;
        true
    }
}

impl Window {
    /// Waits until so much more may be sent. `false`: send nothing.
    pub(super) fn enter(&self, bytes: usize) -> bool {
        let full = |state: &mut WindowState| {
            !state.over && state.under_way > 0 && state.under_way + bytes > WINDOW_BYTES
        };
        let state = self.changed.wait_while(lock(&self.state), full);
        state.unwrap_or_else(PoisonError::into_inner).enter(bytes)
    }

    /// The same for somebody who must not wait: over the window.
    pub(super) fn enter_at_once(&self, bytes: usize) -> bool {
        lock(&self.state).enter(bytes)
    }

    /// Does the gateway want more, as far as is known?
    pub(super) fn more(&self) -> bool {
        !lock(&self.state).enough
    }

    fn taken(&self, bytes: usize, more: bool) {
        let mut state = lock(&self.state);
        state.under_way = state.under_way.saturating_sub(bytes);
        state.enough |= !more;
        drop(state);
        self.changed.notify_all();
    }

    fn close(&self) {
        let mut state = lock(&self.state);
        state.over = true;
        state.enough = true;
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::frame::{FROM_PLUGIN_BYTES_MAX, Incoming};
    use crate::process::services;

    #[test]
    fn a_begin_that_finds_no_room_in_the_pipe_is_said_in_a_frame() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (begun, begins) = io::pipe().unwrap();
        let mut begins = File::from(std::os::fd::OwnedFd::from(begins));
        socket::set_nonblocking(std::os::fd::AsFd::as_fd(&begins)).unwrap();
        let line = Line::new(ours, begins.try_clone().unwrap());
        line.started(1);
        let mut number = [0; 8];
        io::Read::read_exact(&mut &begun, &mut number).unwrap();
        assert_eq!(u64::from_le_bytes(number), 1);
        while begins.write(&number).is_ok() {}
        line.started(2);
        let mut incoming = Incoming::new(1 << 10);
        incoming.receive(&theirs, 0).unwrap();
        let frame = incoming.frame().unwrap().unwrap();
        assert_eq!((frame.kind, frame.call), (Kind::Started, 2));
    }

    /// The texts of a record that are cut are not all text, and so longer once they are.
    #[test]
    fn the_largest_record_of_the_log_is_one_that_the_gateway_takes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let line = Line::new(ours, tempfile::tempfile().unwrap());
        crate::logs::send_elsewhere(abi::LOG_INFO, move |record| {
            // Not what the gateway writes of it, here in the same process.
            if record.plugin == "plugin" {
                line.log(record);
            }
        });
        let bytes = vec![0xff_u8; 128 << 10];
        let long = abi::Str {
            ptr: bytes.as_ptr(),
            len: bytes.len() as u64,
        };
        let fields = [abi::Kv {
            key: long,
            value: long,
        }; 64];
        let mut record: abi::LogRecord = skillgate_plugin_sdk::wire::zeroed();
        record.struct_size = skillgate_plugin_sdk::wire::size_of_u32::<abi::LogRecord>();
        record.level = abi::LOG_WARN;
        (record.target, record.message) = (long, long);
        record.fields = abi::List {
            ptr: fields.as_ptr().cast(),
            len: 64,
            stride: u32::try_from(size_of::<abi::Kv>()).unwrap(),
        };
        let gateway = std::thread::spawn(move || {
            let mut incoming = Incoming::new(FROM_PLUGIN_BYTES_MAX);
            let mut frame = loop {
                match incoming.frame().unwrap() {
                    Some(frame) => break frame,
                    None => assert_ne!(incoming.receive(&theirs, 0).unwrap(), 0),
                }
            };
            let pace = crate::logs::Pace::default();
            services::log("taken", "instance", &pace, &mut frame, |_| false)
        });
        let (_, host) = crate::hosttable::make("plugin", "instance");
        // SAFETY: the host's own context, and a record whose texts are here.
        unsafe { host.log.unwrap()(host.ctx, &raw const record) };
        gateway.join().unwrap().unwrap();
    }

    #[test]
    fn output_after_the_end_of_its_run_waits_for_nothing() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let line = Line::new(ours, tempfile::tempfile().unwrap());
        line.begun(1, 7);
        let before = line.window(1);
        assert!(before.enter(1));
        line.ended(1);
        // A thread that has found the run just before its end.
        let after = line.window(1);
        assert!(!before.enter(1) && !after.enter(1));
        assert!(!after.more() && lock(&line.windows).is_empty());
    }

    #[test]
    fn output_waits_for_room_and_not_for_ever() {
        let window = Arc::new(Window::default());
        assert!(window.enter(WINDOW_BYTES));
        let (entered, waits) = sync_channel(0);
        let other = Arc::clone(&window);
        let thread = std::thread::spawn(move || {
            entered.send(other.enter(1)).unwrap();
            entered.send(other.enter(WINDOW_BYTES)).unwrap();
        });
        assert!(waits.try_recv().is_err());
        window.taken(WINDOW_BYTES, true);
        assert!(waits.recv().unwrap(), "there was room again");
        window.close();
        assert!(!waits.recv().unwrap(), "the run has ended");
        thread.join().unwrap();
    }

    #[test]
    fn who_must_not_wait_goes_over_the_window_until_it_is_enough() {
        let window = Window::default();
        assert!(window.enter(WINDOW_BYTES));
        assert!(window.enter_at_once(1));
        window.taken(WINDOW_BYTES + 1, false);
        assert!(!window.enter_at_once(1));
    }

    #[test]
    fn a_piece_larger_than_the_window_goes_alone() {
        let window = Window::default();
        assert!(window.enter(WINDOW_BYTES * 2));
        window.taken(WINDOW_BYTES * 2, false);
        assert!(!window.more() && !window.enter(1));
    }
}
