//! What a run may reach: made from a permit when the run starts, narrowed when the rules change, never widened.

use std::borrow::Cow;
use std::sync::Arc;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ipnet::IpNet;
use skillgate_skill::network::NetworkPattern;

use super::target::Target;
use crate::secrets::Redactor;

/// Why a permit's texts make no grant. A run that has one is not started: nothing is guessed.
#[derive(Debug, thiserror::Error)]
#[error("the grant of a run cannot be read: {0}")]
pub struct BadGrant(String);

/// What one run may reach.
#[derive(Debug, Clone)]
pub struct Grant {
    /// Whose it is.
    pub run_id: String,
    /// Whose run it is.
    pub tenant: String,
    /// The decision that granted it, or the last one that took something of it.
    pub decision_id: String,
    patterns: Vec<NetworkPattern>,
    globs: GlobSet,
    deny: Vec<IpNet>,
    /// Of the secrets that the run has.
    redactor: Option<Arc<Redactor>>,
}

impl Grant {
    /// From a permit's lists: `network` in the form of `permissions.network`, `deny_cidrs` as addresses or CIDRs.
    ///
    /// # Errors
    /// [`BadGrant`] when one of them is not what it should be.
    pub fn new(
        run_id: &str,
        tenant: &str,
        decision_id: &str,
        network: &[String],
        deny_cidrs: &[String],
    ) -> Result<Grant, BadGrant> {
        let patterns = network
            .iter()
            .map(|text| NetworkPattern::parse(text).map_err(|e| BadGrant(e.to_string())))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Grant {
            run_id: run_id.to_owned(),
            tenant: tenant.to_owned(),
            decision_id: decision_id.to_owned(),
            globs: globs(&patterns)?,
            patterns,
            deny: deny_cidrs
                .iter()
                .map(|text| cidr(text))
                .collect::<Result<_, _>>()?,
            redactor: None,
        })
    }

    /// The same for a run that has secrets: they stand in no record of the hosts that it asks for.
    #[must_use]
    pub fn hiding(self, redactor: Option<Arc<Redactor>>) -> Self {
        Grant { redactor, ..self }
    }

    /// A host as it may be written down.
    pub(super) fn plain<'a>(&self, host: &'a str) -> Cow<'a, str> {
        match &self.redactor {
            Some(redactor) => redactor.uncut(host),
            None => Cow::Borrowed(host),
        }
    }

    /// The patterns, in canonical form.
    pub fn patterns(&self) -> &[NetworkPattern] {
        &self.patterns
    }

    pub(super) fn deny(&self) -> &[IpNet] {
        &self.deny
    }

    /// Whether a target is granted. The glob finds the pattern, the pattern's own rule has the last word: a glob's `*`
    /// may be empty, a label may not.
    pub(super) fn allows(&self, target: &Target) -> bool {
        let text = format!(
            "{}://{}:{}",
            target.scheme().as_str(),
            target.host(),
            target.port()
        );
        self.globs
            .matches(text)
            .into_iter()
            .any(|at| self.patterns[at].matches(target.scheme(), target.host(), target.port()))
    }

    /// What is left of this grant under what would be granted now: patterns that both have, addresses that either denies.
    /// A decision that takes something of it is its own from then on. One that takes nothing is not: it may grant what the run
    /// has lost before, and the records would name it as what refused that.
    pub(super) fn narrowed(&self, now: &Regrant) -> Result<Grant, BadGrant> {
        let mut deny = self.deny.clone();
        for text in &now.deny_cidrs {
            let range = cidr(text)?;
            if !deny.iter().any(|denied| denied.contains(&range)) {
                deny.push(range);
            }
        }
        let patterns: Vec<_> = self
            .patterns
            .iter()
            .filter(|pattern| {
                now.network
                    .iter()
                    .any(|text| NetworkPattern::parse(text).as_ref() == Ok(*pattern))
            })
            .cloned()
            .collect();
        let takes = patterns.len() < self.patterns.len() || deny.len() > self.deny.len();
        let decided = if takes {
            now.decision_id.as_str()
        } else {
            &self.decision_id
        };
        Ok(Grant {
            decision_id: decided.to_owned(),
            globs: globs(&patterns)?,
            patterns,
            deny,
            ..self.clone()
        })
    }
}

/// What a run would be granted by rules that have just come into force.
#[derive(Debug, Clone, Default)]
pub struct Regrant {
    /// The decision that grants it, or nothing.
    pub decision_id: String,
    /// As in a permit.
    pub network: Vec<String>,
    /// As in a permit.
    pub deny_cidrs: Vec<String>,
}

fn globs(patterns: &[NetworkPattern]) -> Result<GlobSet, BadGrant> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let star = if pattern.wildcard() { "*." } else { "" };
        let (scheme, host, port) = (
            pattern.scheme().as_str(),
            globset::escape(pattern.host()),
            pattern.port(),
        );
        let glob = GlobBuilder::new(&format!("{scheme}://{star}{host}:{port}"))
            .literal_separator(true)
            .build()
            .map_err(|e| BadGrant(e.to_string()))?;
        set.add(glob);
    }
    set.build().map_err(|e| BadGrant(e.to_string()))
}

