//! Keys over the wire: real connections to servers of this test, good ones and bad ones.

use super::super::fetch::{FETCH_TIMEOUT, FetchError, Fetcher, connect, port};
use super::*;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::sync::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

/// What a server says to a path: an answer as it goes over the wire, or nothing for ever.
type Say = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A server of this test. It ends with the test's runtime.
struct Server {
    address: SocketAddr,
    /// The paths that it was asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(
        tls: bool,
        say: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let acceptor = tls.then(acceptor);
        let (say, log): (Say, _) = (Arc::new(say), asked.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (say, log, acceptor) = (say.clone(), log.clone(), acceptor.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => answer(stream, &say, &log).await,
                        Some(acceptor) => {
                            // A client that does not trust us goes away here.
                            if let Ok(stream) = acceptor.accept(stream).await {
                                answer(stream, &say, &log).await;
                            }
                        }
                    }
                });
            }
        });
        Server { address, asked }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn acceptor() -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_slice(fixture("tls.pem").as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(fixture("tls.key.pem").as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    say: &Say,
    log: &Mutex<Vec<String>>,
) {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece).await {
            Ok(n) if n > 0 => head.extend_from_slice(&piece[..n]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    log.lock().unwrap().push(path.clone());
    match say(&path) {
        Some(text) => {
            // The client may have had enough of it.
            let _gone = stream.write_all(text.as_bytes()).await;
            let _gone = stream.shutdown().await;
        }
        None => std::future::pending().await,
    }
}

fn ok(body: &str) -> Option<String> {
    Some(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ))
}

async fn get(url: &str) -> Result<String, FetchError> {
    Fetcher::new(Some(fixture("ca.pem").as_bytes()))
        .unwrap()
        .get(url)
        .await
}

#[tokio::test]
async fn a_document_is_fetched() {
    let server = Server::start(false, |path| ok(&format!("hello {path}"))).await;
    assert_eq!(
        get(&server.url("/keys?x=1")).await.unwrap(),
        "hello /keys?x=1"
    );
    let url = format!("http://localhost:{}", server.address.port());
    assert_eq!(get(&url).await.unwrap(), "hello /");
    let chunked = Server::start(false, |_| {
        Some(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
                .to_owned(),
        )
    });
    assert_eq!(get(&chunked.await.url("/")).await.unwrap(), "abcde");
}

#[test]
fn without_a_port_it_is_the_one_of_the_scheme() {
    for (url, expected) in [
        ("https://idp.example/keys", Some(443)),
        ("https://idp.example:8443/keys", Some(8443)),
        ("https://idp.example:/keys", Some(443)),
        ("https://[2001:db8::1]/keys", Some(443)),
        ("https://[2001:db8::1]:8443/keys", Some(8443)),
        ("http://localhost/keys", Some(80)),
        ("http://localhost:443/keys", Some(443)),
        // Somebody else's, if it were taken for none.
        ("https://idp.example:84430/keys", None),
        ("https://idp.example:84x43/keys", None),
    ] {
        assert_eq!(port(&url.parse().unwrap()), expected, "{url}");
    }
}

#[tokio::test]
async fn answers_that_are_no_documents() {
    let (large, long) = ("x".repeat(256 * 1024 + 1), "x".repeat(300_000));
    let endless = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n493e0\r\n{long}\r\n493e0\r\n{long}\r\n"
    );
    let cases: Vec<(Option<String>, &str)> = vec![
        (ok(&large), "larger than 262144 bytes"),
        (Some(endless), "larger than 262144 bytes"),
        (Some("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello".into()), "broke off"),
        (Some("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n".into()), "302"),
        (Some("HTTP/1.1 301 Moved\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n".into()), "301"),
        (Some("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into()), "404"),
        (Some("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".into()), "500"),
        (Some("HTTP/1.1 204 No Content\r\n\r\n".into()), "204"),
        (Some("hello\r\n\r\n".into()), "HTTP: "),
        (Some(String::new()), "HTTP: "),
        (Some(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20))), "HTTP: "),
    ];
    for (answer, expected) in cases {
        let server = Server::start(false, move |_| answer.clone()).await;
        let said = get(&server.url("/keys")).await.unwrap_err().to_string();
        assert!(said.contains(expected), "{said}, expected {expected}");
        assert_eq!(server.asked(), ["/keys"], "nothing was followed");
    }
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let said = get(&format!("http://{closed}/")).await.unwrap_err();
    assert!(matches!(said, FetchError::Connect(_)), "{said}");
    for url in [
        "",
        "keys",
        "/keys",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "http://",
        "http://127.0.0.1:99999/",
        "https://127.0.0.1:84x43/",
    ] {
        let said = get(url).await.unwrap_err();
        assert!(matches!(said, FetchError::Url), "{url}: {said}");
    }
    // A name that the configuration took for the network, by http: refused without a connection.
    let said = get("http://192.0.2.1/keys").await.unwrap_err();
    assert!(matches!(said, FetchError::NotLoopback(_)), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up() {
    let server = Server::start(false, |_| None).await;
    let began = tokio::time::Instant::now();
    let said = get(&server.url("/keys")).await.unwrap_err();
    assert!(matches!(said, FetchError::Timeout), "{said}");
    assert!(began.elapsed() < Duration::from_secs(6));
}

/// A host with two addresses, the first of which says nothing: not even that nobody is there.
#[tokio::test]
async fn an_address_that_says_nothing_leaves_time_for_the_next() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(0).unwrap();
    let silent = full.local_addr().unwrap();
    // One fits into a queue of none; whoever comes then gets no answer.
    let _first = TcpStream::connect(silent).await.unwrap();
    let server = Server::start(false, |_| ok("hello")).await;

    let connected = tokio::time::timeout(FETCH_TIMEOUT, connect(&[silent, server.address])).await;
    let stream = connected.expect("in time").unwrap();
    assert_eq!(stream.peer_addr().unwrap(), server.address);
    let none = connect(&[]).await.unwrap_err();
    assert!(matches!(none, FetchError::NoAddress), "{none}");
}

#[tokio::test]
async fn only_certificates_that_are_trusted_for_the_name() {
    let server = Server::start(true, |_| ok("secret")).await;
    let port = server.address.port();
    assert_eq!(
        get(&format!("https://localhost:{port}/")).await.unwrap(),
        "secret"
    );
    // The right authority, another name.
    let said = get(&format!("https://127.0.0.1:{port}/"))
        .await
        .unwrap_err();
    assert!(matches!(said, FetchError::Tls(_)), "{said}");
    // The right name, nobody who vouches for it: the certificate of a server is none of an authority.
    let url = format!("https://localhost:{port}/");
    let own = Fetcher::new(Some(fixture("tls.pem").as_bytes())).unwrap();
    let said = own.get(&url).await.unwrap_err();
    assert!(matches!(said, FetchError::Tls(_)), "{said}");
    match Fetcher::new(None) {
        Ok(fetcher) => {
            let said = fetcher.get(&url).await.unwrap_err();
            assert!(matches!(said, FetchError::Tls(_)), "{said}");
        }
        // Such a machine trusts nobody to begin with.
        Err(said) => assert!(said.starts_with("the system has no certificates"), "{said}"),
    }
    // TLS to a server without it, and the other way round.
    let plain = Server::start(false, |_| ok("secret")).await;
    let said = get(&format!("https://localhost:{}/", plain.address.port())).await;
    // It waits for the end of a head.
    assert!(
        matches!(said, Err(FetchError::Tls(_) | FetchError::Timeout)),
        "{said:?}"
    );
    let said = get(&format!("http://localhost:{port}/")).await;
    assert!(matches!(said, Err(FetchError::Http(_))), "{said:?}");

    for (pem, expected) in [
        ("", "holds no PEM certificate"),
        ("hello", "holds no PEM certificate"),
    ] {
        assert_eq!(Fetcher::new(Some(pem.as_bytes())).unwrap_err(), expected);
    }
}

/// OpenID Connect Discovery section 4.3: the issuer of the document is the one that was asked for, byte for byte.
#[tokio::test]
async fn discovery() {
    let key = DevelopmentKey::generate("ES256").unwrap();
    let jwks = key.jwks().to_string();
    let server = {
        let own = Arc::new(Mutex::new(String::new()));
        let address = own.clone();
        let server = Server::start(false, move |path| {
            let base = address.lock().unwrap().clone();
            let document = |issuer: String, keys: String| {
                ok(
                    &json!({ "issuer": issuer, "jwks_uri": keys, "token_endpoint": "x" })
                        .to_string(),
                )
            };
            match path.strip_suffix("/.well-known/openid-configuration") {
                Some(realm @ ("/good" | "/slash")) => {
                    let slash = if realm == "/slash" { "/" } else { "" };
                    document(format!("{base}{realm}{slash}"), format!("{base}/keys"))
                }
                Some("/other") => document(format!("{base}/good"), format!("{base}/keys")),
                Some("/upper") => document(format!("{base}/UPPER"), format!("{base}/keys")),
                Some("/added") => document(format!("{base}/added/"), format!("{base}/keys")),
                Some("/file") => document(format!("{base}/file"), "file:///etc/keys".into()),
                Some("/gone") => document(format!("{base}/gone"), format!("{base}/gone/keys")),
                Some("/none") => ok("{}"),
                Some("/html") => ok("<html>"),
                _ if path == "/keys" => ok(&jwks),
                _ => Some("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into()),
            }
        })
        .await;
        *own.lock().unwrap() = server.url("");
        server
    };
    for (realm, taken) in [
        ("/good", true),
        ("/slash/", true),
        ("/other", false),
        ("/upper", false),
        ("/added", false),
        ("/file", false),
        ("/none", false),
        ("/html", false),
        ("/missing", false),
        ("/gone", false),
    ] {
        let issuer = server.url(realm);
        let (log, _here) = crate::telemetry::logged::Log::begin();
        let config = configuration(&format!(
            "[auth]\nmode = \"jwt\"\n[[auth.issuers]]\nissuer = \"{issuer}\"\naudiences = [\"{AUDIENCE}\"]\n\
             discovery = true\nalgorithms = [\"ES256\"]\n"
        ))
        .unwrap();
        let auth = Authenticator::new(prepare(&config, Hands::default().clock()).await.unwrap());
        let state = auth.issuers();
        assert_eq!(
            (state[0].keys == 1, state[0].failing),
            (taken, !taken),
            "{realm}"
        );
        // Whoever reads it can ask for the same.
        let log = log.taken();
        for (of, path) in [
            ("/missing", "/missing/.well-known/openid-configuration"),
            ("/gone", "/gone/keys"),
        ] {
            let failed = format!("{}: answered 404 Not Found", server.url(path));
            assert_eq!(log.contains(&failed), of == realm, "{realm}: {log}");
        }
        let token = key.token(claims_of(&issuer).as_object().unwrap()).unwrap();
        let mut headers = HeaderMap::new();
        let bearer = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        headers.insert(header::AUTHORIZATION, bearer);
        match auth.authenticate(&headers, None, IP).await {
            Ok(caller) => assert!(taken && caller.subject.id == "alice", "{realm}"),
            Err((_, refusal)) => {
                assert!(!taken, "{realm}: {}", refusal.message);
                assert_eq!(
                    (refusal.status.as_u16(), refusal.kind),
                    (503, "unavailable")
                );
                assert_eq!(refusal.headers[0].1, "30", "when to try again");
            }
        }
    }
}

/// What hyper says of it alone is "connection error".
#[tokio::test]
async fn why_a_connection_failed_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let resets = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        stream.set_zero_linger().unwrap();
    };
    let (said, ()) = tokio::join!(get(&url), resets);
    let said = said.unwrap_err().to_string();
    assert!(
        said.starts_with("HTTP: ") && said.contains("reset"),
        "{said}"
    );
}

