//! What a test finds in the log.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;

use super::one_line::OneLine;

/// What is logged, as lines of text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// From now on, on this thread, as long as the guard lives.
    pub(crate) fn begin() -> (Log, DefaultGuard) {
        let log = Log::default();
        let lines = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .fmt_fields(OneLine::default())
            .with_writer(move || lines.clone());
        let here = tracing::subscriber::set_default(subscriber.finish());
        (log, here)
    }

    /// Since this was asked last.
    pub(crate) fn taken(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
