//! Patterns of `permissions.network`.
//!
//! Grammar: `scheme://host[:port][/]`, scheme `http` or `https`; the host is a DNS name in ASCII or
//! `*.` and one of at least two labels. `*.example.com` means one or more labels strictly below,
//! never `example.com` itself. No other wildcard, no user, path, query or fragment: a path cannot be
//! enforced on TLS without interception, so a pattern must not promise it.

use std::fmt;

use thiserror::Error;

use crate::text::quoted;

/// Longest host name, in bytes, without a trailing dot (RFC 1035).
pub const HOST_BYTES_MAX: usize = 253;
/// Longest label, in bytes (RFC 1035).
pub const LABEL_BYTES_MAX: usize = 63;

/// Most labels of a host that a manifest declares. Whoever decides about it looks at every domain above it
/// ([`NetworkPattern::suffixes`]), which for one-letter labels would be half a hundred times its text.
pub const DECLARED_LABELS_MAX: usize = 16;

/// The scheme of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// `http`, port 80.
    Http,
    /// `https`, port 443.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The port when none is written.
    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("network pattern {pattern} {rule}")]
pub struct PatternError {
    /// The pattern, quoted for display.
    pub pattern: String,
    /// What it broke and what to write.
    pub rule: String,
}

/// A parsed pattern. Equal patterns allow the same: `https://A.com:443/` equals `https://a.com`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkPattern {
    scheme: Scheme,
    host: String,
    wildcard: bool,
    port: u16,
}

impl NetworkPattern {
    /// Parses a pattern; see the module for the grammar.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        parse(text).map_err(|rule| PatternError {
            pattern: quoted(text),
            rule,
        })
    }

    /// Parses a pattern that a manifest declares.
    pub fn parse_declared(text: &str) -> Result<Self, PatternError> {
        let pattern = NetworkPattern::parse(text)?;
        if pattern.suffixes().count() > DECLARED_LABELS_MAX {
            return Err(PatternError {
                pattern: quoted(text),
                rule: format!(
                    "has more than {DECLARED_LABELS_MAX} labels in its host; name a domain above it, with a wildcard"
                ),
            });
        }
        Ok(pattern)
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host in canonical form (see [`canonical_host`]), without `*.`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether it stands for the names below `host` instead of `host` itself.
    pub fn wildcard(&self) -> bool {
        self.wildcard
    }

    /// The port, written or the scheme's.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The host and the domains above it, nearest first: `api.example.com`, `example.com`, `com`.
    pub fn suffixes(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(Some(self.host.as_str()), |host| {
            host.split_once('.').map(|(_, rest)| rest)
        })
    }

    /// Whether a connection is within the pattern. `host` must be in canonical form; any other
    /// spelling does not match.
    pub fn matches(&self, scheme: Scheme, host: &str, port: u16) -> bool {
        let host_is_within = if self.wildcard {
            // The whole name, not what is below: a label there may be a number, the last one of the name may not.
            host.strip_suffix(&self.host)
                .is_some_and(|below| below.ends_with('.'))
                && canonical_host(host).is_ok_and(|canonical| canonical == host)
        } else {
            host == self.host
        };
        scheme == self.scheme && port == self.port && host_is_within
    }
}

