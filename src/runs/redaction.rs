//! What a run prints, without its secrets, on its way into the log's preview: replaced before anything is cut.

use std::sync::Arc;

use super::logs::Logs;
use crate::secrets::{Redactor, Stream};

/// Standard output, standard error, and whatever else a sandbox tells apart: a value that is printed to one of them is
/// whole there, whatever is printed to another meanwhile.
const STREAMS: usize = 3;

/// The streams of one run.
#[derive(Debug)]
pub(super) struct Streams {
    logs: Logs,
    /// None: the run has no secrets.
    streams: Option<[Stream; STREAMS]>,
}

impl Streams {
    pub(super) fn new(redactor: Option<&Arc<Redactor>>) -> Self {
        Streams {
            logs: Logs::default(),
            streams: redactor.map(|redactor| [(); STREAMS].map(|()| Stream::new(redactor.clone()))),
        }
    }

    pub(super) fn push(&mut self, stream: u32, data: &[u8]) {
        match &mut self.streams {
            None => self.logs.push(data),
            Some(streams) => {
                let stream = (stream as usize).min(STREAMS - 1);
                streams[stream].push(data, &mut |piece| self.logs.push(piece));
            }
        }
    }

    /// The preview; what was held back is passed on first, since nothing follows.
    pub(super) fn preview(&mut self) -> (String, bool) {
        for stream in self.streams.iter_mut().flatten() {
            stream.finish(&mut |piece| self.logs.push(piece));
        }
        self.logs.preview()
    }
}
