//! Endpoints that speak TLS, and a socket whose every wait has an end.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A connection to a server.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

impl Stream {
    /// `host`: the name or address that the server's certificate must have.
    pub(super) fn new(
        tcp: TcpStream,
        tls: Option<&Arc<ClientConfig>>,
        host: &str,
    ) -> std::result::Result<Stream, String> {
        let timed = Timed {
            tcp,
            until: Instant::now(),
        };
        let Some(tls) = tls else {
            return Ok(Stream::Plain(timed));
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|e| format!("{host}: {e}"))?;
        let client = ClientConnection::new(tls.clone(), name).map_err(|e| e.to_string())?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(client, timed))))
    }

    /// From now on whatever is done on it ends then: with an error, or with what there is.
    pub(super) fn wait_until(&mut self, until: Instant) {
        match self {
            Stream::Plain(timed) => timed.until = until,
            Stream::Tls(stream) => stream.sock.until = until,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        match self {
            Stream::Plain(timed) => timed.read(buf),
            Stream::Tls(stream) => stream.read(buf).map_err(explained),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        match self {
            Stream::Plain(timed) => timed.write(buf),
            Stream::Tls(stream) => stream.write(buf).map_err(explained),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match self {
            Stream::Plain(timed) => timed.flush(),
            Stream::Tls(stream) => stream.flush().map_err(explained),
        }
    }
}

/// A socket that waits until then, however many calls that takes: rustls goes on reading while single bytes of a handshake or
/// a record come, and a limit of each call alone would never be met.
#[derive(Debug)]
pub(super) struct Timed {
    tcp: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> Result<std::time::Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        // Zero would be no limit.
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(left)
    }
}

impl Read for Timed {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        self.tcp.set_read_timeout(Some(self.left()?))?;
        self.tcp.read(buf)
    }
}

impl Write for Timed {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        self.tcp.set_write_timeout(Some(self.left()?))?;
        self.tcp.write(buf)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Trusts the authorities of the system, which may be told of another by `SSL_CERT_FILE`; or only those of this file, in PEM.
pub(super) fn trusting(authorities: Option<&Path>) -> std::result::Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(file) => {
            let named = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
            for certificate in CertificateDer::pem_file_iter(file).map_err(|e| named(&e))? {
                let certificate = certificate.map_err(|e| named(&e))?;
                roots.add(certificate).map_err(|e| named(&e))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
    }
    if roots.is_empty() {
        return Err(
            "there is no certificate of an authority to trust: install ca-certificates, or name a file of \
             them in SSL_CERT_FILE"
                .to_owned(),
        );
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// What to do where the certificate's authority is not one of those that are trusted.
fn explained(e: Error) -> Error {
    let inner = e.get_ref().and_then(|inner| inner.downcast_ref());
    if let Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) = inner {
        let why = format!("{e}; SSL_CERT_FILE names a file of authorities to trust");
        return Error::new(e.kind(), why);
    }
    e
}
