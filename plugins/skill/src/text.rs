//! Characters that deceive, and places in a text.

/// Characters that a reader cannot see or that reorder what is seen: controls, line separators,
/// bidirectional controls, zero-width characters, tags, fillers. They have no business in a name
/// or a path: two of them would look the same and be different.
pub fn is_hidden(c: char) -> bool {
    is_deceptive(c) || matches!(c, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}')
}

/// [`is_hidden`] without what honest prose needs: joiners (Persian, Indic scripts, emoji) and
/// variation selectors (emoji).
pub fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Text of a caller for an error message: quoted, made visible, cut at 80 characters.
pub(crate) fn quoted(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut out = String::from("\"");
    for (n, c) in text.chars().enumerate() {
        if n == CHARS_MAX {
            out.push_str("...");
            break;
        }
        if is_hidden(c) && !matches!(c, '\n' | '\r' | '\t') {
            out.extend(c.escape_unicode());
        } else {
            out.extend(c.escape_debug());
        }
    }
    out.push('"');
    out
}

/// One line of a library's message: newlines become spaces, cut at 300 characters.
pub(crate) fn one_line(message: &str) -> String {
    let joined = message
        .split(['\n', '\r'])
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    let mut out = String::with_capacity(joined.len().min(320));
    for (n, c) in joined.chars().enumerate() {
        if n == 300 {
            out.push_str("...");
            break;
        }
        if is_hidden(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// The text with what cannot be seen made visible.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// Line and column of a byte offset, both from 1, the column in characters.
pub(crate) fn line_column(text: &str, offset: usize) -> (u32, u32) {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = &text[..end];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
    let column = before[line_start..].chars().count() + 1;
    (small(line), small(column))
}

/// A count as u32; texts are bounded far below that.
pub(crate) fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let text = "a\r\nbé=\n";
        for (offset, want) in [
            (0, (1, 1)),
            (3, (2, 1)),
            (6, (2, 3)),
            (8, (3, 1)),
            (999, (3, 1)),
            (5, (2, 2)),
        ] {
            assert_eq!(line_column(text, offset), want, "offset {offset}");
        }
    }

    #[test]
    fn hidden_is_shown() {
        assert_eq!(quoted("a\u{202e}b\n\"\u{1b}"), r#""a\u{202e}b\n\"\u{1b}""#);
        // The library's own escapes leave this one as it is, which looks like nothing.
        assert_eq!(quoted("a\u{3164}\r\t"), r#""a\u{3164}\r\t""#);
        assert!(quoted(&"x".repeat(500)).len() < 100);
        assert_eq!(one_line("a\n  b\u{202e}\r\n"), "a; b\\u{202e}");
        assert_eq!(one_line(&"é".repeat(300)), "é".repeat(300));
        assert_eq!(one_line(&"é".repeat(301)), "é".repeat(300) + "...");
        assert_eq!(shown("a\u{202e}b"), "a\\u{202e}b");
    }

    #[test]
    fn joiners_are_prose_but_not_names() {
        assert!(is_hidden('\u{200d}') && !is_deceptive('\u{200d}'));
        for c in [
            '\0',
            '\u{7f}',
            '\u{85}',
            '\u{200b}',
            '\u{202e}',
            '\u{2066}',
            '\u{feff}',
            '\u{e0041}',
            '\u{3164}',
        ] {
            assert!(is_deceptive(c), "{c:?}");
        }
        for c in ['a', 'é', '語', ' ', '😀'] {
            assert!(!is_hidden(c), "{c:?}");
        }
    }
}
