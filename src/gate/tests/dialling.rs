//! Hosts that are not found, or not reached: what the run is told, and what the operator.

use rustix::io::Errno;

use super::*;
use crate::telemetry::logged::Log;

/// Failures of one run that the log tells of.
const LOGGED: usize = 20;

/// Fails as it is told.
#[derive(Debug)]
struct Failing(fn() -> io::Error);

impl Resolver for Failing {
    fn resolve(
        &self,
        _host: &str,
        _tenant: &str,
        _turn: OwnedSemaphorePermit,
    ) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let error = (self.0)();
        Box::pin(async move { Err(error) })
    }
}

/// The head of the answer to a CONNECT, and what the log says.
async fn asked(resolver: Arc<dyn Resolver>, port: u16, times: usize) -> (String, String) {
    let gate = Gate::new(settings(), resolver, Arc::new(NoLedger));
    let open = gate.open(grant(&[format!("https://api.example.com:{port}")], &[]));
    let (fd, address) = listener();
    open.serve(fd).unwrap();
    let (log, _here) = Log::begin();
    let mut said = String::new();
    for _ in 0..times {
        said = connect_at(address, &format!("api.example.com:{port}"))
            .await
            .1;
    }
    let lines = log.taken();
    let warnings = lines.lines().filter(|line| line.contains(" WARN "));
    (said, warnings.map(|line| format!("{line}\n")).collect())
}

/// Whether there is no such name or no name server is not always known.
#[tokio::test]
async fn a_name_that_is_not_found() {
    let resolver = Failing(|| io::Error::other("temporary failure in name resolution"));
    let (said, log) = asked(Arc::new(resolver), 443, 1).await;
    assert!(
        said.starts_with(
            "HTTP/1.1 502 api.example.com has no address that the gateway could find\r\n"
        ),
        "{said}"
    );
    assert!(
        log.contains("temporary failure in name resolution")
            && log.contains("run_1")
            && log.contains("api.example.com"),
        "{log}"
    );
}

/// Nobody was asked who could have refused.
#[tokio::test]
async fn a_name_without_an_address() {
    let resolver = FakeResolver::default();
    resolver.say("api.example.com", &[&[]]);
    let (said, _log) = asked(Arc::new(resolver), 443, 1).await;
    let about = "HTTP/1.1 502 api.example.com has no address that the gateway could find\r\n";
    assert!(said.starts_with(about), "{said}");
}

#[tokio::test]
async fn a_host_that_refuses() {
    let port = Host::new("127.0.0.2", b"").await.address.port();
    let resolver = FakeResolver::default();
    resolver.say("api.example.com", &[&["127.0.0.2"]]);
    let (said, log) = asked(Arc::new(resolver), port, LOGGED + 5).await;
    assert!(said.contains("cannot be reached"), "{said}");
    assert!(
        log.contains("refused") && log.contains(&format!("127.0.0.2:{port}")),
        "{log}"
    );
    // A run that asks on and on does not fill the log.
    assert_eq!(log.lines().count(), LOGGED, "{log}");
}

/// Whoever drops what is sent to an address would else be waited for, for as long as all may take together.
#[tokio::test]
async fn an_address_that_never_answers_beside_one_that_does() {
    let host = Host::new("127.0.0.2", b"").await;
    let port = host.address.port();
    // What comes when this queue is full is dropped by the kernel.
    let silent = std::net::TcpListener::bind(("127.0.0.3", port)).unwrap();
    rustix::net::listen(&silent, 0).unwrap();
    let _fills = std::net::TcpStream::connect(silent.local_addr().unwrap()).unwrap();
    let settings = Settings {
        allow_private: vec!["127.0.0.2/31".parse().unwrap()],
        connect_timeout: Duration::from_secs(3600),
        ..settings()
    };
    let authority = format!("api.example.com:{port}");
    let world = World::new(settings, grant(&[format!("https://{authority}")], &[]));
    let answer: &[&[&str]] = &[&["127.0.0.3", "127.0.0.2"]];
    world.resolver.say("api.example.com", answer);
    let (_tunnel, said) = world.connect(&authority).await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    assert_eq!(host.reached(), 1);
}

/// An answer that leads inside is the operator's to know, as often as other failures are.
#[tokio::test]
async fn a_name_that_leads_inside() {
    let resolver = FakeResolver::default();
    resolver.say("api.example.com", &[&["169.254.169.254"]]);
    let (said, log) = asked(Arc::new(resolver), 443, LOGGED + 5).await;
    assert!(said.starts_with("HTTP/1.1 403"), "{said}");
    assert!(log.contains("169.254.169.254") && !said.contains("169.254"));
    assert_eq!(log.lines().count(), LOGGED, "{log}");
}

/// That says nothing of the host, and passes.
#[tokio::test]
async fn no_files_left() {
    let full: [fn() -> io::Error; 2] = [|| Errno::MFILE.into(), || Errno::NFILE.into()];
    for error in full {
        let (said, log) = asked(Arc::new(Failing(error)), 443, 1).await;
        assert!(
            said.starts_with("HTTP/1.1 503") && said.contains("retry-after: 1"),
            "{said}"
        );
        assert!(log.contains(&error().to_string()), "{log}");
    }
}