fn parse(text: &str) -> Result<NetworkPattern, String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("has no scheme; write it as https://api.example.com".into());
    };
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        _ => return Err("has another scheme than http or https".into()),
    };
    let authority = match rest.split_once(['/', '?', '#']) {
        None => rest,
        Some((authority, "")) if rest.ends_with('/') => authority,
        Some(_) => {
            return Err(
                "has a path, query or fragment, which cannot be enforced; name only the host"
                    .into(),
            );
        }
    };
    if authority.contains('@') {
        return Err("has a user name; credentials do not belong in a manifest".into());
    }
    if authority.contains(['[', ']']) || authority.matches(':').count() > 1 {
        return Err("names an IP address; only DNS names are allowed".into());
    }
    let (host, port) = match authority.split_once(':') {
        None => (authority, scheme.default_port()),
        Some((host, port)) => (host, parse_port(port)?),
    };
    let (wildcard, host) = match host.strip_prefix("*.") {
        Some(below) => (true, below),
        None => (false, host),
    };
    if host.contains('*') {
        return Err(
            "has a wildcard in another place than `*.` before a domain; write https://*.example.com".into()
        );
    }
    let host = canonical_host(host)?;
    if wildcard && !host.contains('.') {
        return Err(
            "has a wildcard over a whole top-level domain; name at least two labels after `*.`"
                .into(),
        );
    }
    // `*.` stands for at least `x.`.
    if wildcard && host.len() + 2 > HOST_BYTES_MAX {
        return Err("leaves no room for a name below its wildcard".into());
    }
    Ok(NetworkPattern {
        scheme,
        host,
        wildcard,
        port,
    })
}

fn parse_port(text: &str) -> Result<u16, String> {
    let digits = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    match text.parse::<u16>() {
        Ok(port) if digits => Ok(port),
        _ => Err("has a bad port; write a number from 1 to 65535 without leading zeros".into()),
    }
}

/// The one form of a host name that patterns, policy and the way out compare: a DNS name in ASCII
/// letters, digits and hyphens, lower case, no trailing dot, labels of 1 to 63 bytes, 253 in all.
/// The error is what the name broke, for a sentence that starts with the name.
///
/// IP addresses in any spelling that a resolver or URL parser would take (`127.1`, `0x7f000001`) are
/// refused: a name whose last label is a number is read as an address by URL parsers.
pub fn canonical_host(host: &str) -> Result<String, String> {
    if host.is_empty() {
        return Err("has no host".into());
    }
    if !host.is_ascii() {
        return Err("has a host outside ASCII; write the name in its xn-- form".into());
    }
    if host.ends_with('.') {
        return Err("has a host with a trailing dot; leave it out".into());
    }
    if host.len() > HOST_BYTES_MAX {
        return Err(format!(
            "has a host of {} bytes, at most {HOST_BYTES_MAX} are allowed",
            host.len()
        ));
    }
    for label in host.split('.') {
        if label.is_empty() {
            return Err("has a host with an empty label".into());
        }
        if label.len() > LABEL_BYTES_MAX {
            return Err(format!(
                "has a label of {} bytes, at most {LABEL_BYTES_MAX} are allowed",
                label.len()
            ));
        }
        if let Some(c) = label
            .chars()
            .find(|c| !c.is_ascii_alphanumeric() && *c != '-')
        {
            return Err(format!(
                "has the character {c:?} in its host; only letters, digits, `-` and dots are allowed"
            ));
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err("has a label that starts or ends with `-`".into());
        }
    }
    let host = host.to_ascii_lowercase();
    let last = host.rsplit('.').next().unwrap_or(&host);
    let hex = last
        .strip_prefix("0x")
        .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()));
    if hex || last.bytes().all(|b| b.is_ascii_digit()) {
        return Err("names an IP address; only DNS names are allowed".into());
    }
    Ok(host)
}

impl fmt::Display for NetworkPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.wildcard { "*." } else { "" };
        write!(f, "{}://{star}{}", self.scheme.as_str(), self.host)?;
        if self.port == self.scheme.default_port() {
            Ok(())
        } else {
            write!(f, ":{}", self.port)
        }
    }
}

impl std::str::FromStr for NetworkPattern {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        NetworkPattern::parse(text)
    }
}

