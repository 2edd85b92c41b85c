//! What waits for a plugin's process to read it.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::Error;

use super::Link;
use crate::process::frame::Packet;
use crate::process::{services, socket};

/// Memory of what waits for a process to read it. More: a call is refused.
pub(super) const WAITING_BYTES_MAX: usize = 1 << 30;
/// Of it, what answers the process's own frames, which cost it little. More: it sends and does not read.
const REPLIES_BYTES_MAX: usize = 16 << 20;
/// Most that one reply counts for there. A secret or a piece of a blob is larger, but whoever asked for it waits for it:
/// there are as many of them as a process that reads has threads.
const REPLY_COUNTS_MAX: usize = 4 << 10;

#[derive(Default)]
pub(super) struct Outgoing {
    pub(super) packets: VecDeque<Packet>,
    /// Bytes of the first packet that have left.
    pub(super) sent: usize,
    /// Memory that the packets hold.
    bytes: usize,
    /// What of it counts as replies.
    replies: usize,
    /// The socket is full: who waits for it goes on.
    pub(super) full: bool,
    /// The system did not take their descriptors, and whoever waits for them is to be told.
    refused: Vec<Packet>,
}

/// What a packet counts for among the replies.
fn as_reply(packet: &Packet) -> usize {
    if packet.reply {
        packet.holds().min(REPLY_COUNTS_MAX)
    } else {
        0
    }
}

impl Outgoing {
    /// Adds a packet. `false`: too much is waiting.
    pub(super) fn push(&mut self, packet: Packet) -> bool {
        let bytes = self.bytes + packet.holds();
        let replies = self.replies + as_reply(&packet);
        if bytes > WAITING_BYTES_MAX || replies > REPLIES_BYTES_MAX {
            return false;
        }
        (self.bytes, self.replies) = (bytes, replies);
        self.packets.push_back(packet);
        true
    }

    /// The first packet is not sent, nothing of which has left.
    fn refuse_first(&mut self) {
        if let Some(first) = self.packets.pop_front() {
            self.bytes -= first.holds();
            self.replies -= as_reply(&first);
            self.refused.push(first);
        }
    }

    /// So many bytes have left.
    pub(super) fn left(&mut self, n: usize) {
        self.sent += n;
        while let Some(first) = self.packets.front_mut() {
            // Those of the first byte are with the kernel now.
            first.fds.clear();
            if self.sent < first.bytes.len() {
                break;
            }
            self.sent -= first.bytes.len();
            self.bytes -= first.holds();
            self.replies -= as_reply(first);
            self.packets.pop_front();
            if self.sent == 0 {
                break;
            }
        }
    }
}

impl Link {
    /// Sends a packet, or lets it wait for its turn. `false`: too much is waiting.
    pub(in crate::process) fn send(&self, packet: Packet) -> bool {
        let mut outgoing = self.outgoing();
        if !outgoing.push(packet) {
            return false;
        }
        let mut sent = Ok(());
        if !outgoing.full {
            sent = self.flush(&mut outgoing);
            if outgoing.full {
                self.more.notify_one();
            }
        }
        let refused = std::mem::take(&mut outgoing.refused);
        drop(outgoing);
        self.refuse(refused);
        if let Err(error) = sent
            && !is_end(&error)
        {
            // Nobody else would try again.
            self.kill(format!("what is sent to it is not taken: {error}"));
        }
        true
    }

    /// Sends what answers a frame of the process's own. One that goes on sending and does not read its answers is ended:
    /// they would fill the gateway's memory, and whoever waits for one that is not sent would wait for ever.
    pub(in crate::process) fn reply(&self, mut packet: Packet) {
        packet.reply = true;
        if !self.send(packet) {
            self.kill("it sends and does not read: too many replies wait for it".to_owned());
        }
    }

    /// Goes on with what waits, as there is room again.
    pub(super) fn send_more(&self) -> io::Result<Full> {
        let mut outgoing = self.outgoing();
        let sent = self.flush(&mut outgoing);
        let (full, refused) = (outgoing.full, std::mem::take(&mut outgoing.refused));
        drop(outgoing);
        self.refuse(refused);
        sent.map(|()| Full(full))
    }

