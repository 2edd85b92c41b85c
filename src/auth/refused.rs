//! Why a token is not taken: what its sender is told, and what operators count.
//!
//! A token whose signature does not hold learns nothing but that: which key is missing or which check failed would
//! only help somebody who tries. What a token with a good signature lacks is said in words, since its holder is who
//! the issuer says and can get a better one.

use super::token::TOKEN_BYTES_MAX;
use super::{clock, jwks};

/// Why a request is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// No credentials at all.
    #[error("no token; send the header `Authorization: Bearer <token>`")]
    Missing,
    /// In the URL, where logs and histories keep it (RFC 6750 section 5.3).
    #[error("a token in the URL is not taken; send the header `Authorization: Bearer <token>`")]
    InUrl,
    /// More than one `Authorization`, or one that cannot be read.
    #[error("the request must have one Authorization header, `Authorization: Bearer <token>`")]
    BadRequest,
    /// Longer than a token may be.
    #[error("the token is longer than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    /// Not a signed JWT.
    #[error("the token is not a signed JWT in compact form")]
    Malformed,
    /// Asks for something that is not done here.
    #[error("the token's header asks for crit, b64, cty, enc or zip, which are not taken")]
    Header,
    /// None that is accepted from this issuer, or none at all.
    #[error("the token's alg is not accepted from its issuer")]
    Algorithm,
    /// `iss` is absent, no text, or nobody that is configured.
    #[error("the token's iss is not an issuer that this server trusts")]
    Issuer,
    /// No such key, or it did not sign this.
    #[error("the token's signature does not hold for any current key of its issuer")]
    Signature,
    /// The issuer's keys could not be fetched.
    #[error("the keys of the token's issuer cannot be fetched now; try again later")]
    Unavailable,
    /// Whether a token has expired cannot be told.
    #[error("this server's clock is not set, and no token is taken before it is; try again later")]
    ClockUnset,
    /// An ID token, a refresh token, or something that is no access token.
    #[error("the token is no access token: {0}")]
    Kind(&'static str),
    /// `exp` is past.
    #[error("the token has expired; get a new one")]
    Expired,
    /// `nbf` is to come.
    #[error("the token is not valid yet (nbf)")]
    NotYet,
    /// `iat` is to come.
    #[error("the token was issued in the future (iat); its issuer's clock or ours is wrong")]
    FromTheFuture,
    /// `aud` names others.
    #[error(
        "the token is meant for another audience (aud); ask the issuer for a token for this server"
    )]
    Audience,
    /// A claim that must be there.
    #[error("the token has no {0}")]
    Lacks(&'static str),
    /// A claim of another type than it must have.
    #[error("the token's {0} is not what it must be: {1}")]
    Claim(String, &'static str),
    /// Bound to a key or a certificate that was not shown.
    #[error(
        "the token is bound to a key or certificate (cnf) and cannot be used as a bearer token"
    )]
    Bound,
    /// `client_id`, `azp` or `cid` is not on the list.
    #[error("the token was issued to a client that may not use this server (azp, client_id, cid)")]
    Client,
    /// The tenant is not one of this issuer's.
    #[error("the token's issuer may not speak for its tenant")]
    Tenant,
}

impl Refused {
    /// All of these names.
    pub(super) const REASONS: [&str; 16] = [
        "missing",
        "bad_request",
        "malformed",
        "algorithm",
        "issuer",
        "signature",
        "keys_unavailable",
        "clock_unset",
        "not_an_access_token",
        "expired",
        "not_yet_valid",
        "audience",
        "claim",
        "bound",
        "client",
        "tenant",
    ];

    /// A name for metrics and logs; stable.
    pub fn reason(&self) -> &'static str {
        match self {
            Refused::Missing => "missing",
            Refused::InUrl | Refused::BadRequest => "bad_request",
            Refused::TooLong | Refused::Malformed | Refused::Header => "malformed",
            Refused::Algorithm => "algorithm",
            Refused::Issuer => "issuer",
            Refused::Signature => "signature",
            Refused::Unavailable => "keys_unavailable",
            Refused::ClockUnset => "clock_unset",
            Refused::Kind(_) => "not_an_access_token",
            Refused::Expired => "expired",
            Refused::NotYet | Refused::FromTheFuture => "not_yet_valid",
            Refused::Audience => "audience",
            Refused::Lacks(_) | Refused::Claim(..) => "claim",
            Refused::Bound => "bound",
            Refused::Client => "client",
            Refused::Tenant => "tenant",
        }
    }

    /// When the same token may be taken, in seconds, where it is for its sender to wait alone.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Refused::Unavailable => Some(jwks::REFETCH_INTERVAL.as_secs()),
            Refused::ClockUnset => Some(clock::UNSET_RETRY_AFTER_S),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Refused;

    #[test]
    fn each_reason_is_on_the_list() {
        let all = [
            Refused::Missing,
            Refused::InUrl,
            Refused::BadRequest,
            Refused::TooLong,
            Refused::Malformed,
            Refused::Header,
            Refused::Algorithm,
            Refused::Issuer,
            Refused::Signature,
            Refused::Unavailable,
            Refused::ClockUnset,
            Refused::Kind("x"),
            Refused::Expired,
            Refused::NotYet,
            Refused::FromTheFuture,
            Refused::Audience,
            Refused::Lacks("x"),
            Refused::Claim("x".into(), "x"),
            Refused::Bound,
            Refused::Client,
            Refused::Tenant,
        ];
        // One that is new has its place above, too.
        for refused in &all {
            match refused {
                Refused::Missing | Refused::InUrl | Refused::BadRequest | Refused::TooLong => {}
                Refused::Malformed | Refused::Header | Refused::Algorithm | Refused::Issuer => {}
                Refused::Signature | Refused::Unavailable => {}
                Refused::ClockUnset | Refused::Kind(_) | Refused::Expired => {}
                Refused::NotYet | Refused::FromTheFuture | Refused::Audience => {}
                Refused::Lacks(_) | Refused::Claim(..) | Refused::Bound | Refused::Client => {}
                Refused::Tenant => {}
            }
        }
        let mut reasons: Vec<&str> = all.iter().map(Refused::reason).collect();
        reasons.dedup();
        assert_eq!(reasons, Refused::REASONS);
    }
}