/// With TLS wherever it is, and never to ourselves without.
#[tokio::test]
async fn an_issuer_on_the_network_sends_us_to_https_alone() {
    let key = DevelopmentKey::generate("ES256").unwrap();
    let document = Arc::new(Mutex::new(String::new()));
    let say = document.clone();
    let server = Server::start(true, move |path| match path {
        "/keys" => ok(&key.jwks().to_string()),
        _ => ok(&say.lock().unwrap()),
    })
    .await;
    let port = server.address.port();
    let issuer = format!("https://localhost:{port}");
    let fetched = async |keys: &str| {
        *document.lock().unwrap() = json!({ "issuer": issuer, "jwks_uri": keys }).to_string();
        let location = super::super::jwks::Location::Discovery {
            issuer: issuer.clone(),
        };
        let fetcher = Fetcher::new(Some(fixture("ca.pem").as_bytes())).unwrap();
        location.fetch(fetcher, vec![Algorithm::ES256])()
            .await
            .map(|set| set.len())
            .map_err(|error| error.to_string())
    };
    for plain in [
        "http://127.0.0.1:1/keys".to_owned(),
        format!("http://localhost:{port}/keys"),
    ] {
        let said = fetched(&plain).await.unwrap_err();
        assert!(said.contains("jwks_uri must be https"), "{said}");
    }
    const DOCUMENT: &str = "/.well-known/openid-configuration";
    assert_eq!(server.asked(), [DOCUMENT; 2]);
    assert_eq!(fetched(&format!("{issuer}/keys")).await, Ok(1));
    assert_eq!(server.asked(), [DOCUMENT, DOCUMENT, DOCUMENT, "/keys"]);
}