    /// Sends as much as the socket takes, without waiting.
    fn flush(&self, outgoing: &mut Outgoing) -> io::Result<()> {
        outgoing.full = false;
        while let Some(first) = outgoing.packets.front() {
            let mut parts: Vec<&[u8]> = vec![&first.bytes[outgoing.sent..]];
            let rest = outgoing.packets.iter().skip(1);
            // Descriptors travel with the first byte of what is sent at once.
            let rest = rest.take_while(|packet| packet.fds.is_empty());
            parts.extend(rest.take(socket::PARTS_MAX - 1).map(|p| p.bytes.as_slice()));
            let fds = if outgoing.sent == 0 {
                &first.fds[..]
            } else {
                &[]
            };
            match socket::send(self.socket.get_ref(), &parts, fds, libc::MSG_DONTWAIT) {
                Ok(n) => outgoing.left(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    outgoing.full = true;
                    return Ok(());
                }
                // No room in the socket would come of it, and nobody would be told when there are fewer of them.
                Err(error) if !fds.is_empty() && socket::are_too_many(&error) => {
                    outgoing.refuse_first();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells whoever waits for packets that were not sent: the plugin's process for a reply, a call's caller for that.
    fn refuse(&self, packets: Vec<Packet>) {
        for packet in packets {
            let error = Error::new(abi::E_EXHAUSTED, socket::TOO_MANY).retryable(100);
            if packet.reply {
                self.reply(services::failed(packet.call(), &error));
                continue;
            }
            let Some(pending) = self.calls().pending.remove(&packet.begins) else {
                continue;
            };
            if let Some(ends) = pending.ends {
                ends.store(true, Ordering::Release);
            }
            // An error cannot be malformed.
            let _ = (pending.done)(Err(error.not_executed()));
        }
    }
}

/// Whether the socket is.
pub(super) struct Full(pub(super) bool);

/// The process has ended, which whoever reads hears of.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::frame::Kind;

    fn taken() -> Packet {
        let mut packet = Packet::new(Kind::Taken, 1, |out| out.u32(7)).unwrap();
        packet.reply = true;
        packet
    }

    #[test]
    fn what_waits_counts_with_all_the_memory_that_it_holds() {
        const PACKETS: usize = 100;
        let mut outgoing = Outgoing::default();
        let file = tempfile::tempfile().unwrap().into();
        let with_file = Packet::new(Kind::Call, 1, |out| out.fd(&file)).unwrap();
        assert!(with_file.holds() > size_of::<Packet>() + with_file.bytes.len());
        assert!(outgoing.push(with_file));
        let len = taken().bytes.len();
        for _ in 0..PACKETS {
            assert!(outgoing.push(taken()));
        }
        assert!(outgoing.bytes >= PACKETS * (size_of::<Packet>() + len));
        assert!(outgoing.replies >= PACKETS * (size_of::<Packet>() + len));
        while let Some(first) = outgoing.packets.front() {
            // In two parts, and then with some of the next.
            let n = first.bytes.len() / 2 + 1;
            outgoing.left(n.min(first.bytes.len() - outgoing.sent));
        }
        let nothing_left = (outgoing.bytes, outgoing.replies, outgoing.sent);
        assert_eq!(nothing_left, (0, 0, 0));
    }

    #[test]
    fn replies_have_less_room_than_calls_and_take_none_from_them() {
        let mut outgoing = Outgoing::default();
        let most = REPLIES_BYTES_MAX / size_of::<Packet>();
        let room = (0..most).find(|_| !outgoing.push(taken()));
        assert!(room.is_some_and(|room| room > 100_000), "{room:?}");
        assert!(outgoing.bytes <= REPLIES_BYTES_MAX);
        let call = Packet::new(Kind::Call, 1, |out| out.data(&[0; 1 << 20])).unwrap();
        assert!(outgoing.push(call));
        assert!(!outgoing.push(taken()));
    }

    #[test]
    fn what_was_written_in_pieces_gives_back_the_room_that_it_does_not_use() {
        let packet = Packet::new(Kind::Call, 1, |out| {
            for _ in 0..3 {
                out.data(&vec![0; 1 << 20]);
                out.u8(1);
            }
        });
        let packet = packet.unwrap();
        let more = packet.holds() - packet.bytes.len();
        assert!(more < 8 << 10, "{more} bytes more than are sent");
    }
}
