//! `[auth]`: who may issue tokens, and what they must say.

use super::section::Section;
use super::{Auth, AuthMode, Claims, Issuer, KeySource, TokenType, raw};

/// Longest tenant, in bytes.
const TENANT_BYTES_MAX: usize = 128;

pub(super) fn auth(s: &Section<'_>) -> Auth {
    Auth {
        mode: s.choice("mode", &[("off", AuthMode::Off), ("jwt", AuthMode::Jwt)]),
        resource: s.parsed("resource", TRUSTED_URL, |url| {
            (is_trusted_url(url) && !url.contains('?')).then(|| url.to_owned())
        }),
        required_scopes: required_scopes(s),
        token_cache_entries: s.count("token_cache_entries", 0..=1_000_000),
        jwks_max_age_s: s.integer("jwks_max_age_s", 30..=86_400),
        jwks_max_stale_s: s.integer("jwks_max_stale_s", 30..=2_678_400),
        issuers: s.sections("issuers", issuer),
    }
}

/// RFC 6749 section 3.3.
fn required_scopes(s: &Section<'_>) -> Vec<String> {
    let scopes = s.texts("required_scopes", None);
    let fits = |scope: &&String| {
        !scope
            .bytes()
            .all(|b| (b'!'..=b'~').contains(&b) && b != b'"' && b != b'\\')
    };
    if let Some(wrong) = scopes.iter().find(fits) {
        s.wrong(
            "required_scopes",
            format!(
                "{:?} is no scope, expected printable ASCII without space, quote and backslash",
                raw::cut(wrong)
            ),
        );
    }
    scopes
}

fn issuer(s: &Section<'_>) -> Issuer {
    let issuer = s.text("issuer", "the token's `iss`, an https URL");
    if !issuer.is_empty() && !is_trusted_url(&issuer) {
        s.wrong("issuer", format!("expected {TRUSTED_URL}"));
    }
    let audiences = s.texts("audiences", None);
    let algorithms = s.choices("algorithms", &ALGORITHMS.map(|name| (name, name)));
    let token_types = s.choices_or(
        "token_types",
        &[
            ("at+jwt", TokenType::AtJwt),
            ("JWT", TokenType::Jwt),
            ("none", TokenType::Absent),
        ],
        Some(&["at+jwt", "JWT"]),
    );
    for (key, empty) in [
        ("audiences", audiences.is_empty()),
        ("algorithms", algorithms.is_empty()),
        ("token_types", token_types.is_empty()),
    ] {
        if empty && s.has(key) {
            s.wrong(key, "an empty list accepts no token, expected at least one");
        }
    }
    let keys = keys(s);
    let secret = matches!(keys, KeySource::Secret(_));
    if secret && algorithms != [HS256] {
        s.wrong(
            "algorithms",
            "a shared secret checks HS256 only, expected [\"HS256\"]",
        );
    }
    // With both, whoever knows the public key could sign with it as a secret (RFC 8725 section 2.1).
    if !secret && algorithms.contains(&HS256) {
        s.wrong(
            "algorithms",
            "HS256 needs a shared secret, expected secret_file instead of public keys",
        );
    }
    let ca_file = s.optional_path("ca_file");
    if ca_file.is_some() && matches!(keys, KeySource::File(_) | KeySource::Secret(_)) {
        s.wrong(
            "ca_file",
            "has no meaning for keys from a file; did you mean jwks_url or discovery?",
        );
    }
    let tenants = s.texts("tenants", Some(&[]));
    let default_tenant = s.parsed("default_tenant", TENANT_RULE, |text| {
        is_tenant(text).then(|| text.to_owned())
    });
    if let Some(wrong) = tenants.iter().find(|tenant| !is_tenant(tenant)) {
        s.wrong(
            "tenants",
            format!("{:?} is no tenant, expected {TENANT_RULE}", raw::cut(wrong)),
        );
    }
    if let Some(tenant) = &default_tenant
        && !tenants.is_empty()
        && !tenants.contains(tenant)
    {
        s.wrong(
            "default_tenant",
            format!("{tenant:?} is not one of `tenants`"),
        );
    }
    Issuer {
        issuer,
        audiences,
        keys,
        ca_file,
        algorithms,
        token_types,
        authorized_parties: s.texts("authorized_parties", Some(&[])),
        tenants,
        default_tenant,
        leeway_s: s.integer_or("leeway_s", 0..=300, 30),
        claims: s.section("claims", claims),
    }
}

