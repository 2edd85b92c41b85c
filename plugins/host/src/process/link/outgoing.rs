//! What waits for a plugin's process to read it.

use std::collections::VecDeque;

use crate::process::frame::Packet;

/// Memory of what waits for a process to read it. More: a call is refused.
const WAITING_BYTES_MAX: usize = 1 << 30;
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
