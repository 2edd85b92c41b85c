//! A record of the text format is one line, whatever is in it.

use std::fmt::{self, Write};

use skillgate_plugin_host::on_one_line;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
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

#[cfg(test)]
mod tests {
    use skillgate_plugin_host::{on_one_line, visible_json};
    use skillgate_skill::text::{is_deceptive, is_hidden};

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
