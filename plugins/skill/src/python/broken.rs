//! Text that no Python reads: brackets and strings that do not end, and characters that are none of its own.

/// What is wrong, and in which line (from 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// From 1.
    pub line: usize,
    /// In words.
    pub what: String,
}

/// Brackets inside each other: Python reads no more, and here no more is kept.
const NESTED_MAX: usize = 200;

/// Why `source` is no program of any supported Python, where its brackets and strings show that.
///
/// Not a parser: `None` says nothing. Where a newer Python ends a string elsewhere than an older one (`f"{a["b"]}"`), or the file
/// says that its text is encoded in another way, nothing is said either.
pub fn broken(source: &str) -> Option<Broken> {
    let declares_encoding = source.lines().take(2).any(|line| line.contains("coding"));
    if declares_encoding {
        return None;
    }
    let bytes = source.as_bytes();
    let mut open: Vec<(u8, usize)> = Vec::new();
    let mut line = 1;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let said = |what: &str| {
            Some(Broken {
                line,
                what: what.to_owned(),
            })
        };
        match byte {
            b'\n' => line += 1,
            b'\r' if bytes.get(at + 1) != Some(&b'\n') => line += 1,
            0 => return said("there is a NUL character"),
            b'$' | b'?' | b'`' => {
                return said(&format!("`{}` is no part of Python", char::from(byte)));
            }
            b'#' => {
                let rest = &bytes[at..];
                let length = rest.iter().position(|b| matches!(b, b'\n' | b'\r' | 0));
                at += length.unwrap_or(rest.len());
                continue;
            }
            b'"' | b'\'' => {
                let text = Text::at(bytes, at);
                if text.has_fields && text.may_end_elsewhere(bytes) {
                    return None;
                }
                if !text.ends {
                    return said("a string begins that does not end");
                }
                if bytes[text.begin..text.end].contains(&0) {
                    return said("there is a NUL character");
                }
                line += lines(&bytes[text.begin..text.end]);
                at = text.end;
            }
            b'(' | b'[' | b'{' => {
                if open.len() == NESTED_MAX {
                    return None;
                }
                open.push((byte, line));
            }
            b')' | b']' | b'}' => match open.pop() {
                None => return said(&format!("`{}` closes nothing", char::from(byte))),
                Some((opened, of)) if closing(opened) != byte => {
                    let (closes, opened) = (char::from(byte), char::from(opened));
                    return said(&format!(
                        "`{closes}` does not close the `{opened}` of line {of}"
                    ));
                }
                Some(_) => {}
            },
            _ => {}
        }
        at += 1;
    }
    open.pop().map(|(opened, line)| Broken {
        line,
        what: format!("`{}` is never closed", char::from(opened)),
    })
}

fn closing(opened: u8) -> u8 {
    match opened {
        b'(' => b')',
        b'[' => b']',
        _ => b'}',
    }
}

fn lines(bytes: &[u8]) -> usize {
    let ends = |(at, byte): (usize, &u8)| match byte {
        b'\n' => true,
        b'\r' => bytes.get(at + 1) != Some(&b'\n'),
        _ => false,
    };
    bytes.iter().enumerate().filter(|end| ends(*end)).count()
}

/// A string as every Python read it before 3.12, and newer ones where none of its own quotes is inside a field.
struct Text {
    begin: usize,
    /// Its last quote, where it ends.
    end: usize,
    ends: bool,
    /// `f"{x}"`, or 3.14's `t"{x}"`.
    has_fields: bool,
}

impl Text {
    fn at(bytes: &[u8], at: usize) -> Self {
        let quote = bytes[at];
        let is_long = bytes[at..].starts_with(&[quote; 3]);
        let width = if is_long { 3 } else { 1 };
        let begin = at + width;
        let mut text = Text {
            begin,
            end: bytes.len(),
            ends: false,
            has_fields: has_fields(&bytes[..at]),
        };
        let mut next = begin;
        while let Some(&byte) = bytes.get(next) {
            match byte {
                // Whatever it is it does not end the string, in a raw one either.
                b'\\' if bytes[next + 1..].starts_with(b"\r\n") => next += 2,
                b'\\' => next += 1,
                b'\n' | b'\r' if !is_long => {
                    text.end = next;
                    return text;
                }
                _ if bytes[next..].starts_with(&[quote; 3][..width]) => {
                    text.ends = true;
                    text.end = next + width - 1;
                    return text;
                }
                _ => {}
            }
            next += 1;
        }
        text
    }

