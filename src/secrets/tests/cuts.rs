//! Texts that were cut, by the sandbox or by us, within a value.

use base64::Engine as _;
use base64::engine::general_purpose as b64;

use super::{VALUES, redactor, streamed};

#[test]
fn a_cut_leaves_no_half_of_a_secret() {
    let value = VALUES[0];
    let redactor = redactor(&[("K", value)]);
    for kept in 4..value.len() {
        let (head, tail) = (&value[..kept], &value[value.len() - kept..]);
        for (text, plain) in [
            (format!("says {head}…"), "says [secret K]…".to_owned()),
            (format!("says {head}"), "says [secret K]".into()),
            (
                format!("says {head}\n... [9 bytes left out] ...\n{tail} end"),
                "says [secret K]\n... [9 bytes left out] ...\n[secret K] end".into(),
            ),
            (
                format!("says {head} ... [9 characters left out] ... {tail} end"),
                "says [secret K] ... [9 characters left out] ... [secret K] end".into(),
            ),
            (format!("{tail} end"), "[secret K] end".into()),
        ] {
            assert_eq!(redactor.text(&text), plain);
        }
    }
    // And none of its middle, where a text was cut twice.
    for kept in 4..value.len() - 2 {
        let middle = &value[1..][..kept];
        for mark in ["…", " ... [9 characters left out] ... end"] {
            let text = format!("says\n... [9 bytes left out] ...\n{middle}{mark}");
            let plain = text.replace(middle, "[secret K]");
            assert_eq!(redactor.text(&text), plain);
        }
        let text = format!("] ...\n it {middle}… and {middle} is");
        assert_eq!(redactor.text(&text), text, "not at both cuts");
    }
    // What a run had begun to write when it ended.
    assert_eq!(
        streamed(&redactor, &[b"says sk-live-012"]),
        "says [secret K]"
    );
    assert_eq!(
        streamed(&redactor, &[b"says sk-live-012", b"x"]),
        "says sk-live-012x"
    );
    // Also where characters are longer than a byte, and of an encoded form.
    let umlauts = super::redactor(&[("K", VALUES[4])]);
    assert_eq!(umlauts.text("says größe漢…"), "says [secret K]…");
    let encoded = b64::STANDARD.encode(VALUES[4]);
    assert_eq!(umlauts.text(&format!("{}…", &encoded[..20])), "[secret K]…");
    assert_eq!(
        redactor.text("says sk-…"),
        "says sk-…",
        "three bytes say nothing"
    );
}

/// What every key begins and ends with says nothing of one, and a line of dashes is no piece of it.
#[test]
fn a_line_of_dashes_is_no_piece_of_a_key() {
    let (begin, end) = (
        "-----BEGIN EC PRIVATE KEY-----",
        "-----END EC PRIVATE KEY-----",
    );
    for after in ["", "\n", "\r\n"] {
        let key = format!("{begin}\nMHcCAQEEIBkg\noAoGCCqGSM49{after}{end}{after}");
        let redactor = redactor(&[("KEY", &key)]);
        for text in [
            "----- report -----",
            "-----\nreport\n-----",
            "-----BEGIN EC PRIVATE KEY-----",
            "-----END EC PRIVATE KEY-----\n",
            "KEY-----\n is read … and -----BEGIN EC…",
        ] {
            assert_eq!(redactor.text(text), text);
            assert_eq!(streamed(&redactor, &[text.as_bytes()]), text);
        }
        for (text, plain) in [
            (format!("it is {begin}\nMHc"), "it is [secret KEY]"),
            (
                format!("SM49{after}{end}{after} it was"),
                "[secret KEY] it was",
            ),
        ] {
            assert_eq!(redactor.text(&text), plain);
        }
    }
}