impl serde::Serialize for NetworkPattern {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for NetworkPattern {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        NetworkPattern::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_declared_has_few_labels() {
        let of_labels = |count| format!("https://*.{}", vec!["a"; count].join("."));
        let (most, more) = (
            of_labels(DECLARED_LABELS_MAX),
            of_labels(DECLARED_LABELS_MAX + 1),
        );
        assert!(NetworkPattern::parse_declared(&most).is_ok());
        let error = NetworkPattern::parse_declared(&more).unwrap_err();
        assert!(error.rule.contains("more than 16 labels"), "{error}");
        // Where a program connects to below the wildcard is its own affair.
        assert!(NetworkPattern::parse(&more).is_ok());
    }

    #[test]
    fn good() {
        let label = format!("https://{}.com", "a".repeat(63));
        let host = format!("https://{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(61));
        let below = format!("https://*.{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(59));
        for (text, canonical) in [
            ("https://*.salesforce.com", "https://*.salesforce.com"),
            ("https://api.salesforce.com", "https://api.salesforce.com"),
            ("https://api.stripe.com", "https://api.stripe.com"),
            ("https://a.com/", "https://a.com"),
            ("HTTPS://Api.Example.COM:443/", "https://api.example.com"),
            ("http://a.com:80", "http://a.com"),
            ("http://a.com:443", "http://a.com:443"),
            ("https://a.com:8443", "https://a.com:8443"),
            ("https://*.a.com:65535/", "https://*.a.com:65535"),
            ("http://localhost:9", "http://localhost:9"),
            (
                "https://xn--bcher-kva.example",
                "https://xn--bcher-kva.example",
            ),
            ("https://3com.com", "https://3com.com"),
            ("https://1.2.3.4a", "https://1.2.3.4a"),
            (&label, &label),
            (&host, &host),
            (&below, &below),
        ] {
            let p = NetworkPattern::parse(text).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(p.to_string(), canonical);
            assert_eq!(NetworkPattern::parse(canonical).unwrap(), p);
        }
    }

    #[test]
    fn bad() {
        let label = format!("https://{}.com", "a".repeat(64));
        let host = format!("https://{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(62));
        let below = format!("https://*.{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(60));
        for text in [
            "",
            "*",
            "https://",
            "https:///",
            "https://*",
            "https://*.",
            "https://*.com",
            "https://**.a.com",
            "https://a.*.com",
            "https://*a.com",
            "https://a*.com",
            "https://*.*.a.com",
            "https://*.*",
            "a.com",
            "//a.com",
            "://a.com",
            "ftp://a.com",
            "wss://a.com",
            "file:///etc/passwd",
            "https:/a.com",
            "https//a.com",
            "*://a.com",
            "https://a.com/v1",
            "https://a.com//",
            "https://a.com/*",
            "https://a.com?x",
            "https://a.com/?",
            "https://a.com?",
            "https://a.com#",
            "https://a.com#x",
            "https://a.com/#",
            "https://u@a.com",
            "https://u:p@a.com",
            "https://a.com@evil.com",
            "https://a.com:",
            "https://a.com:0",
            "https://a.com:65536",
            "https://a.com:0443",
            "https://a.com:+443",
            "https://a.com:443x",
            "https://a.com:*",
            "https://a.com: 443",
            "https://a.com:443:1",
            "https://:443",
            "https://127.0.0.1",
            "https://127.1",
            "https://2130706433",
            "https://0x7f.1",
            "https://0x7f000001",
            "https://a.0x",
            "https://0",
            "https://0177.0.0.1",
            "https://[::1]",
            "https://[::1]:443",
            "https://::1",
            "https://*.1.2.3.4",
            "https://169.254.169.254",
            "https://a.com.",
            "https://*.a.com.",
            "https://.a.com",
            "https://a..com",
            "https://-a.com",
            "https://a-.com",
            "https://a_b.com",
            "https://bücher.example",
            "https://ａ.com",
            "https://a。com",
            "https://①.com",
            "https://a com",
            " https://a.com",
            "https://a.com ",
            "https://a.com\n",
            "https://a\0.com",
            "https://a\t.com",
            "https://a%2ecom",
            "https://a\\b.com",
            "https://a.com,b.com",
            "https://evil.com:443.allowed.com",
            &label,
            &host,
            &below,
        ] {
            assert!(NetworkPattern::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("https://", "has no host"),
            ("https://*.", "has no host"),
            ("https://u@a.com", "has a user name"),
            ("https://[a]", "names an IP address"),
            ("https://::1", "names an IP address"),
            ("https://a.com:443:1", "names an IP address"),
            ("https://a.com:", "has a bad port"),
            ("https://a.com.", "has a host with a trailing dot"),
            ("https://a..com", "has a host with an empty label"),
        ] {
            let error = NetworkPattern::parse(text).unwrap_err();
            assert!(error.rule.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn fields() {
        let p = NetworkPattern::parse("https://*.api.example.com:8443").unwrap();
        assert_eq!(
            (p.scheme(), p.host(), p.wildcard(), p.port()),
            (Scheme::Https, "api.example.com", true, 8443)
        );
        assert_eq!(
            p.suffixes().collect::<Vec<_>>(),
            ["api.example.com", "example.com", "com"]
        );
        assert_eq!(
            NetworkPattern::parse("http://localhost")
                .unwrap()
                .suffixes()
                .collect::<Vec<_>>(),
            ["localhost"]
        );
        assert!(
            NetworkPattern::parse("https://bücher.example")
                .unwrap_err()
                .to_string()
                .contains("xn--")
        );
        assert_eq!(
            serde_json::to_value(&p).unwrap(),
            "https://*.api.example.com:8443"
        );
    }

    #[test]
    fn matching() {
        use Scheme::{Http, Https};
        let long = format!(
            "{}.{}.{}.{}.a.com",
            "a".repeat(63),
            "b".repeat(63),
            "c".repeat(63),
            "d".repeat(63)
        );
        for (pattern, scheme, host, port, want) in [
            ("https://*.a.com", Https, "x.a.com", 443, true),
            ("https://*.a.com", Https, "acme.my.a.com", 443, true),
            ("https://*.a.com", Https, "a.com", 443, false),
            ("https://*.a.com", Https, ".a.com", 443, false),
            ("https://*.a.com", Https, "xa.com", 443, false),
            ("https://*.a.com", Https, "x.a.com.evil.io", 443, false),
            ("https://*.a.com", Https, "x..a.com", 443, false),
            ("https://*.a.com", Https, "X.a.com", 443, false),
            ("https://*.a.com", Https, "x.a.com.", 443, false),
            ("https://*.a.com", Https, "evil.io/.a.com", 443, false),
            ("https://*.a.com", Https, "evil.io\0.a.com", 443, false),
            ("https://*.a.com", Https, "x.a.com", 8443, false),
            ("https://*.a.com", Http, "x.a.com", 443, false),
            ("https://*.a.com", Https, &long, 443, false),
            ("https://*.a.com", Https, "127.0.0.1.a.com", 443, true),
            ("https://*.a.com", Https, "123456789012.a.com", 443, true),
            ("https://*.a.com", Https, "a.2024.a.com", 443, true),
            ("https://*.a.com", Https, "0x1f.a.com", 443, true),
            ("https://*.a.com", Https, "-.a.com", 443, false),
            ("https://*.a.com", Https, " .a.com", 443, false),
            ("https://*.a.com", Https, ".x.a.com", 443, false),
            ("https://a.com", Https, "a.com", 443, true),
            ("https://a.com", Https, "x.a.com", 443, false),
            ("https://a.com", Https, "A.com", 443, false),
            ("https://a.com", Https, "", 443, false),
            ("http://a.com", Http, "a.com", 80, true),
            ("http://a.com", Https, "a.com", 80, false),
        ] {
            assert_eq!(
                NetworkPattern::parse(pattern)
                    .unwrap()
                    .matches(scheme, host, port),
                want,
                "{pattern} {scheme:?} {host} {port}"
            );
        }
    }
}
