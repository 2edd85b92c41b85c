//! What a request of a run names: scheme, host, port. Read by the same grammar as a pattern of `permissions.network`,
//! so that manifest, policy and gate have one definition of a host.
//!
//! The grammar is the part of the WHATWG host parser's input that the parser leaves as it is, but for the case: a host
//! that it would change (percent-encoding, full-width and ideographic dots, names outside ASCII, numbers in any base)
//! or that means something else elsewhere (a trailing dot, an empty label, an IP address, a zone) is refused with the
//! reason, never rewritten. So there is one spelling, and what is compared, resolved and expected in TLS is the same.

use skillgate_skill::network::{NetworkPattern, Scheme};

/// A host that may be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target(NetworkPattern);

impl Target {
    /// From `host:port`. Without a port it is the scheme's. The error is a sentence for the run.
    pub(super) fn parse(scheme: Scheme, authority: &str) -> Result<Target, String> {
        let text = format!("{}://{authority}", scheme.as_str());
        let parsed =
            NetworkPattern::parse(&text).map_err(|e| format!("{} {}", e.pattern, e.rule))?;
        if parsed.wildcard() {
            return Err("a wildcard stands in patterns, not in requests; name the host".into());
        }
        if authority.contains('/') {
            return Err("the request has a path where only a host belongs".into());
        }
        Ok(Target(parsed))
    }

    pub(super) fn scheme(&self) -> Scheme {
        self.0.scheme()
    }

    pub(super) fn host(&self) -> &str {
        self.0.host()
    }

    pub(super) fn port(&self) -> u16 {
        self.0.port()
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling() {
        let parse = |authority| Target::parse(Scheme::Https, authority).map(|t| t.to_string());
        for (authority, want) in [
            ("a.com", "https://a.com"),
            ("a.com:443", "https://a.com"),
            ("A.Com:8443", "https://a.com:8443"),
            ("xn--bcher-kva.example:443", "https://xn--bcher-kva.example"),
        ] {
            assert_eq!(parse(authority).unwrap(), want);
        }
        for authority in [
            "",
            ":443",
            "a.com:",
            "a.com:0",
            "a.com:00443",
            "a.com:65536",
            "a.com:443x",
            "a.com:443:1",
            "a.com.:443",
            ".a.com:443",
            "a..com:443",
            "*.a.com:443",
            "*:443",
            "u@a.com:443",
            "a.com@b.com",
            "a%2ecom:443",
            "a.com%00.b.com:443",
            "a。com:443",
            "a.com/:443",
            "a.com/",
            "a.com#:443",
            "a.com?:443",
            "a.com\\b.com:443",
            "a.com\0:443",
            "a.com\r\nb:443",
            "a.com :443",
            " a.com:443",
            "a.com\t:443",
            "127.0.0.1:443",
            "127.1:443",
            "0x7f.1:443",
            "2130706433:443",
            "017700000001:443",
            "0:443",
            "1.2.3.4.:443",
            "[::1]:443",
            "[::ffff:127.0.0.1]:443",
            "[fe80::1%25lo]:443",
            "::1",
            "a_b.com:443",
            "-a.com:443",
            "a.com:+443",
            "a.com:４４３",
            "ａ.com:443",
            "①.com:443",
        ] {
            assert!(parse(authority).is_err(), "{authority:?}");
        }
    }
}
