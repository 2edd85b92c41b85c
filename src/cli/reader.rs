//! Whoever reads what a command prints, and may leave before its end: `skillgate skill list | head`.

use std::io::{self, Write};

/// Takes everything from the command. What it finds does not depend on how much of it is read: when the reader has left, the
/// command goes on to its end and its own exit code counts.
pub(super) struct Reader<'a> {
    out: &'a mut dyn Write,
    has_left: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn of(out: &'a mut dyn Write) -> Self {
        let has_left = false;
        Reader { out, has_left }
    }

    /// What is done for a reader who has left: `instead`, and nothing any more.
    fn unless_left<T>(
        &mut self,
        act: impl FnOnce(&mut dyn Write) -> io::Result<T>,
        instead: T,
    ) -> io::Result<T> {
        if self.has_left {
            return Ok(instead);
        }
        match act(self.out) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.has_left = true;
                Ok(instead)
            }
            done => done,
        }
    }
}

impl Write for Reader<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_left(|out| out.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_left(|out| out.flush(), ())
    }
}
