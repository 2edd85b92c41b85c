//! The forms in which a secret's value shows up in text: as it is, and as the usual encoders write it.
//!
//! Covered: the value, with and without the white space around it, and each of its lines; the same in lower case, as host
//! names are written; base64, standard and URL-safe, padded and not, also from the middle of a longer text that was encoded
//! as a whole; hex in lower or upper case; percent-encoding as `urllib.parse.quote` and `quote_plus`, `encodeURI` and
//! `encodeURIComponent`, HTML forms, and of every byte, in both cases of the digits; JSON strings, with and without `\u` for
//! what is not ASCII, `\/`, the characters that matter in HTML (with the single quote and without), once and twice; `\u` for
//! every character; Python's `repr` and `ascii` of the text and of its bytes; `\x` for every byte; HTML entities.
//!
//! Not covered, since no list could be: reversed, split up, one character a line, the parts of a value that is JSON, base64
//! in lines, compressed, encrypted, hashed, numbers in another notation. A program that wants to give away what it was given
//! cannot be kept from it by looking at its text. A value in the middle of a base64 text may leave the two characters at its
//! edges, which belong to its neighbours too: at most four bits of its first byte and four of its last.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use zeroize::Zeroizing;

use super::{VALUE_BYTES_MAX, VALUE_BYTES_MIN};

/// Longest form, in bytes: `\u0041` for every character of the longest value. Longer ones, of a value that is made of
/// control characters alone, are left out.
pub(super) const FORM_BYTES_MAX: usize = 6 * VALUE_BYTES_MAX;

type Text = Zeroizing<String>;

/// Every form, each once: of the value, and of its lines, since whatever writes a text of several lines puts something before
/// each (a log its level, a traceback its indentation), and many programs take the white space around a value away.
pub(super) fn forms(value: &str) -> Vec<Zeroizing<Vec<u8>>> {
    let mut all: Vec<Text> = Vec::new();
    add_forms(value, &mut all);
    for part in std::iter::once(value).chain(value.lines()) {
        let part = part.trim();
        // `-----BEGIN PRIVATE KEY-----` is in every key.
        if part != value && part.len() >= VALUE_BYTES_MIN && !part.starts_with("-----") {
            add_forms(part, &mut all);
        }
    }
    all.sort_unstable_by(|one, other| one.as_str().cmp(other));
    all.dedup_by(|one, other| one.as_str() == other.as_str());
    all.into_iter()
        .filter(|form| form.len() <= FORM_BYTES_MAX)
        .map(|mut form| Zeroizing::new(std::mem::take(&mut *form).into_bytes()))
        .collect()
}

fn add_forms(value: &str, all: &mut Vec<Text>) {
    all.push(Zeroizing::new(value.to_owned()));
    all.push(Zeroizing::new(value.to_ascii_lowercase()));
    base64_forms(value, all);
    for upper in [false, true] {
        let byte = |byte: u8, out: &mut String| hex(out, "", byte.into(), 2, upper);
        all.push(bytes(value, byte));
        all.push(bytes(value, |byte, out| {
            hex(out, "\\x", byte.into(), 2, upper)
        }));
        all.push(characters(value, |c, out| utf16(out, c, upper)));
        for safe in PERCENT_SAFE {
            for plus in [false, true] {
                all.push(percent(value, safe, plus, upper));
            }
        }
    }
    for (html, (html_upper, upper)) in JSON_HTML
        .into_iter()
        .flat_map(|html| JSON_UPPER.map(|upper| (html, upper)))
        .filter(|(html, (html_upper, upper))| !html.is_empty() || html_upper == upper)
    {
        for (slash, ascii) in [(false, false), (false, true), (true, false), (true, true)] {
            let way = Json {
                ascii,
                slash,
                html,
                html_upper,
                upper,
            };
            let once = json(value, way);
            all.push(json(&once, way));
            all.push(once);
        }
    }
    for quote in [false, true] {
        for ascii in [false, true] {
            all.push(python_text(value, quote, ascii));
        }
        all.push(python_bytes(value, quote));
    }
    for quotes in [None, Some("&#x27;"), Some("&#39;")] {
        all.push(html(value, quotes));
    }
}

/// At each of the three places that the value can have in the groups of three bytes: what of the encoding is the value's
/// alone, and what it is at the end of a text, where nothing follows.
fn base64_forms(value: &str, all: &mut Vec<Text>) {
    for before in 0..3 {
        let mut bytes = Zeroizing::new(vec![0; before]);
        bytes.extend_from_slice(value.as_bytes());
        // The first characters carry bits of what is before: 8 bits a byte, 6 bits a character.
        let first = (before * 8).div_ceil(6);
        let alone = bytes.len() * 8 / 6;
        for engine in [&STANDARD, &URL_SAFE] {
            let padded = Zeroizing::new(engine.encode(&*bytes));
            let unpadded = padded.trim_end_matches('=');
            for form in [
                &padded[first..],
                &unpadded[first..],
                &unpadded[first..alone],
            ] {
                all.push(Zeroizing::new(form.to_owned()));
            }
        }
    }
}

