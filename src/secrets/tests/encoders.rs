//! What encoders of programs write, beside our own generators of the same.

use super::{VALUES, redactor};

/// What real encoders make, written down as they made it (CPython 3.12, Node 22), beside our own generators.
#[test]
fn what_encoders_write() {
    let value = VALUES[2];
    let found = redactor(&[("K", value)]);
    for text in [
        // urllib.parse.quote(v); quote(v, safe=""); quote_plus(v)
        "p%40ss/w%27or%22d%2B%5C%3D%25%26%3Cx%3E~%21%2A%28%29%7B%7D%5B%5D",
        "p%40ss%2Fw%27or%22d%2B%5C%3D%25%26%3Cx%3E~%21%2A%28%29%7B%7D%5B%5D",
        // encodeURIComponent(v); encodeURI(v); new URLSearchParams({k: v})
        "p%40ss%2Fw'or%22d%2B%5C%3D%25%26%3Cx%3E~!*()%7B%7D%5B%5D",
        "p@ss/w'or%22d+%5C=%25&%3Cx%3E~!*()%7B%7D%5B%5D",
        "k=p%40ss%2Fw%27or%22d%2B%5C%3D%25%26%3Cx%3E%7E%21*%28%29%7B%7D%5B%5D",
        // json.dumps(v), and of that once more
        r#""p@ss/w'or\"d+\\=%&<x>~!*(){}[]""#,
        r#""\"p@ss/w'or\\\"d+\\\\=%&<x>~!*(){}[]\"""#,
        // repr(v), repr(v.encode())
        r#"'p@ss/w\'or"d+\\=%&<x>~!*(){}[]'"#,
        r#"b'p@ss/w\'or"d+\\=%&<x>~!*(){}[]'"#,
        // html.escape(v)
        "p@ss/w&#x27;or&quot;d+\\=%&amp;&lt;x&gt;~!*(){}[]",
        "cEBzcy93J29yImQrXD0lJjx4Pn4hKigpe31bXQ==",
    ] {
        let plain = found.text(text);
        assert!(plain.contains("[secret K]"), "{text} → {plain}");
        assert!(!plain.contains("ss"), "{text} → {plain}");
    }
    let umlauts = redactor(&[("K", VALUES[4])]);
    for text in [
        r"gr\u00f6\u00dfe\u6f22\u5b57\ud83d\ude42schl\u00fcssel",
        r"gr\xf6\xdfe\u6f22\u5b57\U0001f642schl\xfcssel",
        r"gr\xc3\xb6\xc3\x9fe\xe6\xbc\xa2\xe5\xad\x97\xf0\x9f\x99\x82schl\xc3\xbcssel",
        "gr%C3%B6%C3%9Fe%E6%BC%A2%E5%AD%97%F0%9F%99%82schl%C3%BCssel",
    ] {
        assert_eq!(umlauts.text(text), "[secret K]", "{text}");
    }
}

/// Of a value that each of them has to write otherwise: what is ASCII alone has many forms that are the same.
#[test]
fn what_encoders_write_of_all_kinds_of_characters() {
    let value = "pä' \"<&>/€\u{1}😀Z~";
    let found = redactor(&[("K", value)]);
    for (encoder, text) in [
        (
            "quote(v)",
            "p%C3%A4%27%20%22%3C%26%3E/%E2%82%AC%01%F0%9F%98%80Z~",
        ),
        (
            "quote(v, '')",
            "p%C3%A4%27%20%22%3C%26%3E%2F%E2%82%AC%01%F0%9F%98%80Z~",
        ),
        (
            "quote_plus(v)",
            "p%C3%A4%27+%22%3C%26%3E%2F%E2%82%AC%01%F0%9F%98%80Z~",
        ),
        ("dumps(v, ensure_ascii=False)", r#"pä' \"<&>/€\u0001😀Z~"#),
        ("dumps(v)", r#"p\u00e4' \"<&>/\u20ac\u0001\ud83d\ude00Z~"#),
        (
            "json_encode(v) of PHP",
            r#"p\u00e4' \"<&>\/\u20ac\u0001\ud83d\ude00Z~"#,
        ),
        (
            "json.Marshal(v) of Go",
            r#"pä' \"\u003c\u0026\u003e/€\u0001😀Z~"#,
        ),
        (
            "json_script(v) of Django",
            r#"p\u00e4' \"\u003C\u0026\u003E/\u20ac\u0001\ud83d\ude00Z~"#,
        ),
        (
            "json_encode(v, JSON_HEX_TAG | JSON_HEX_APOS | JSON_HEX_AMP | JSON_HEX_QUOT) of PHP",
            r#"p\u00e4\u0027 \u0022\u003C\u0026\u003E\/\u20ac\u0001\ud83d\ude00Z~"#,
        ),
        (
            "tojson(v) of Flask",
            r#"p\u00e4\u0027 \"\u003c\u0026\u003e/\u20ac\u0001\ud83d\ude00Z~"#,
        ),
        ("repr(v)", r#"pä\' "<&>/€\x01😀Z~"#),
        ("ascii(v)", r#"p\xe4\' "<&>/\u20ac\x01\U0001f600Z~"#),
        (
            "repr(v.encode())",
            r#"p\xc3\xa4\' "<&>/\xe2\x82\xac\x01\xf0\x9f\x98\x80Z~"#,
        ),
        ("html.escape(v)", "pä&#x27; &quot;&lt;&amp;&gt;/€\u{1}😀Z~"),
        (
            "html.escape(v, quote=False)",
            "pä' \"&lt;&amp;&gt;/€\u{1}😀Z~",
        ),
    ] {
        assert_eq!(found.text(text), "[secret K]", "{encoder}: {text}");
    }
    // Without a double quote Python has the other kind around it, and leaves the single one as it is.
    let apostrophe = redactor(&[("K", "pä'€\u{1}😀Z")]);
    for text in [
        "pä'€\\x01😀Z",
        r"p\xe4'\u20ac\x01\U0001f600Z",
        r"p\xc3\xa4'\xe2\x82\xac\x01\xf0\x9f\x98\x80Z",
    ] {
        assert_eq!(apostrophe.text(text), "[secret K]", "{text}");
    }
}
