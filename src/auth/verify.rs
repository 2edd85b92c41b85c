//! Whether a token is to be believed: RFC 7519 section 7.2, RFC 8725 section 3 and RFC 9068 section 4, in an order in
//! which nothing is believed before the signature holds but the name of the issuer whose keys are asked.

use std::collections::HashMap;
use std::sync::{Arc, Once};

use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};

use super::cache::{self, Cache, Generation};
use super::claims::{CLIENT_CLAIMS, Mapping};
use super::clock::{Clock, Now};
use super::crypto;
use super::jwks::Keys;
use super::keys::{KeySet, Signed};
use super::refused::Refused;
use super::token::{TOKEN_BYTES_MAX, Token};
use super::{Lapsed, Subject};
use crate::config::{self, TokenType};

/// Latest moment that a claim may name: the end of the year 9999. Beyond it is a mistake or an attack on arithmetic.
const TIME_MAX_S: u64 = 253_402_300_799;

/// Somebody who may issue tokens.
#[derive(Debug)]
pub(super) struct Issuer {
    pub(super) keys: Keys,
    pub(super) algorithms: Vec<Algorithm>,
    audiences: Vec<String>,
    token_types: Vec<TokenType>,
    authorized_parties: Vec<String>,
    leeway_s: u64,
    mapping: Mapping,
}

impl Issuer {
    pub(super) fn new(config: &config::Issuer, keys: Keys) -> Self {
        Issuer {
            keys,
            algorithms: algorithms(config),
            audiences: config.audiences.clone(),
            token_types: config.token_types.clone(),
            authorized_parties: config.authorized_parties.clone(),
            leeway_s: config.leeway_s,
            mapping: Mapping::new(config),
        }
    }
}

/// The algorithms that an issuer may use.
pub(super) fn algorithms(config: &config::Issuer) -> Vec<Algorithm> {
    // The configuration takes no names but those that this reads.
    config
        .algorithms
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect()
}

/// Verifies tokens.
#[derive(Debug)]
pub(super) struct Verifier {
    issuers: HashMap<String, Issuer>,
    cache: Cache,
    generation: Generation,
    clock: Clock,
    /// That the clock is not set has been said.
    said: Once,
}

impl Verifier {
    /// `generation` is the one that the issuers' keys advance.
    pub(super) fn new(
        issuers: HashMap<String, Issuer>,
        cache_entries: usize,
        generation: Generation,
        clock: Clock,
    ) -> Self {
        Verifier {
            issuers,
            cache: Cache::new(cache_entries, generation.clone()),
            generation,
            clock,
            said: Once::new(),
        }
    }

    pub(super) fn issuers(&self) -> &HashMap<String, Issuer> {
        &self.issuers
    }

    #[cfg(test)]
    pub(super) fn cached(&self) -> usize {
        self.cache.len()
    }

    /// Whom a token is for.
    pub(super) async fn verify(&self, text: &str) -> Result<Arc<Subject>, Refused> {
        // Before the hash is made of it.
        if text.len() > TOKEN_BYTES_MAX {
            return Err(Refused::TooLong);
        }
        let now = self.clock.now();
        if !self.is_set(now) {
            return Err(Refused::ClockUnset);
        }
        let digest = cache::digest(text);
        if let Some(subject) = self.cache.get(&digest, now.unix_s)
            && self.has_keys_of(&subject.issuer)
        {
            return Ok(subject);
        }
        let generation = self.generation.current();
        let subject = Arc::new(self.verify_anew(text, now).await?);
        self.cache.put(digest, &subject, generation);
        Ok(subject)
    }

    /// Whether the keys of an issuer may be used. Asked for a token that was verified before, too: it is no better than they
    /// are, and where no other tokens come nobody else would see to it that they are fetched again.
    fn has_keys_of(&self, issuer: &str) -> bool {
        self.issuers
            .get(issuer)
            .is_some_and(|issuer| match &issuer.keys {
                Keys::Fixed(..) => true,
                Keys::Withdrawn { .. } => false,
                Keys::Remote(remote) => remote.tend().is_some(),
            })
    }