/// What the usual percent-encoders leave as it is, beside letters and digits; the last one leaves nothing.
const PERCENT_SAFE: [Option<&str>; 6] = [
    Some("-_.~"),
    Some("-_.~/"),
    Some("-_.~!'()*"),
    Some("-_.~!'()*;,/?:@&=+$#"),
    Some("-_.*"),
    None,
];

fn percent(value: &str, safe: Option<&str>, plus: bool, upper: bool) -> Text {
    bytes(value, |byte, out| {
        let c = char::from(byte);
        match safe {
            Some(_) if c == ' ' && plus => out.push('+'),
            Some(safe) if c.is_ascii_alphanumeric() || safe.contains(c) => out.push(c),
            _ => hex(out, "%", byte.into(), 2, upper),
        }
    })
}

/// Where a text goes into a page encoders of JSON write as `\u`: nothing; as Django and Go; as Flask; as PHP with all JSON_HEX_*.
const JSON_HTML: [&str; 4] = ["", "<>&", "<>&'", "<>&'\""];
/// The digits of these, and of what is not ASCII, in upper case? Django has them in upper case and in lower case.
const JSON_UPPER: [(bool, bool); 3] = [(false, false), (true, false), (true, true)];

#[derive(Clone, Copy)]
struct Json {
    ascii: bool,
    slash: bool,
    html: &'static str,
    html_upper: bool,
    upper: bool,
}

fn json(value: &str, way: Json) -> Text {
    characters(value, |c, out| match c {
        c if way.html.contains(c) => utf16(out, c, way.html_upper),
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '/' if way.slash => out.push_str("\\/"),
        c if c < ' ' || (way.ascii && !c.is_ascii()) => utf16(out, c, way.upper),
        c => out.push(c),
    })
}

/// `quote`: the single quote is escaped too, as between single quotes.
fn python_text(value: &str, quote: bool, ascii: bool) -> Text {
    characters(value, |c, out| match c {
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\'' if quote => out.push_str("\\'"),
        c if c.is_control() || (ascii && ('\u{80}'..='\u{ff}').contains(&c)) => {
            hex(out, "\\x", c.into(), 2, false);
        }
        c if ascii && ('\u{100}'..='\u{ffff}').contains(&c) => hex(out, "\\u", c.into(), 4, false),
        c if ascii && !c.is_ascii() => hex(out, "\\U", c.into(), 8, false),
        c => out.push(c),
    })
}

fn python_bytes(value: &str, quote: bool) -> Text {
    bytes(value, |byte, out| match byte {
        b'\\' => out.push_str("\\\\"),
        b'\n' => out.push_str("\\n"),
        b'\r' => out.push_str("\\r"),
        b'\t' => out.push_str("\\t"),
        b'\'' if quote => out.push_str("\\'"),
        b' '..=b'~' => out.push(char::from(byte)),
        _ => hex(out, "\\x", byte.into(), 2, false),
    })
}

fn html(value: &str, single_quote: Option<&str>) -> Text {
    characters(value, |c, out| match (c, single_quote) {
        ('&', _) => out.push_str("&amp;"),
        ('<', _) => out.push_str("&lt;"),
        ('>', _) => out.push_str("&gt;"),
        ('"', Some(_)) => out.push_str("&quot;"),
        ('\'', Some(entity)) => out.push_str(entity),
        (c, _) => out.push(c),
    })
}

fn characters(value: &str, mut write: impl FnMut(char, &mut String)) -> Text {
    let mut out = Zeroizing::new(String::with_capacity(value.len() * 6));
    value.chars().for_each(|c| write(c, &mut out));
    out
}

fn bytes(value: &str, mut write: impl FnMut(u8, &mut String)) -> Text {
    let mut out = Zeroizing::new(String::with_capacity(value.len() * 6));
    value.bytes().for_each(|byte| write(byte, &mut out));
    out
}

fn utf16(out: &mut String, c: char, upper: bool) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        hex(out, "\\u", u32::from(*unit), 4, upper);
    }
}

/// Writing to memory does not fail.
fn hex(out: &mut String, before: &str, number: u32, digits: usize, upper: bool) {
    let _ = match upper {
        true => write!(out, "{before}{number:0digits$X}"),
        false => write!(out, "{before}{number:0digits$x}"),
    };
}
