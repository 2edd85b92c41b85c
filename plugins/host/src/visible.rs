//! Text of others where people read it: in a log, on a terminal.
//!
//! The two lists are those of `skillgate_skill::text`, which this crate does without: it knows no skills. A test of the gateway
//! (`telemetry::one_line`) holds them together, character by character.

use std::borrow::Cow;
use std::fmt::Write as _;

/// What a reader cannot see, or what reorders what he sees.
pub(crate) fn is_hidden(c: char) -> bool {
    is_deceptive(c) || matches!(c, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}')
}

/// [`is_hidden`] without what honest prose needs: joiners (Persian, Indic scripts, emoji) and variation selectors (emoji).
pub(crate) fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A text in which a reader of a log cannot take a part for a line of its own: what ends one, and what reorders or hides text,
/// is made visible. Joiners and variation selectors stay: prose needs them, and they hide nothing but themselves.
#[must_use]
pub fn on_one_line(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_deceptive) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if !is_deceptive(c) {
            line.push(c);
        } else if c.is_ascii() {
            line.extend(c.escape_debug());
        } else {
            // `escape_debug` leaves fillers as they are.
            line.extend(c.escape_unicode());
        }
    }
    Cow::Owned(line)
}

/// The same JSON, in which nothing is left that a terminal obeys or that a reader cannot see: outside of its strings JSON has
/// none of it but line ends and tabs, which stay, and in a string it is escaped. Also for a part of a string that has no line
/// ends and tabs of its own.
#[must_use]
pub fn visible_json(json: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
    // Nearly all of it.
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    if json.bytes().all(is_plain) || !json.contains(is_unsafe) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unsafe(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // A String takes whatever is written to it.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In JSON all of it; in prose what people who write honestly have no use for.
    #[test]
    fn nothing_hidden_is_left() {
        for c in '\0'..=char::MAX {
            let text = format!("a{c}b");
            let line = on_one_line(&text);
            assert!(!line.contains(is_deceptive), "{c:?}: {line:?}");
            assert_eq!(line == text, !is_deceptive(c), "{c:?}: {line:?}");
        }
        let nasty = "\u{7f}\u{9b}2J\u{202e}\u{3164}\u{200d}\u{e0041}\u{feff}";
        let json = format!("{{\n\t\"é漢🙂{nasty}\": \"{nasty}\"}}\n");
        let visible = visible_json(&json);
        assert_eq!(
            visible
                .matches(r"\u007f\u009b2J\u202e\u3164\u200d\udb40\udc41\ufeff")
                .count(),
            2,
            "{visible}"
        );
        assert!(visible.starts_with("{\n\t\"é漢🙂"), "{visible}");
        assert!(matches!(visible_json("{\"a\":\n1}"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_line_is_as_it_is_read() {
        assert_eq!(
            on_one_line("a\n\u{1b}[2J\r\u{3164}\u{202e}"),
            r"a\n\u{1b}[2J\r\u{3164}\u{202e}"
        );
        let prose = "می\u{200c}خواهم 👩\u{200d}💻 ❤\u{fe0f}";
        assert_eq!(on_one_line(prose), prose);
    }
}
