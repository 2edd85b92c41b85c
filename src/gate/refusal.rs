//! Why the gate refuses, in words for the run: what is missing, and who can give it. No address of anybody's.

use std::fmt;

use skillgate_skill::network::{NetworkPattern, Scheme};

use super::target::Target;

/// Granted patterns that a text lists at most.
const LISTED_MAX: usize = 20;

/// Why a request or a connection was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is not what a proxy takes.
    BadRequest(String),
    /// It names no host that the gate could compare.
    BadHost(String),
    /// It is for the gate itself, which serves nothing.
    NotAProxyRequest,
    /// `https://` without CONNECT.
    HttpsWithoutConnect,
    /// No pattern covers it.
    NotGranted {
        target: Target,
        granted: Vec<NetworkPattern>,
    },
    /// There is no such name, or nobody who could say it has answered.
    NoSuchHost(Target),
    /// An address of it must not be dialled.
    Address(Target),
    /// It does not answer.
    Unreachable(Target),
    /// It did not answer in time.
    Timeout(Target),
    /// It ended the connection without an answer.
    NoAnswer(Target),
    /// What it answered cannot be passed on.
    BadAnswer(Target),
    /// The gateway has too many connections, or no file for another one.
    Busy,
    /// The runs of the tenant have made too many connections one after the other.
    TooFast,
    /// Connections cannot be recorded, so none is made.
    NoRecord,
    /// The run has moved as many bytes as it may.
    BytesSpent,
}

impl Refusal {
    /// The status of the answer.
    pub(super) fn status(&self) -> u16 {
        match self {
            Refusal::BadRequest(_) | Refusal::BadHost(_) | Refusal::HttpsWithoutConnect => 400,
            Refusal::NotAProxyRequest => 404,
            Refusal::NotGranted { .. } | Refusal::Address(_) | Refusal::BytesSpent => 403,
            Refusal::NoSuchHost(_)
            | Refusal::Unreachable(_)
            | Refusal::NoAnswer(_)
            | Refusal::BadAnswer(_) => 502,
            Refusal::Busy | Refusal::TooFast | Refusal::NoRecord => 503,
            Refusal::Timeout(_) => 504,
        }
    }

    /// The stable word for it, in answers and records.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Refusal::BadRequest(_) => "bad_request",
            Refusal::BadHost(_) => "bad_host",
            Refusal::NotAProxyRequest => "not_a_proxy_request",
            Refusal::HttpsWithoutConnect => "https_without_connect",
            Refusal::NotGranted { .. } => "network.not_granted",
            Refusal::NoSuchHost(_) => "no_such_host",
            Refusal::Address(_) => "network.denied_address",
            Refusal::Unreachable(_) => "unreachable",
            Refusal::Timeout(_) => "timeout",
            Refusal::NoAnswer(_) => "no_answer",
            Refusal::BadAnswer(_) => "bad_answer",
            Refusal::Busy | Refusal::TooFast => "busy",
            Refusal::NoRecord => "not_recorded",
            Refusal::BytesSpent => "bytes_spent",
        }
    }

    /// What was refused, where a target is known.
    pub(super) fn target(&self) -> Option<&Target> {
        match self {
            Refusal::NotGranted { target, .. }
            | Refusal::NoSuchHost(target)
            | Refusal::Address(target)
            | Refusal::Unreachable(target)
            | Refusal::Timeout(target)
            | Refusal::NoAnswer(target)
            | Refusal::BadAnswer(target) => Some(target),
            _ => None,
        }
    }

    /// The first sentence: short and in ASCII, since it is also the reason phrase of the status line, which is all that
    /// some clients show of an answer to CONNECT.
    pub(super) fn headline(&self) -> String {
        let text = match self {
            Refusal::BadRequest(why) => format!("the gate does not take this request: {why}"),
            Refusal::BadHost(why) => format!("the gate cannot use this host: {why}"),
            Refusal::NotAProxyRequest => "this is the run's gate: an HTTP proxy that serves no pages of its own".into(),
            Refusal::HttpsWithoutConnect => "https through the gate needs CONNECT: use a client that opens tunnels".into(),
            Refusal::NotGranted { target, .. } => format!(
                "{target} is not granted to this run: permissions.network must name it and the gateway's policy must grant it"
            ),
            Refusal::NoSuchHost(target) => format!("{} has no address that the gateway could find", target.host()),
            Refusal::Address(target) => format!(
                "{} leads to an address that this gateway does not connect to; only its operator can allow it",
                target.host()
            ),
            Refusal::Unreachable(target) => format!("{target} cannot be reached"),
            Refusal::Timeout(target) => format!("{target} did not answer in time"),
            Refusal::NoAnswer(target) => format!("{target} ended the connection before it had answered"),
            Refusal::BadAnswer(target) => format!(
                "{target} gave an answer that is not taken: no HTTP, a change of protocol, or a head that is too large"
            ),
            Refusal::Busy => "the gateway has too many connections open; try again in a second".into(),
            Refusal::TooFast => "this tenant's runs make connections too fast; try again in a second, and send more over each".into(),
            Refusal::NoRecord => "the gateway cannot record connections now, so it makes none; its operator has to mend the audit log".into(),
            Refusal::BytesSpent => "this run has sent or received as many bytes as it may; only the gateway's operator can raise the limit".into(),
        };
        text.chars()
            .map(|c| {
                if c.is_ascii_graphic() || c == ' ' {
                    c
                } else {
                    '?'
                }
            })
            .collect()
    }
}