    /// Why a token that was good is taken no more: what a request with it would hear that came now, as far as time and keys go.
    /// Asks nobody and waits for nobody, so that everything that begins late can ask.
    pub(super) fn lapsed(&self, subject: &Subject) -> Option<Lapsed> {
        let now = self.clock.now();
        if !self.is_set(now) {
            return Some(Lapsed::ClockUnset);
        }
        let expires_s = subject.accepted_until_s;
        if expires_s.is_some_and(|until| now.unix_s >= until) {
            return Some(Lapsed::Expired);
        }
        let signed = subject.signed.as_ref()?;
        let issuer = self.issuers.get(&subject.issuer);
        let Some(issuer) = issuer.filter(|it| it.algorithms.contains(&signed.algorithm())) else {
            return Some(Lapsed::Withdrawn);
        };
        let is_trusted = match &issuer.keys {
            Keys::Fixed(set, _) => set.would_try(signed),
            Keys::Withdrawn { .. } => false,
            Keys::Remote(remote) => match remote.usable() {
                Some(held) => held.set.would_try(signed),
                None => return Some(Lapsed::KeysUnavailable),
            },
        };
        (!is_trusted).then_some(Lapsed::Withdrawn)
    }

    pub(super) fn tells_time(&self) -> bool {
        self.is_set(self.clock.now())
    }

    /// Whether the clock can tell what has expired. That it cannot is said once: callers come as often as they like.
    fn is_set(&self, now: Now) -> bool {
        if !now.is_set() {
            self.said.call_once(|| {
                tracing::warn!(
                    unix_s = now.unix_s,
                    "this machine's clock is not set: no token is taken before it is; start after time-sync.target"
                );
            });
        }
        now.is_set()
    }

    /// Has keys fetched that are missing or no longer fresh.
    pub(super) fn tend(&self) {
        for issuer in self.issuers.values() {
            if let Keys::Remote(remote) = &issuer.keys {
                remote.tend();
            }
        }
    }

    async fn verify_anew(&self, text: &str, now: Now) -> Result<Subject, Refused> {
        let token = Token::read(text)?;
        // Byte by byte (RFC 7519 section 4.1.1): no trailing slash more or less.
        let name = token
            .claims
            .get("iss")
            .and_then(Value::as_str)
            .ok_or(Refused::Issuer)?;
        let issuer = self.issuers.get(name).ok_or(Refused::Issuer)?;
        if !issuer.algorithms.contains(&token.algorithm) {
            return Err(Refused::Algorithm);
        }
        let by = |set: &KeySet| {
            set.candidates(token.kid.as_deref(), token.algorithm)
                .find(|key| {
                    crypto::verifies(
                        token.algorithm,
                        key.decoding(),
                        token.signed,
                        token.signature,
                    )
                })
                .map(|key| Signed::new(&token, key))
        };
        let signed = match &issuer.keys {
            Keys::Fixed(set, _) => by(set),
            Keys::Withdrawn { .. } => None,
            Keys::Remote(remote) => {
                let before = remote.tend();
                let signed = before.as_ref().and_then(|held| by(&held.set));
                match before {
                    _ if signed.is_some() => signed,
                    // The key that it names is here, and has not signed it.
                    Some(held) if held.set.names(token.kid.as_deref(), token.algorithm) => None,
                    // It may be by a new key: one without a name that is here and fits says nothing against that.
                    before => {
                        let after = remote.ask().await?;
                        let same = before.is_some_and(|before| before.set.same_as(&after.set));
                        if same { None } else { by(&after.set) }
                    }
                }
            }
        };
        let signed = Some(signed.ok_or(Refused::Signature)?);
        let subject = issuer.subject(name, &token, now)?;
        Ok(Subject { signed, ..subject })
    }
}

impl Issuer {
    /// The claims of a token that this issuer has signed.
    fn subject(&self, name: &str, token: &Token<'_>, now: Now) -> Result<Subject, Refused> {
        let claims = &token.claims;
        self.check_kind(token)?;
        let expires_s = self.check_times(claims, now)?;
        self.check_audience(claims)?;
        // RFC 8705 section 3, RFC 9449 section 6: only with a proof, which nobody checks here.
        if claims.contains_key("cnf") {
            return Err(Refused::Bound);
        }
        self.check_party(claims)?;
        // Required whatever claim names the caller (RFC 9068 section 2.2).
        match claims.get("sub") {
            None => return Err(Refused::Lacks("subject (sub)")),
            Some(Value::String(_)) => {}
            Some(_) => return Err(Refused::Claim("sub".to_owned(), "a string")),
        }
        let accepted_until_s = Some(expires_s + self.leeway_s);
        let subject = self.mapping.subject(name, claims, expires_s)?;
        Ok(Subject {
            accepted_until_s,
            ..subject
        })
    }

