//! What a run prints, without its secrets, on its way into the log's preview: replaced before anything is cut.

use std::sync::Arc;

use super::logs::Logs;
use crate::secrets::{Redactor, Stream};

/// Standard output, standard error and the run's log, as far as a sandbox tells them apart: a value that is printed to one of them is
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
                // Numbered from 1 (SKG_STDOUT).
                let stream = (stream as usize).saturating_sub(1).min(STREAMS - 1);
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

#[cfg(test)]
mod tests {
    use skillgate_plugin_sdk::abi;

    use super::*;

    #[test]
    fn a_value_is_found_on_its_stream_whatever_another_has_meanwhile() {
        let redactor = Arc::new(Redactor::new([("KEY", "hunter2-first-half")]).unwrap());
        let all = [abi::STDOUT, abi::STDERR, abi::RUNLOG];
        for (on, other) in all.iter().flat_map(|on| all.map(|other| (*on, other))) {
            let mut streams = Streams::new(Some(&redactor));
            streams.push(on, b"hunter2-fi");
            if other != on {
                streams.push(other, b"[info] meanwhile\n");
            }
            streams.push(on, b"rst-half\n");
            let (preview, _) = streams.preview();
            assert!(preview.contains("[secret KEY]"), "{on} {other}: {preview}");
            let is_there = preview.contains("hunter2") || preview.contains("rst-half");
            assert!(!is_there, "{on} {other}: {preview}");
        }
    }
}