fn keys(s: &Section<'_>) -> KeySource {
    let jwks_url = s.optional_text("jwks_url", "an https URL");
    if jwks_url.as_ref().is_some_and(|url| !is_trusted_url(url)) {
        s.wrong("jwks_url", format!("expected {TRUSTED_URL}"));
    }
    let mut found = [
        s.optional_path("jwks_file").map(KeySource::File),
        jwks_url.map(KeySource::Url),
        s.flag("discovery").then_some(KeySource::Discovery),
        s.optional_path("secret_file").map(KeySource::Secret),
    ]
    .into_iter()
    .flatten();
    match (found.next(), found.next()) {
        (Some(keys), None) => keys,
        _ => {
            s.wrong(
                "",
                "expected exactly one of jwks_file, jwks_url, discovery = true, secret_file",
            );
            KeySource::Discovery
        }
    }
}

fn claims(s: &Section<'_>) -> Claims {
    let paths = |key, absent: &[&str]| {
        let paths = s.text_or_texts(key, absent);
        if let Some(wrong) = paths.iter().find(|path| path.split('.').any(str::is_empty)) {
            s.wrong(
                key,
                format!(
                    "{:?} is no claim, expected a name, or names separated by `.`",
                    raw::cut(wrong)
                ),
            );
        }
        paths
    };
    let claims = Claims {
        subject: paths("subject", &["sub"]),
        tenant: paths("tenant", &["tenant"]),
        roles: paths("roles", &["roles", "realm_access.roles"]),
        groups: paths("groups", &["groups"]),
        scopes: paths("scopes", &["scope", "scp"]),
        expose: paths("expose", &[]),
    };
    if claims.subject.is_empty() && s.has("subject") {
        s.wrong("subject", "an empty list names nobody, expected a claim");
    }
    claims
}

const HS256: &str = "HS256";

/// Asymmetric ones, and the one with a shared secret, with which whoever can check a token can make one: it needs a key
/// of its own.
const ALGORITHMS: [&str; 10] = [
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA", HS256,
];

/// What [`is_tenant`] takes, for messages.
pub(crate) const TENANT_RULE: &str =
    "1 to 128 letters, digits, `.`, `_` or `-`, beginning with a letter or a digit";

/// Compared byte by byte everywhere: no two spellings, nothing that means something in a path or a pattern.
pub(crate) fn is_tenant(text: &str) -> bool {
    text.len() <= TENANT_BYTES_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

const TRUSTED_URL: &str = "an https URL, or http on a loopback address, without user and fragment";

/// Keys that come over a wire that others can write to are nobody's keys.
fn is_trusted_url(url: &str) -> bool {
    if url
        .chars()
        .any(|c| c.is_whitespace() || c.is_control() || c == '#')
    {
        return false;
    }
    let host_of = |rest: &str| rest.split(['/', '?']).next().unwrap_or_default().to_owned();
    let plain = |host: &str| !host.is_empty() && !host.contains(['@', '\\']);
    // What is no port would be taken for none, and the scheme's asked.
    let has_port = |host: &str| match host.rsplit_once(':') {
        Some((_, port)) => port.ends_with(']') || port.parse::<u16>().is_ok(),
        None => true,
    };
    if let Some(rest) = url.strip_prefix("https://") {
        let host = host_of(rest);
        return plain(&host) && has_port(&host);
    }
    let Some(host) = url.strip_prefix("http://").map(host_of) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => &host,
    };
    plain(&host)
        && (name == "localhost"
            || name == "[::1]"
            || name
                .parse()
                .is_ok_and(|ip: std::net::Ipv4Addr| ip.is_loopback()))
}