/// The whole text.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.headline())?;
        let Refusal::NotGranted { target, granted } = self else {
            return Ok(());
        };
        if granted.is_empty() {
            f.write_str(" It may reach no host.")?;
        } else {
            f.write_str(" It may reach:")?;
            for pattern in granted.iter().take(LISTED_MAX) {
                write!(f, " {pattern}")?;
            }
            if granted.len() > LISTED_MAX {
                write!(f, " and {} more", granted.len() - LISTED_MAX)?;
            }
            f.write_str(".")?;
        }
        write!(
            f,
            " To change that: the skill's author adds \"{target}\" to permissions.network in skill.toml, and whoever \
             administers this gateway's policy grants it; nothing inside the run can."
        )?;
        if target.scheme() == Scheme::Https
            && granted
                .iter()
                .any(|p| p.host() == target.host() && p.scheme() == Scheme::Http)
        {
            f.write_str(" Scheme and port count: what is granted is http.")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_granted(scheme: Scheme, authority: &str, granted: &[&str]) -> String {
        let patterns = granted.iter().map(|text| NetworkPattern::parse(text));
        let refusal = Refusal::NotGranted {
            target: Target::parse(scheme, authority).unwrap(),
            granted: patterns.map(Result::unwrap).collect(),
        };
        refusal.to_string()
    }

    #[test]
    fn a_headline_is_one_line_of_ascii() {
        let refusal = Refusal::BadHost("a\r\nb \u{e9}\u{202e}".into());
        assert_eq!(refusal.headline(), "the gate cannot use this host: a??b ??");
    }

    #[test]
    fn whoever_is_granted_the_host_by_http_alone_hears_that_the_scheme_counts() {
        let (http, https) = (Scheme::Http, Scheme::Https);
        for (scheme, authority, granted, is_told) in [
            (https, "a.example", "http://a.example", true),
            (https, "a.example", "http://b.example", false),
            (https, "a.example:8443", "https://a.example", false),
            (http, "a.example:8080", "http://a.example", false),
        ] {
            let said = not_granted(scheme, authority, &[granted]);
            let is_said = said.ends_with(" Scheme and port count: what is granted is http.");
            assert_eq!(is_said, is_told, "{said}");
        }
    }

    #[test]
    fn of_many_patterns_some_are_listed() {
        let all: Vec<String> = (0..=LISTED_MAX)
            .map(|n| format!("https://h{n}.example"))
            .collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let said = |granted| not_granted(Scheme::Https, "a.example", granted);
        let listed = said(&all[..LISTED_MAX]);
        assert!(
            listed.contains(" https://h19.example. To change"),
            "{listed}"
        );
        let listed = said(&all);
        assert!(
            listed.contains(" https://h19.example and 1 more. To"),
            "{listed}"
        );
    }
}