/// What a token asks to be fetched is not fetched.
#[tokio::test]
async fn nobody_is_asked_by_a_token() {
    let sentinel = Server::start(false, |_| ok("{}")).await;
    let world = World::new().await;
    for name in ["jku", "x5u", "kid", "jwk", "iss"] {
        let token = world.with(|header, claims| {
            let url = Value::from(sentinel.url("/keys"));
            if name == "iss" {
                claims["iss"] = url;
            } else {
                header[name] = url;
            }
        });
        let outcome = world.ask(&token).await;
        assert_eq!(
            outcome.is_ok(),
            ["jku", "x5u", "jwk"].contains(&name),
            "{name}: not looked at, or unknown"
        );
    }
    assert!(sentinel.asked().is_empty());
}

/// RFC 7517 section 5, live: a key that the issuer adds is taken with the first token that names it, one that it takes
/// away is not, and in between nobody is locked out.
#[tokio::test]
async fn keys_are_rotated_over_the_wire() {
    let keys = Arc::new(Mutex::new(String::new()));
    let published = keys.clone();
    let server = Server::start(false, move |_| ok(&published.lock().unwrap())).await;
    let publish = |all: &[&DevelopmentKey]| {
        let all: Vec<Value> = all
            .iter()
            .map(|key| key.jwks()["keys"][0].clone())
            .collect();
        *keys.lock().unwrap() = json!({ "keys": all }).to_string();
    };
    let made = |algorithm| DevelopmentKey::generate(algorithm).unwrap();
    let (first, second, third) = (made("ES256"), made("EdDSA"), made("ES384"));
    publish(&[&first]);
    let config = configuration(&format!(
        "[auth]\nmode = \"jwt\"\n[[auth.issuers]]\nissuer = \"{A}\"\naudiences = [\"{AUDIENCE}\"]\n\
         jwks_url = \"{}\"\nalgorithms = [\"ES256\", \"ES384\", \"EdDSA\"]\n",
        server.url("/keys")
    ))
    .unwrap();
    let hands = Hands::default();
    let auth = Authenticator::new(prepare(&config, hands.clock()).await.unwrap());
    let ask = |key: &DevelopmentKey| {
        let mut claims = claims_of(A);
        claims["exp"] = json!(NOW + 10_000);
        let token = key.token(claims.as_object().unwrap()).unwrap();
        let bearer = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]);
        let auth = auth.clone();
        async move { auth.authenticate(&headers, None, IP).await.is_ok() }
    };
    assert!(ask(&first).await && !ask(&second).await);
    for (old, new, withdrawn) in [(&first, &second, &third), (&second, &third, &first)] {
        hands.pass(31);
        publish(&[old, new]);
        assert!(ask(old).await && ask(new).await, "both while it lasts");
        hands.pass(31);
        publish(&[new]);
        // Whoever names a key that nobody has makes us look again.
        assert!(!ask(withdrawn).await);
        assert!(ask(new).await && !ask(old).await);
    }
    assert_eq!(server.asked().len(), 5);
}

