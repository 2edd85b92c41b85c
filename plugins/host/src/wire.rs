//! Calls and answers as bytes, for a plugin in a process of its own.
//!
//! Both ends are the same release of the same program, so nothing here is a promise. What comes from the plugin's process
//! is not trusted all the same: every length is bounded, every text checked, as for a plugin's C structs in `answer`.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use skillgate_plugin_sdk::wire::Malformed;

/// What was read, or what is wrong with it.
pub(crate) type Read<T> = Result<T, Malformed>;

/// Something that can be written and read again.
pub(crate) trait Wire: Sized {
    /// Appends it.
    fn put(&self, out: &mut Out);
    /// Reads it.
    fn take(from: &mut In<'_>) -> Read<Self>;
}

/// What is being written. Descriptors travel beside the bytes, in their order.
#[derive(Debug, Default)]
pub(crate) struct Out {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// Why it cannot be sent: a descriptor could not be duplicated.
    pub(crate) broken: Option<std::io::Error>,
}

impl Out {
    pub(crate) fn u8(&mut self, n: u8) {
        self.bytes.push(n);
    }
    pub(crate) fn u32(&mut self, n: u32) {
        self.bytes.extend_from_slice(&n.to_le_bytes());
    }
    pub(crate) fn u64(&mut self, n: u64) {
        self.bytes.extend_from_slice(&n.to_le_bytes());
    }
    /// A length and so many bytes.
    pub(crate) fn data(&mut self, data: &[u8]) {
        self.u64(data.len() as u64);
        self.bytes.extend_from_slice(data);
    }
    pub(crate) fn text(&mut self, text: &str) {
        self.data(text.as_bytes());
    }
    /// A duplicate: the original stays with its owner.
    pub(crate) fn fd(&mut self, fd: &OwnedFd) {
        match fd.try_clone() {
            Ok(fd) => self.fds.push(fd),
            Err(error) => self.broken = Some(error),
        }
    }
}

/// What is being read.
#[derive(Debug)]
pub(crate) struct In<'a> {
    bytes: &'a [u8],
    fds: &'a mut VecDeque<OwnedFd>,
}

fn bad<T>(what: &str, why: impl std::fmt::Display) -> Read<T> {
    Err(Malformed(format!("{what}: {why}")))
}

impl<'a> In<'a> {
    pub(crate) fn new(bytes: &'a [u8], fds: &'a mut VecDeque<OwnedFd>) -> Self {
        In { bytes, fds }
    }

    fn cut(&mut self, n: usize, what: &str) -> Read<&'a [u8]> {
        match self.bytes.split_at_checked(n) {
            Some((head, rest)) => {
                self.bytes = rest;
                Ok(head)
            }
            None => bad(what, "the frame ends before it"),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.cut(N, what)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, what: &str) -> Read<u8> {
        Ok(self.array::<1>(what)?[0])
    }
    pub(crate) fn u32(&mut self, what: &str) -> Read<u32> {
        self.array(what).map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self, what: &str) -> Read<u64> {
        self.array(what).map(u64::from_le_bytes)
    }
    pub(crate) fn i32(&mut self, what: &str) -> Read<i32> {
        self.array(what).map(i32::from_le_bytes)
    }
    pub(crate) fn flag(&mut self, what: &str) -> Read<bool> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            n => bad(what, format_args!("{n} is no flag")),
        }
    }

    /// Bytes of the frame itself.
    pub(crate) fn data(&mut self, what: &str, max: usize) -> Read<&'a [u8]> {
        let len = self.u64(what)?;
        match usize::try_from(len) {
            Ok(len) if len <= max => self.cut(len, what),
            _ => bad(
                what,
                format_args!("{len} bytes, more than the {max} that are allowed"),
            ),
        }
    }

    pub(crate) fn text(&mut self, what: &str, max: usize) -> Read<String> {
        let bytes = self.data(what, max)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => bad(
                what,
                format_args!("not UTF-8 at byte {}", error.valid_up_to()),
            ),
        }
    }

    /// How many elements follow.
    pub(crate) fn count(&mut self, what: &str, max: u32) -> Read<u32> {
        let count = self.u32(what)?;
        if count > max {
            return bad(
                what,
                format_args!("{count} elements, more than the {max} that are allowed"),
            );
        }
        Ok(count)
    }

    /// The next descriptor that came with the frame.
    pub(crate) fn fd(&mut self, what: &str) -> Read<OwnedFd> {
        match self.fds.pop_front() {
            Some(fd) => Ok(fd),
            None => bad(what, "no descriptor came with it"),
        }
    }

    /// Everything must have been read.
    pub(crate) fn end(&self) -> Read<()> {
        if self.bytes.is_empty() && self.fds.is_empty() {
            return Ok(());
        }
        bad(
            "frame",
            format_args!(
                "{} bytes and {} descriptors too many",
                self.bytes.len(),
                self.fds.len()
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_too_long_or_no_text_is_refused() {
        let mut out = Out::default();
        out.text("name");
        let mut none = VecDeque::new();
        let whole = out.bytes.clone();
        assert_eq!(In::new(&whole, &mut none).text("x", 4).unwrap(), "name");
        for len in 0..whole.len() {
            assert!(In::new(&whole[..len], &mut none).text("x", 4).is_err());
        }
        let error = In::new(&whole, &mut none).text("x", 3).unwrap_err();
        assert_eq!(error.0, "x: 4 bytes, more than the 3 that are allowed");
        let endless = [0xff; 12];
        assert!(In::new(&endless, &mut none).data("x", usize::MAX).is_err());
        let mut garbled = whole.clone();
        garbled[9] = 0xff;
        let error = In::new(&garbled, &mut none).text("x", 4).unwrap_err();
        assert_eq!(error.0, "x: not UTF-8 at byte 1");
        let error = In::new(&[2], &mut none).flag("x").unwrap_err();
        assert_eq!(error.0, "x: 2 is no flag");
        let error = In::new(&[9, 0, 0, 0], &mut none).count("x", 8).unwrap_err();
        assert_eq!(error.0, "x: 9 elements, more than the 8 that are allowed");
        let most = In::new(&[8, 0, 0, 0], &mut none).count("x", 8).unwrap();
        assert_eq!(most, 8);
        assert!(In::new(&[], &mut none).fd("x").is_err());
        assert!(In::new(&[0], &mut none).end().is_err());
    }
}
