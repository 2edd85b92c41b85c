//! Looks for secrets in JSON text that is too large to be in memory, and in which nothing is replaced.

use std::sync::Arc;

use aho_corasick::automaton::StateID;

use super::Redactor;

/// Whether any form stands in JSON text that comes in pieces of any size: in the text, or in what its strings say, as
/// [`super::redact_json`] looks at them.
#[derive(Debug)]
pub(crate) struct Search {
    redactor: Arc<Redactor>,
    text: StateID,
    said: StateID,
    unescape: Unescape,
    found: bool,
}

impl Search {
    /// At the beginning of a text.
    pub(crate) fn new(redactor: Arc<Redactor>) -> Self {
        let start = redactor.start();
        Search {
            redactor,
            text: start,
            said: start,
            unescape: Unescape::default(),
            found: false,
        }
    }

    /// Takes the next piece. Whether there has been one yet.
    pub(crate) fn push(&mut self, piece: &[u8]) -> bool {
        for byte in piece {
            self.found |= step(&self.redactor, &mut self.text, *byte);
            let mut utf8 = [0; 4];
            for byte in self.unescape.push(*byte, &mut utf8) {
                self.found |= step(&self.redactor, &mut self.said, *byte);
            }
        }
        self.found
    }

    /// Whether there has been one.
    pub(crate) fn found(&self) -> bool {
        self.found
    }
}

fn step(redactor: &Redactor, state: &mut StateID, byte: u8) -> bool {
    let (next, found) = redactor.step(*state, byte);
    *state = next;
    found
}

/// Takes the escapes of JSON's strings away (RFC 8259, section 7). They stand nowhere else.
#[derive(Debug, Default)]
struct Unescape {
    at: At,
    /// The first half of a character that is written as two, where the second may follow.
    high: Option<u32>,
}

#[derive(Debug, Default)]
enum At {
    #[default]
    Text,
    Backslash,
    /// So many digits, which say so much.
    Digits(u32, u32),
}

impl Unescape {
    /// What this byte ends: itself, a character, or nothing yet.
    fn push<'a>(&mut self, byte: u8, utf8: &'a mut [u8; 4]) -> &'a [u8] {
        let (at, said) = match (&self.at, byte) {
            (At::Text, b'\\') => (At::Backslash, None),
            (At::Backslash, b'u') => (At::Digits(0, 0), None),
            (At::Digits(count, value), _) => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                let value = value * 16 + digit;
                match count {
                    3 => (At::Text, self.character(value)),
                    _ => (At::Digits(count + 1, value), None),
                }
            }
            (at, _) => {
                self.high = None;
                utf8[0] = match (at, byte) {
                    (At::Backslash, b'n') => b'\n',
                    (At::Backslash, b't') => b'\t',
                    (At::Backslash, b'r') => b'\r',
                    (At::Backslash, b'b') => 8,
                    (At::Backslash, b'f') => 12,
                    _ => byte,
                };
                self.at = At::Text;
                return &utf8[..1];
            }
        };
        self.at = at;
        said.map_or(&[], |c| c.encode_utf8(utf8).as_bytes())
    }

    fn character(&mut self, value: u32) -> Option<char> {
        let high = self.high.take();
        match (high, value) {
            (_, 0xd800..0xdc00) => {
                self.high = Some(value);
                None
            }
            (Some(high), 0xdc00..0xe000) => {
                char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (value - 0xdc00))
            }
            _ => char::from_u32(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Unescape;

    #[test]
    fn what_strings_say_is_what_they_say_to_every_reader() {
        let all: String = ('\0'..='\u{fff}')
            .chain("𐀀🙂\u{10ffff}\u{fffd}".chars())
            .collect();
        for ascii in [false, true] {
            let mut json = serde_json::to_string(&all).unwrap();
            if ascii {
                let escaped = |c: char| {
                    let mut units = [0; 2];
                    let units = c.encode_utf16(&mut units).iter();
                    units
                        .map(|unit| format!("\\u{unit:04X}"))
                        .collect::<String>()
                };
                let one = |c: char| {
                    if c.is_ascii() {
                        c.to_string()
                    } else {
                        escaped(c)
                    }
                };
                json = json.chars().map(one).collect();
            }
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), all);
            let (mut unescape, mut said) = (Unescape::default(), Vec::new());
            for byte in json.bytes() {
                said.extend_from_slice(unescape.push(byte, &mut [0; 4]));
            }
            assert_eq!(String::from_utf8(said).unwrap(), format!("\"{all}\""));
        }
    }
}