    /// Whether it is not known that each of its fields is closed inside it.
    fn may_end_elsewhere(&self, bytes: &[u8]) -> bool {
        let content = &bytes[self.begin..self.end];
        if !self.ends {
            return content.contains(&b'{');
        }
        let (mut depth, mut has_format, mut at) = (0_usize, false, 0);
        while let Some(&byte) = content.get(at) {
            match byte {
                b'{' if depth == 0 && content.get(at + 1) == Some(&b'{') => at += 1,
                b'{' => {
                    has_format &= depth > 0;
                    depth += 1;
                }
                b'}' => depth = depth.saturating_sub(1),
                b':' => has_format = true,
                // Behind a colon it may be of the format, where quotes are letters like others.
                b'"' | b'\'' if depth > 0 => {
                    let rest = &content[at + 1..];
                    // A backslash may keep its quote from ending it.
                    let length = rest.iter().position(|b| *b == byte || *b == b'\\');
                    match length {
                        Some(length) if !has_format && rest[length] == byte => at += length + 1,
                        _ => return true,
                    }
                }
                b'\\' | b'#' if depth > 0 => return true,
                _ => {}
            }
            at += 1;
        }
        depth > 0
    }
}

/// Whether the word before a quote makes its string one with fields.
fn has_fields(before: &[u8]) -> bool {
    let is_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || !b.is_ascii();
    let length = before
        .iter()
        .rev()
        .take_while(|b| is_word(b))
        .take(3)
        .count();
    let word = before[before.len() - length..].to_ascii_lowercase();
    matches!(word.as_slice(), b"f" | b"t" | b"fr" | b"rf" | b"tr" | b"rt")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(source: &str) -> Option<(usize, String)> {
        broken(source).map(|broken| (broken.line, broken.what))
    }

    #[test]
    fn what_no_python_reads() {
        for (source, line, what) in [
            ("def main(args):\n    return {\n", 2, "`{` is never closed"),
            (
                "x = (1,\n     [2)\n",
                2,
                "`)` does not close the `[` of line 2",
            ),
            ("x = 1)\n", 1, "`)` closes nothing"),
            ("```python\nx = 1\n```\n", 1, "``` is no part of Python"),
            ("x = $HOME", 1, "`$` is no part of Python"),
            (
                "\r\n\rx = 'abc\ny = 1'",
                3,
                "a string begins that does not end",
            ),
            ("\rx = 'abc", 2, "a string begins that does not end"),
            ("\r\nx = 'abc", 2, "a string begins that does not end"),
            ("x = '''a\n\n", 1, "a string begins that does not end"),
            ("x = f'''a\n\n", 1, "a string begins that does not end"),
            ("x = '\\\r\n'\nf(", 3, "`(` is never closed"),
            ("x = r'\\'", 1, "a string begins that does not end"),
            ("x = '''\n\n'''\n# (\n]", 5, "`]` closes nothing"),
            ("x = f\"{d['a']:>{w}}\"\n(", 2, "`(` is never closed"),
            ("x = f'{{' + '{'\n(", 2, "`(` is never closed"),
            ("x = f\"it's # \\t{x}\"\n(", 2, "`(` is never closed"),
            ("x = f\"a: {d['aaa{']}\"\n(", 2, "`(` is never closed"),
            ("x = '''\r\r\n'''\n(", 4, "`(` is never closed"),
            ("x = '\0'", 1, "there is a NUL character"),
            ("# \0", 1, "there is a NUL character"),
        ] {
            assert_eq!(said(source), Some((line, what.to_owned())), "{source:?}");
        }
    }

    #[test]
    fn what_some_python_reads_or_only_a_parser_refuses() {
        for source in [
            "",
            "def main(args):\n    return [{'a': (1)}]  # )\n",
            "x = '#' + \"'\" + '\"' + '\\'' + \"\"\"'\"'\"\\\"\"\"\" + r'\\'' + rb'(' + ''",
            "x = f\"{d[\"a\"]}\"",
            "x = Rf\"{d[\"(\"]}\" + fR\"{d[\"(\"]}\"",
            "x = fr\"{d[\"(\"]}\"",
            "x = tr\"{d[\"(\"]}\"",
            "x = f\"{'}'\"}\"}\"",
            "x = f\"{x:'{'}\" '}'}\"",
            "x = f\"{x:{w}'{'}\" '}'}\"",
            "x = f\"{x # }\"\n}\"",
            "x = f\"{'\\'}\" }'}\"",
            "x = f'{\n1}'",
            "x = t\"{'\\n'}\"",
            "x = f'''{d['a']:'>3}'''",
            "# -*- coding: rot13 -*-\n(",
            "def main(args)\n    return",
            "x = 1 +",
            &"(".repeat(NESTED_MAX + 1),
        ] {
            assert_eq!(said(source), None, "{source:?}");
        }
    }
}
