//! What takes TLS off in front of a server that speaks none, as operators put it there.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

/// One that listens on a free port, until it is dropped.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) port: u16,
    end: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
}

impl Front {
    /// Hands on to `host` (`127.0.0.1:8080`). It shows the certificate and has the key of these files, in PEM.
    pub(crate) fn start(host: &str, certificate: &Path, key: &Path) -> Result<Front, String> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.to_string())?;
        let port = listener.local_addr().map_err(|e| e.to_string())?.port();
        listener.set_nonblocking(true).map_err(|e| e.to_string())?;
        let acceptor = acceptor(certificate, key)?;
        let runtime = Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(|e| e.to_string())?;
        let (end, ended) = oneshot::channel::<()>();
        let host = host.to_owned();
        let serving = std::thread::spawn(move || {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)
                    .expect("the runtime has a place for it");
                tokio::select! {
                    () = serve(&listener, &acceptor, &host) => {}
                    _ = ended => {}
                }
            });
        });
        Ok(Front {
            port,
            end: Some(end),
            serving: Some(serving),
        })
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(serving) = self.serving.take() {
            let _reported_by_the_cases = serving.join();
        }
    }
}

fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate)
        .map_err(|e| format!("{}: {e}", certificate.display()))?
        .collect();
    let certificates = certificates.map_err(|e| format!("{}: {e}", certificate.display()))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|e| format!("{}: {e}", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(certificates, key)
        })
        .map_err(|e| e.to_string())?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Each connection by itself; one that fails is its caller's to see.
async fn serve(listener: &tokio::net::TcpListener, acceptor: &TlsAcceptor, host: &str) {
    while let Ok((outside, _)) = listener.accept().await {
        let (acceptor, host) = (acceptor.clone(), host.to_owned());
        tokio::spawn(async move {
            let mut inside = TcpStream::connect(host).await?;
            let mut outside = acceptor.accept(outside).await?;
            tokio::io::copy_bidirectional(&mut outside, &mut inside).await
        });
    }
}
