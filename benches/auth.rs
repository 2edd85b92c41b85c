//! What the layer that asks for tokens costs: verified anew, by algorithm, and found in the cache. `README.md` has the results.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![allow(clippy::print_stdout, reason = "the table is what it is run for")]

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, HeaderValue, Request, Response, header};
use serde_json::{Map, Value, json};
use skillgate::auth::{AuthLayer, Authenticated, Authenticator, Clock, DevelopmentKey, prepare};
use skillgate::config::{Config, Flags, Sources};
use skillgate::rescue::{Named, RequestId};
use skillgate::server::full;
use skillgate::telemetry::metrics::Metrics;
use tower::{Layer, ServiceExt, service_fn};

const ISSUER: &str = "https://idp.example.com";
/// Tokens of one row; more than the cache holds where nothing is to be found in it.
const TOKENS: usize = 2000;
/// Each row is measured so often, in turns with the others, so that what else the machine does meets all of them alike.
const ROUNDS: usize = 10;

struct Row {
    name: String,
    key: DevelopmentKey,
    algorithm: &'static str,
    /// `token_cache_entries`
    cached: usize,
}

fn configuration(text: String) -> Config {
    let sources = Sources {
        env: std::collections::BTreeMap::new(),
        read: Box::new(move |_| Ok(text.clone())),
        is_dir: Box::new(|_| true),
        secrets: Default::default(),
        exe: None,
    };
    Config::load(&sources, &Flags::default()).unwrap()
}

fn claims(number: usize) -> Map<String, Value> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now_s = now.unwrap().as_secs();
    // About what an identity provider writes.
    let claims = json!({
        "iss": ISSUER, "aud": ["skillgate", "account"], "sub": format!("auth0|{number:024}"), "tenant": "acme",
        "iat": now_s, "exp": now_s + 3600, "jti": format!("{number:032}"), "client_id": "agents", "azp": "agents",
        "scope": "skills:read skills:execute blobs:read", "realm_access": { "roles": ["author", "viewer"] },
        "groups": ["/sales/emea", "/engineering"], "email": "alice@example.com", "amr": ["pwd", "mfa"],
    });
    claims.as_object().unwrap().clone()
}

fn main() {
    let rsa = |bits: usize| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/keys");
        let pem = std::fs::read_to_string(dir.join(format!("rsa-{bits}.pem"))).unwrap();
        DevelopmentKey::from_pem(&pem).unwrap()
    };
    let own = |algorithm| DevelopmentKey::generate(algorithm).unwrap();
    let row = |name: &str, key, algorithm, cached| Row {
        name: name.to_owned(),
        key,
        algorithm,
        cached,
    };
    let rows = [
        row("RS256, 2048 bits", rsa(2048), "RS256", 0),
        row("RS256, 4096 bits", rsa(4096), "RS256", 0),
        row("ES256", own("ES256"), "ES256", 0),
        row("ES384", own("ES384"), "ES384", 0),
        row("EdDSA", own("EdDSA"), "EdDSA", 0),
        row("any, found in the cache", own("ES256"), "ES256", 4 * TOKENS),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let prepared: Vec<(AuthLayer, Vec<HeaderMap>)> = rows
        .iter()
        .enumerate()
        .map(|(at, row)| {
            let path = dir.path().join(format!("{at}.json"));
            std::fs::write(&path, row.key.jwks().to_string()).unwrap();
            let config = configuration(format!(
                "[auth]\nmode = \"jwt\"\ntoken_cache_entries = {}\n[[auth.issuers]]\nissuer = \"{ISSUER}\"\n\
                 audiences = [\"skillgate\"]\nalgorithms = [\"{}\"]\njwks_file = {path:?}\n",
                row.cached, row.algorithm
            ));
            let auth = runtime.block_on(prepare(&config, Clock::system())).unwrap();
            let heads = (0..TOKENS)
                .map(|number| {
                    let token = row.key.token(&claims(number)).unwrap();
                    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
                    HeaderMap::from_iter([(header::AUTHORIZATION, value)])
                })
                .collect();
            let layer = AuthLayer {
                authenticator: Authenticator::new(auth),
                open: &[],
                metrics: Metrics::default(),
            };
            (layer, heads)
        })
        .collect();

    let mut times: Vec<Vec<Duration>> = rows.iter().map(|_| Vec::new()).collect();
    // The first round warms the caches, those of the processor too.
    for round in 0..=ROUNDS {
        for ((layer, heads), times) in prepared.iter().zip(&mut times) {
            runtime.block_on(async {
                for head in heads {
                    let mut request = Request::new(full(""));
                    *request.headers_mut() = head.clone();
                    let named = Named {
                        request_id: RequestId::new(),
                        request,
                    };
                    let service = layer.layer(service_fn(|_: Authenticated| {
                        std::future::ready(Ok(Response::new(full(""))))
                    }));
                    let began = Instant::now();
                    let taken = service.oneshot(named).await;
                    let took = began.elapsed();
                    assert!(taken.is_ok(), "a good token");
                    if round > 0 {
                        times.push(took);
                    }
                }
            });
        }
    }
    println!("| token | p50 µs | p99 µs |\n|---|---|---|");
    for (row, times) in rows.iter().zip(&mut times) {
        times.sort_unstable();
        let at = |share: f64| {
            let place = (times.len() as f64 * share) as usize;
            times[place].as_nanos() as f64 / 1000.0
        };
        println!("| {} | {:.1} | {:.1} |", row.name, at(0.5), at(0.99));
    }
}