/// What an alarm looks for is that it grows: one failure before a reload and one after it are two.
#[tokio::test]
async fn fetches_are_counted_over_a_reload_for_an_issuer_that_stays() {
    let said = Arc::new(Mutex::new("no keys".to_owned()));
    let say = said.clone();
    let server = Server::start(false, move |_| ok(&say.lock().unwrap())).await;
    let of = |issuer: &str, path: &str| {
        let url = server.url(path);
        let text = format!(
            "[auth]\nmode = \"jwt\"\n[[auth.issuers]]\nissuer = \"{issuer}\"\naudiences = [\"{AUDIENCE}\"]\n\
             jwks_url = \"{url}\"\nalgorithms = [\"ES256\"]\n"
        );
        configuration(&text).unwrap()
    };
    let hands = Hands::default();
    let first = prepare(&of(A, "/keys"), hands.clock()).await.unwrap();
    let auth = Authenticator::new(first);
    let counted = || auth.issuers()[0].fetches.unwrap();
    assert_eq!(counted(), (0, 1));
    let again = async |config: Config| auth.prepare_again(&config, hands.clock()).await.unwrap();
    auth.install(again(of(A, "/keys")).await);
    assert_eq!(counted(), (0, 2));
    let key = DevelopmentKey::generate("ES256").unwrap();
    *said.lock().unwrap() = key.jwks().to_string();
    auth.install(again(of(A, "/elsewhere")).await);
    assert_eq!(counted(), (1, 2), "asked elsewhere, the same issuer");
    drop(again(of(A, "/keys")).await);
    assert_eq!(counted(), (2, 2), "by a reload that is refused then");
    auth.install(again(of(B, "/keys")).await);
    assert_eq!(counted(), (1, 0), "another issuer");
    assert_eq!(server.asked().len(), 5);
}
