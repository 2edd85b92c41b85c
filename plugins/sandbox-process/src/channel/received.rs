//! What a run has sent, and the frames in it.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use super::FRAME_BYTES_MAX;
use crate::sys;

/// What one read takes at most.
pub(super) const READ_BYTES: usize = 64 << 10;
/// A frame's length, which does not count itself.
pub(super) const LENGTH_BYTES: usize = 4;
/// So much room is kept for what comes next. What a long frame had needed beside it is given back.
const ROOM_BYTES_MAX: usize = 4 * READ_BYTES;

/// Bytes in the order in which they came; those of frames that have been given out come first.
#[derive(Debug, Default)]
pub(super) struct Received {
    bytes: Vec<u8>,
    given: usize,
}

impl Received {
    /// Reads once.
    pub(super) fn read(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        sys::read_more(socket, &mut self.bytes, READ_BYTES)
    }

    /// Whether there is a whole frame, or the begin of one that breaks a rule.
    pub(super) fn has_frame(&self) -> bool {
        !matches!(self.find(), Ok(None))
    }

    /// The type and the payload of the next whole frame, where they lie.
    pub(super) fn next_frame(&mut self) -> Result<Option<(u8, &[u8])>, String> {
        let Some(frame) = self.find()? else {
            return Ok(None);
        };
        self.given = frame.end;
        Ok(self.bytes[frame]
            .split_first()
            .map(|(kind, rest)| (*kind, rest)))
    }

    fn find(&self) -> Result<Option<Range<usize>>, String> {
        let rest = &self.bytes[self.given..];
        let Some(length) = rest.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if !(1..=FRAME_BYTES_MAX).contains(&length) {
            return Err(format!("a frame of {length} bytes on the run's channel"));
        }
        let begin = self.given + LENGTH_BYTES;
        let is_whole = rest.len() - LENGTH_BYTES >= length;
        Ok(is_whole.then(|| begin..begin + length))
    }

    /// What it takes of memory.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// For the next read, when no whole frame is left: to move the rest for each frame would cost its square.
    pub(super) fn make_room(&mut self) {
        if self.given > 0 {
            self.bytes.drain(..self.given);
            self.bytes.shrink_to(ROOM_BYTES_MAX);
            self.given = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn received(sent: &[u8]) -> Received {
        let (ours, theirs) = sys::socketpair(libc::SOCK_STREAM).unwrap();
        assert_eq!(sys::send(theirs.as_fd(), sent).unwrap(), sent.len());
        let mut received = Received::default();
        assert_eq!(received.read(ours.as_fd()).unwrap(), sent.len());
        received
    }

    #[test]
    fn frames_are_given_out_where_they_lie() {
        let frames = b"\x01\0\0\0a\x03\0\0\0bcd\x01\0\0\0e\x02\0\0\0f";
        let mut received = received(frames);
        let begin = received.bytes.as_ptr();
        for (kind, payload, at) in [(b'a', &b""[..], 5), (b'b', b"cd", 10), (b'e', b"", 17)] {
            assert!(received.has_frame());
            let frame = received.next_frame().unwrap().unwrap();
            assert_eq!(frame, (kind, payload));
            assert_eq!(
                frame.1.as_ptr(),
                begin.wrapping_add(at),
                "nothing was moved"
            );
        }
        // The last is not whole.
        assert!(!received.has_frame());
        assert_eq!(received.next_frame().unwrap(), None);
        received.make_room();
        assert_eq!(received.bytes, b"\x02\0\0\0f");
        assert_eq!(received.next_frame().unwrap(), None);
        received.bytes.push(b'g');
        assert_eq!(received.next_frame().unwrap(), Some((b'f', &b"g"[..])));
    }

    #[test]
    fn the_room_of_a_long_frame_is_given_back() {
        let mut received = received(b"\x01\0\0\0a");
        assert!(
            received.bytes.capacity() <= ROOM_BYTES_MAX,
            "as it mostly is"
        );
        received.bytes.reserve(FRAME_BYTES_MAX);
        received.next_frame().unwrap();
        received.make_room();
        assert!(received.bytes.is_empty() && received.bytes.capacity() <= ROOM_BYTES_MAX);
    }

    #[test]
    fn a_length_that_breaks_a_rule_is_found_behind_whole_frames() {
        let mut received = received(b"\x01\0\0\0a\0\0\0\0");
        assert!(received.next_frame().is_ok());
        assert!(received.has_frame(), "there is something to look at");
        assert!(received.next_frame().is_err());
    }
}
