//! One GET over TLS, with limits: how keys of an issuer are fetched.
//!
//! No redirects (one could lead to the metadata service of a cloud), no proxy, no connection that is kept, no more than
//! one document's bytes, and an end in time whatever the other side does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::telemetry::with_sources;

/// From the look-up of the name to the last byte.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses of one host that are tried.
const ADDRESSES_MAX: usize = 8;
/// Largest document, in bytes.
const DOCUMENT_BYTES_MAX: usize = 256 * 1024;

/// Why a document could not be fetched. For the log: it names addresses.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("not a URL that keys may be fetched from: https, or http on a loopback address")]
    Url,
    #[error("no answer within {} s", FETCH_TIMEOUT.as_secs())]
    Timeout,
    #[error("its host has no address")]
    NoAddress,
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    #[error("cannot speak TLS: {0}")]
    Tls(std::io::Error),
    #[error("{0} resolves to an address that is not loopback")]
    NotLoopback(String),
    #[error("HTTP: {}", with_sources(.0))]
    Http(hyper::Error),
    #[error("answered {0}, expected 200; redirects are not followed")]
    Status(StatusCode),
    #[error("the answer broke off, or is larger than {DOCUMENT_BYTES_MAX} bytes")]
    Body,
    #[error("the answer is not UTF-8")]
    Text,
}

/// Fetches documents; knows which certificates to trust.
#[derive(Debug, Clone)]
pub(super) struct Fetcher(Arc<ClientConfig>);

impl Fetcher {
    /// Trusts what the system trusts, or only the certificates of `ca_pem`.
    ///
    /// # Errors
    /// A sentence, when there is no certificate to trust.
    pub(super) fn new(ca_pem: Option<&[u8]>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        match ca_pem {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let certificate =
                        certificate.map_err(|_| "not PEM of type CERTIFICATE".to_owned())?;
                    roots
                        .add(certificate)
                        .map_err(|error| format!("not a certificate of an authority: {error}"))?;
                }
                if roots.is_empty() {
                    return Err("holds no PEM certificate".to_owned());
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    return Err(
                        "the system has no certificates of authorities (package ca-certificates); \
                         install them or set ca_file"
                            .to_owned(),
                    );
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Fetcher(Arc::new(config)))
    }

    /// The text at `url`.
    pub(super) async fn get(&self, url: &str) -> Result<String, FetchError> {
        tokio::time::timeout(FETCH_TIMEOUT, self.get_in_time(url))
            .await
            .unwrap_or(Err(FetchError::Timeout))
    }

    async fn get_in_time(&self, url: &str) -> Result<String, FetchError> {
        let uri: Uri = url.parse().map_err(|_| FetchError::Url)?;
        let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host()) else {
            return Err(FetchError::Url);
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<SocketAddr> = {
            let port = port(&uri).ok_or(FetchError::Url)?;
            // As the system finds it, by its search domains too: inside of a cluster issuers are named by those. Whoever answers
            // has to have a certificate of the name as it is written here.
            tokio::net::lookup_host((bare, port))
                .await
                .map_err(FetchError::Connect)?
                .collect()
        };
        match scheme {
            "https" => {
                let name = ServerName::try_from(bare.to_owned()).map_err(|_| FetchError::Url)?;
                let tcp = connect(&addresses).await?;
                let tls = TlsConnector::from(self.0.clone())
                    .connect(name, tcp)
                    .await
                    .map_err(FetchError::Tls)?;
                request(tls, &uri).await
            }
            // The configuration takes http for loopback names only; here for what the name really is.
            "http" if addresses.iter().all(|address| address.ip().is_loopback()) => {
                request(connect(&addresses).await?, &uri).await
            }
            "http" => Err(FetchError::NotLoopback(bare.to_owned())),
            _ => Err(FetchError::Url),
        }
    }
}

/// The one that it names, or its scheme's. None where what it names is none: `http` takes what it cannot read for nothing.
pub(super) fn port(uri: &Uri) -> Option<u16> {
    let is_tls = uri.scheme_str() == Some("https");
    let authority = uri.authority()?.as_str();
    match authority.rsplit_once(':') {
        // An IPv6 address in its brackets.
        Some((_, behind)) if behind.ends_with(']') => {}
        // RFC 3986 section 3.2.3 allows an empty one.
        None | Some((_, "")) => {}
        Some((_, port)) => return port.parse().ok(),
    }
    Some(if is_tls { 443 } else { 80 })
}

/// To the first address that answers. Each but the last has its share of the time: one that says nothing, as where IPv6 is
/// dropped on the way, must leave enough for the next one, TLS and the document.
pub(super) async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, FetchError> {
    let tried = &addresses[..addresses.len().min(ADDRESSES_MAX)];
    let Some((last, others)) = tried.split_last() else {
        return Err(FetchError::NoAddress);
    };
    let patience = FETCH_TIMEOUT / (tried.len() as u32 + 1);
    for address in others {
        if let Ok(Ok(stream)) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
            return Ok(stream);
        }
    }
    TcpStream::connect(last).await.map_err(FetchError::Connect)
}

async fn request<S>(stream: S, uri: &Uri) -> Result<String, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(FetchError::Http)?;
    let exchange = async move {
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::get(path)
            .header(header::HOST, authority)
            .header(header::ACCEPT, "application/json, application/jwk-set+json")
            .header(
                header::USER_AGENT,
                concat!("skillgate/", env!("CARGO_PKG_VERSION")),
            )
            .body(Empty::<Bytes>::new())
            .map_err(|_| FetchError::Url)?;
        let response = sender
            .send_request(request)
            .await
            .map_err(FetchError::Http)?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), DOCUMENT_BYTES_MAX)
            .collect()
            .await
            .map_err(|_| FetchError::Body)?;
        String::from_utf8(body.to_bytes().into()).map_err(|_| FetchError::Text)
    };
    // The connection works while the exchange waits, and ends with it.
    let connection = async {
        match connection.await {
            Ok(()) => std::future::pending().await,
            Err(error) => FetchError::Http(error),
        }
    };
    tokio::select! {
        biased;
        outcome = exchange => outcome,
        error = connection => Err(error),
    }
}