    /// That it is an access token: an ID token says who somebody is to a client, and lets nobody in anywhere (RFC 8725
    /// section 3.11, RFC 9068 section 4).
    fn check_kind(&self, token: &Token<'_>) -> Result<(), Refused> {
        let kind = match token.kind.as_deref() {
            None => TokenType::Absent,
            // A media type, in any case of letters, its `application/` left out or not (RFC 7515 section 4.1.9).
            Some(typ) => match typ.to_ascii_lowercase().as_str() {
                "at+jwt" | "application/at+jwt" => TokenType::AtJwt,
                "jwt" | "application/jwt" => TokenType::Jwt,
                _ => return Err(Refused::Kind("its typ is another one")),
            },
        };
        if !self.token_types.contains(&kind) {
            return Err(Refused::Kind("its typ is not accepted from its issuer"));
        }
        let claims = &token.claims;
        // What issuers write that give every token the same typ: Keycloak in `typ`, Cognito in `token_use`.
        for (claim, words) in [
            ("typ", ["bearer", "at+jwt"].as_slice()),
            ("token_use", &["access"]),
        ] {
            if let Some(value) = claims.get(claim) {
                let known = value
                    .as_str()
                    .is_some_and(|text| words.contains(&text.to_ascii_lowercase().as_str()));
                if !known {
                    return Err(Refused::Kind("its typ or token_use claim says so"));
                }
            }
        }
        // OpenID Connect Core sections 2 and 3.3.2.11, FAPI 1.0 part 2: hashes and nonces of an ID token.
        let of_id_tokens = ["nonce", "at_hash", "c_hash", "s_hash"];
        if kind != TokenType::AtJwt && of_id_tokens.iter().any(|name| claims.contains_key(*name)) {
            return Err(Refused::Kind("it has the nonce or a hash of an ID token"));
        }
        Ok(())
    }

    /// `exp`, `nbf` and `iat` (RFC 7519 section 4.1); gives `exp`.
    fn check_times(&self, claims: &Map<String, Value>, now: Now) -> Result<u64, Refused> {
        let expires_s = time(claims, "exp")?.ok_or(Refused::Lacks("expiry (exp)"))?;
        if now.unix_s >= expires_s + self.leeway_s {
            return Err(Refused::Expired);
        }
        let earliest = now.unix_s.saturating_add(self.leeway_s);
        if time(claims, "nbf")?.is_some_and(|from| from > earliest) {
            return Err(Refused::NotYet);
        }
        if let Some(issued) = time(claims, "iat")? {
            if issued > earliest {
                return Err(Refused::FromTheFuture);
            }
            if issued > expires_s {
                return Err(Refused::Claim("iat".to_owned(), "before exp"));
            }
        }
        Ok(expires_s)
    }

    /// RFC 7519 section 4.1.3: a string or a list of strings, one of which is us.
    fn check_audience(&self, claims: &Map<String, Value>) -> Result<(), Refused> {
        let ours = |text: &str| self.audiences.iter().any(|own| own == text);
        let wrong = || Refused::Claim("aud".to_owned(), "a string or a list of strings");
        let found = match claims.get("aud") {
            None => return Err(Refused::Lacks("audience (aud)")),
            Some(Value::String(text)) => ours(text),
            Some(Value::Array(items)) => {
                let mut found = false;
                for item in items {
                    found |= ours(item.as_str().ok_or_else(wrong)?);
                }
                found
            }
            Some(_) => return Err(wrong()),
        };
        found.then_some(()).ok_or(Refused::Audience)
    }

    /// Where the configuration has a list of clients: all claims that name one, and one at least.
    fn check_party(&self, claims: &Map<String, Value>) -> Result<(), Refused> {
        if self.authorized_parties.is_empty() {
            return Ok(());
        }
        let mut named = CLIENT_CLAIMS
            .into_iter()
            .filter_map(|claim| claims.get(claim))
            .peekable();
        let known = |value: &Value| {
            value
                .as_str()
                .is_some_and(|text| self.authorized_parties.iter().any(|own| own == text))
        };
        if named.peek().is_some() && named.all(known) {
            Ok(())
        } else {
            Err(Refused::Client)
        }
    }
}

/// A NumericDate. RFC 7519 allows fractions; no issuer needs them, and whole seconds cannot be rounded in two ways.
fn time(claims: &Map<String, Value>, claim: &str) -> Result<Option<u64>, Refused> {
    let Some(value) = claims.get(claim) else {
        return Ok(None);
    };
    match value.as_u64().filter(|seconds| *seconds <= TIME_MAX_S) {
        Some(seconds) => Ok(Some(seconds)),
        None => Err(Refused::Claim(
            claim.to_owned(),
            "a whole number of seconds since 1970, before the year 10000",
        )),
    }
}