/// A CIDR, or an address, which stands for itself.
fn cidr(text: &str) -> Result<IpNet, BadGrant> {
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from))
        .map_err(|_| {
            BadGrant(format!(
                "{:?} in deny_cidrs is no address range",
                crate::json::short(text)
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use skillgate_skill::network::Scheme;

    fn grant(network: &[&str], deny: &[&str]) -> Result<Grant, BadGrant> {
        let own = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        Grant::new("run_1", "default", "dec_1", &own(network), &own(deny))
    }

    fn allows(grant: &Grant, scheme: Scheme, authority: &str) -> bool {
        Target::parse(scheme, authority).is_ok_and(|target| grant.allows(&target))
    }

    #[test]
    fn patterns_hold_exactly() {
        use Scheme::{Http, Https};
        let g = grant(
            &[
                "https://a.com",
                "https://*.b.com",
                "http://c.com:8080",
                "https://[x].d.com",
            ],
            &[],
        );
        assert!(g.is_err(), "not a pattern");
        let g = grant(
            &["https://a.com", "https://*.b.com", "http://c.com:8080"],
            &[],
        )
        .unwrap();
        for (scheme, authority, want) in [
            (Https, "a.com:443", true),
            (Https, "A.COM:443", true),
            (Https, "a.com:444", false),
            (Http, "a.com:443", false),
            (Https, "x.a.com:443", false),
            (Https, "xa.com:443", false),
            (Https, "a.com.evil.io:443", false),
            (Https, "b.com:443", false),
            (Https, "x.b.com:443", true),
            (Https, "y.x.b.com:443", true),
            (Https, "xb.com:443", false),
            (Https, ".b.com:443", false),
            (Https, "x.b.com:8443", false),
            (Http, "x.b.com", false),
            (Http, "c.com:8080", true),
            (Http, "c.com", false),
            (Https, "c.com:8080", false),
            (Https, "evil.com:443", false),
        ] {
            assert_eq!(
                allows(&g, scheme, authority),
                want,
                "{scheme:?} {authority}"
            );
        }
        assert!(
            !allows(&grant(&[], &[]).unwrap(), Https, "a.com:443"),
            "an empty list is none"
        );
    }

    #[test]
    fn a_range_that_is_none_makes_no_grant() {
        for bad in ["10.0.0.0/33", "10.0.0", "", "example.com", "10.0.0.0/8 "] {
            assert!(grant(&["https://a.com"], &[bad]).is_err(), "{bad:?}");
        }
        assert_eq!(
            grant(&[], &["10.0.0.1"]).unwrap().deny()[0].to_string(),
            "10.0.0.1/32"
        );
    }

    #[test]
    fn a_change_narrows_and_never_widens() {
        let old = grant(&["https://a.com", "https://b.com"], &["10.0.0.0/8"]).unwrap();
        let now = Regrant {
            decision_id: "dec_2".into(),
            network: vec!["https://B.com/".into(), "https://c.com".into()],
            deny_cidrs: vec!["11.0.0.0/8".into()],
        };
        let left = old.narrowed(&now).unwrap();
        assert_eq!(
            left.patterns()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            ["https://b.com"]
        );
        assert_eq!(left.deny().len(), 2);
        assert_eq!(left.decision_id, "dec_2");
        assert!(!allows(&left, Scheme::Https, "a.com:443"));
        assert!(!allows(&left, Scheme::Https, "c.com:443"));
        assert!(allows(&left, Scheme::Https, "b.com:443"));
        assert!(
            old.narrowed(&Regrant {
                deny_cidrs: vec!["x".into()],
                ..now
            })
            .is_err()
        );
    }

    /// The records name a decision that says what they say: one that has given back what an earlier one took has not.
    #[test]
    fn a_decision_that_takes_nothing_is_not_the_grants() {
        let old = grant(&["https://a.com", "https://b.com"], &["10.0.0.0/8"]).unwrap();
        let now = |decision_id: &str, network: &[&str], deny: &[&str]| Regrant {
            decision_id: decision_id.into(),
            network: network.iter().map(|text| (*text).to_owned()).collect(),
            deny_cidrs: deny.iter().map(|text| (*text).to_owned()).collect(),
        };
        let both = ["https://a.com", "https://b.com"];
        let same = old
            .narrowed(&now("dec_2", &both, &["10.1.0.0/16"]))
            .unwrap();
        assert_eq!((same.decision_id.as_str(), same.deny().len()), ("dec_1", 1));
        let denies = old.narrowed(&now("dec_3", &both, &["11.0.0.1"])).unwrap();
        assert_eq!(denies.decision_id, "dec_3");
        let one = old.narrowed(&now("dec_4", &both[..1], &[])).unwrap();
        let back = one.narrowed(&now("dec_5", &both, &[])).unwrap();
        assert_eq!(
            (back.decision_id.as_str(), back.patterns().len()),
            ("dec_4", 1)
        );
    }
}
