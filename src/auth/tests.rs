//! Two issuers with keys of every kind, one with a shared secret, and a clock that stands still.

use super::*;

mod attacks;
mod claims;
mod http;
mod keys;
mod malleable;
mod network;
mod reload;
mod rotation;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ::http::HeaderValue;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};

use crate::config::{Flags, Sources};

/// When all this happens, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
/// `leeway_s` of the issuers.
const LEEWAY: u64 = 30;
const AUDIENCE: &str = "skillgate";
const A: &str = "https://a.example";
const B: &str = "https://b.example";
const C: &str = "https://c.example";
const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const SECRET: &str = "correct horse battery staple, and more of it";

/// A file of `tests/fixtures/keys`.
fn fixture(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/keys");
    std::fs::read_to_string(dir.join(name)).unwrap()
}

/// A clock that a test moves: both hands together. And whether nobody has told it the time.
#[derive(Debug, Clone, Default)]
struct Hands(Arc<AtomicU64>, Arc<AtomicBool>);

impl Hands {
    fn clock(&self) -> Clock {
        let hands = self.clone();
        Clock::new(move || {
            let passed = hands.0.load(Ordering::SeqCst);
            let since = match hands.1.load(Ordering::SeqCst) {
                true => 0,
                false => NOW,
            };
            Now {
                unix_s: since + passed,
                uptime: Duration::from_secs(1000 + passed),
            }
        })
    }

    fn unset(&self, unset: bool) {
        self.1.store(unset, Ordering::SeqCst);
    }

    fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

/// A configuration from the text of a file.
fn configuration(text: &str) -> Result<Config, ConfigErrors> {
    let text = text.to_owned();
    let sources = Sources {
        env: std::collections::BTreeMap::new(),
        secrets: Default::default(),
        read: Box::new(move |_| Ok(text.clone())),
        is_dir: Box::new(|_| true),
        exe: None,
    };
    Config::load(&sources, &Flags::default())
}

struct World {
    rsa: DevelopmentKey,
    p256: DevelopmentKey,
    p384: DevelopmentKey,
    ed: DevelopmentKey,
    /// The key of issuer B.
    b: DevelopmentKey,
    /// Nobody's.
    stranger: DevelopmentKey,
    hands: Hands,
    auth: Authenticator,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new() -> World {
        let make = |algorithm| DevelopmentKey::generate(algorithm).unwrap();
        let rsa = DevelopmentKey::from_pem(&fixture("rsa-2048.pem")).unwrap();
        let (p256, p384, ed) = (make("ES256"), make("ES384"), make("EdDSA"));
        let (b, stranger) = (make("ES256"), make("ES256"));
        let mut keys = Vec::new();
        for key in [&rsa, &p256, &p384, &ed] {
            let mut jwk = key.jwks()["keys"][0].clone();
            // One RSA key for six algorithms.
            jwk.as_object_mut().unwrap().remove("alg");
            keys.push(jwk);
        }
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let text = format!(
            r#"
            [auth]
            mode = "jwt"
            [[auth.issuers]]
            issuer = "{A}"
            audiences = ["{AUDIENCE}", "another name of ours"]
            jwks_file = {a:?}
            algorithms = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
            claims = {{ expose = ["amr", "org.unit"] }}
            [[auth.issuers]]
            issuer = "{B}"
            audiences = ["{AUDIENCE}"]
            jwks_file = {b:?}
            algorithms = ["ES256"]
            token_types = ["at+jwt"]
            authorized_parties = ["good-client"]
            tenants = ["beta"]
            default_tenant = "beta"
            [[auth.issuers]]
            issuer = "{C}"
            audiences = ["{AUDIENCE}"]
            secret_file = {c:?}
            algorithms = ["HS256"]
            token_types = ["at+jwt", "JWT", "none"]
            "#,
            a = write("a.json", &json!({ "keys": keys }).to_string()),
            b = write("b.json", &b.jwks().to_string()),
            c = write("c.secret", &format!("{SECRET}\n")),
        );
        let hands = Hands::default();
        let config = configuration(&text).unwrap();
        let prepared = prepare(&config, hands.clock()).await.unwrap();
        World {
            rsa,
            p256,
            p384,
            ed,
            b,
            stranger,
            hands,
            auth: Authenticator::new(prepared),
            _dir: dir,
        }
    }

    /// The key of issuer A for an algorithm.
    fn key(&self, algorithm: Algorithm) -> &DevelopmentKey {
        match algorithm {
            Algorithm::ES256 => &self.p256,
            Algorithm::ES384 => &self.p384,
            Algorithm::EdDSA => &self.ed,
            _ => &self.rsa,
        }
    }

    /// A good token of issuer A.
    fn good(&self) -> String {
        self.with(|_, _| ())
    }

    /// The same with other members of the header and other claims, signed by issuer A with ES256.
    fn with(&self, change: impl FnOnce(&mut Value, &mut Value)) -> String {
        let (mut header, mut claims) = (header(Algorithm::ES256, &self.p256), claims_of(A));
        change(&mut header, &mut claims);
        self.text(&header.to_string(), &claims.to_string())
    }

    /// A token of issuer A with these texts, whatever they are, signed with ES256.
    fn text(&self, header: &str, claims: &str) -> String {
        signed(&self.p256, Algorithm::ES256, header, claims)
    }

    async fn ask(&self, token: &str) -> Result<Arc<Subject>, Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::AUTHORIZATION,
            HeaderValue::from_str(&format!("Bearer {token}")).unwrap(),
        );
        let outcome = self.auth.authenticate(&headers, None, IP).await;
        outcome
            .map(|caller| caller.subject)
            .map_err(|(_, refusal)| refusal)
    }
}

fn header(algorithm: Algorithm, key: &DevelopmentKey) -> Value {
    json!({ "alg": format!("{algorithm:?}"), "kid": key.kid(), "typ": "JWT" })
}

fn claims_of(issuer: &str) -> Value {
    json!({
        "iss": issuer, "aud": AUDIENCE, "sub": "alice", "tenant": "acme",
        "iat": NOW - 10, "nbf": NOW - 10, "exp": NOW + 300, "roles": ["author"],
    })
}

fn signed(key: &DevelopmentKey, algorithm: Algorithm, header: &str, claims: &str) -> String {
    let text = unsigned(header.as_bytes(), claims.as_bytes());
    let signature = key.sign(algorithm, &text);
    format!("{text}.{signature}")
}

fn unsigned(header: &[u8], claims: &[u8]) -> String {
    format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header),
        URL_SAFE_NO_PAD.encode(claims)
    )
}

/// A token signed with a shared secret, whatever the header says.
fn by_secret(secret: &[u8], header: &str, claims: &str) -> String {
    let text = unsigned(header.as_bytes(), claims.as_bytes());
    let key = EncodingKey::from_secret(secret);
    let signature = super::crypto::sign(Algorithm::HS256, &key, &text).unwrap();
    format!("{text}.{signature}")
}

const ASYMMETRIC: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];
