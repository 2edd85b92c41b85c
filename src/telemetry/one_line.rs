//! A record is one line, whatever is in it, and holds nothing that a terminal obeys.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::io;

use skillgate_plugin_host::{on_one_line, visible_json};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};

/// The fields of a record as they are written anyway, and on its line: what a plugin has said of a failure, or an engine of a
/// policy, may have lines of its own, of which one could look like the gateway's.
#[derive(Debug, Default)]
pub(super) struct OneLine(DefaultFields);

impl<'writer> FormatFields<'writer> for OneLine {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut visible = Visible(&mut writer);
        self.0.format_fields(Writer::new(&mut visible), fields)
    }
}

struct Visible<'a, 'writer>(&'a mut Writer<'writer>);

impl Write for Visible<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&on_one_line(text))
    }
}

/// Takes records as JSON: their own escapes are for line ends and what else is below 0x20, and leave the rest to the reader.
#[derive(Debug)]
pub(super) struct VisibleJson<W>(pub(super) W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for VisibleJson<W> {
    type Writer = VisibleJson<W::Writer>;
    fn make_writer(&'a self) -> Self::Writer {
        VisibleJson(self.0.make_writer())
    }
}

impl<W: io::Write> io::Write for VisibleJson<W> {
    /// A record comes whole.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        match str::from_utf8(record).map(visible_json) {
            Ok(Cow::Owned(visible)) => self.0.write_all(visible.as_bytes())?,
            // JSON is text.
            Ok(Cow::Borrowed(_)) | Err(_) => self.0.write_all(record)?,
        }
        Ok(record.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use skillgate_plugin_host::{on_one_line, visible_json};
    use skillgate_skill::text::{is_deceptive, is_hidden};

    use super::VisibleJson;
    use crate::telemetry::logged::Log;

    #[derive(Debug, thiserror::Error)]
    #[error("outside")]
    struct Outside(#[source] Inside);

    #[derive(Debug, thiserror::Error)]
    #[error("x\n2026-01-01T00:00:00Z ERROR skillgate: not said\r\u{1b}[2J\u{202e}\u{85}")]
    struct Inside;

    /// However it comes to be a part of a record: as a field of three kinds, below another error, of a span, as the message.
    #[test]
    fn what_others_have_said_makes_no_lines() {
        let (log, _here) = Log::begin();
        let (outside, text) = (Outside(Inside), Inside.to_string());
        let error = &outside as &dyn std::error::Error;
        let _in_span = tracing::info_span!("call", said = %Inside).entered();
        tracing::info!(error, displayed = %Inside, text, debugged = ?text, "{Inside}");
        let lines = log.taken();
        let told = lines.matches("not said").count();
        assert_eq!((lines.lines().count(), told), (1, 6), "{lines}");
        let (line, end) = lines.split_at(lines.len() - 1);
        assert_eq!(end, "\n");
        let is_seen = |c: char| !c.is_control() && c != '\u{202e}';
        assert!(line.chars().all(is_seen), "{line:?}");
    }

    #[test]
    fn nor_does_it_hide_in_json() {
        let log = Log::default();
        let lines = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_writer(VisibleJson(move || lines.clone()));
        let _here = tracing::subscriber::set_default(subscriber.finish());
        let text = "/\u{9b}2J\u{202e}\n\u{7f}\u{3164}\u{200d}\u{e0041}é漢🙂";
        let _in_span = tracing::info_span!("call", said = text).entered();
        tracing::info!(text, displayed = %text, "{text}");
        let lines = log.taken();
        assert_eq!(lines.matches('\n').count(), 1, "{lines:?}");
        let line = lines.strip_suffix('\n').unwrap();
        assert!(!line.contains(is_hidden), "{line:?}");
        assert!(line.contains("é漢🙂"), "{line}");
        let record: Value = serde_json::from_str(line).unwrap();
        for said in ["/text", "/displayed", "/message", "/span/said"] {
            assert_eq!(record.pointer(said).unwrap(), text, "{said}: {line}");
        }
    }

    /// The host's lists are copies of those of the skills: it does not know that crate.
    #[test]
    fn what_deceives_is_the_same_everywhere() {
        for c in '\0'..=char::MAX {
            let text = c.encode_utf8(&mut [0; 4]).to_owned();
            assert_eq!(on_one_line(&text) != text, is_deceptive(c), "{c:?}");
            let is_kept = matches!(c, '\n' | '\t') || !is_hidden(c);
            assert_eq!(visible_json(&text) == text, is_kept, "{c:?}");
        }
    }
}
