//! How much is read at once, and of what nobody wants.

use std::sync::atomic::AtomicUsize;

use futures_util::StreamExt as _;
use http::{Request, Response};
use http_body_util::{Full, StreamBody};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::super::{BodyError, READ_BYTES_MAX};
use super::*;

/// Notes the most that it was asked for at once.
struct Asks(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for Asks {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.1.fetch_max(buf.remaining(), Ordering::Relaxed);
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Asks {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The most that is read at once of so many requests, of which a service reads the bodies or does not.
async fn most_of(requests: Vec<u8>, count: usize, reads_bodies: bool) -> usize {
    let (client, server) = tokio::io::duplex(1 << 20);
    let most = Arc::new(AtomicUsize::new(0));
    let due = Due::default();
    let stream = Asks(server, most.clone());
    let stream = Malformed::new(
        stream,
        due.clone(),
        ([192, 0, 2, 1], 7).into(),
        Metrics::default(),
    );
    let service = service_fn(move |request: Request<Incoming>| {
        let answering = due.answer();
        async move {
            let body = answering.asked(request.into_body());
            if reads_bodies {
                body.collect().await?;
            }
            Ok::<_, hyper::Error>(Response::new(Full::<Bytes>::from("hello")))
        }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .max_buf_size(READ_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let serving = tokio::spawn(serving);
    let (mut reading, mut writing) = tokio::io::split(client);
    let writes = tokio::spawn(async move {
        // The server may have ended it before all is sent.
        let _ = writing.write_all(&requests).await;
        std::future::pending::<()>().await;
    });
    let mut answers = Vec::new();
    while String::from_utf8_lossy(&answers).matches("hello").count() < count {
        assert!(
            reading.read_buf(&mut answers).await.unwrap() > 0,
            "it ended"
        );
    }
    writes.abort();
    serving.abort();
    most.load(Ordering::Relaxed)
}

#[tokio::test]
async fn large_heads_buy_no_large_buffer() {
    let head = |lines: &str| format!("POST / HTTP/1.1\r\nHost: x\r\n{lines}\r\n").into_bytes();
    let heads = head(&format!("X-Big: {}\r\n", "x".repeat(12_000))).repeat(20);
    assert_eq!(most_of(heads.clone(), 20, false).await, HEAD_READ_BYTES);
    assert_eq!(most_of(heads, 20, true).await, HEAD_READ_BYTES);
    let body = vec![b'x'; 1 << 20];
    let upload = [head(&format!("Content-Length: {}\r\n", body.len())), body].concat();
    assert_eq!(most_of(upload.clone(), 1, false).await, HEAD_READ_BYTES);
    // What somebody wants is read as fast as it comes.
    assert!(most_of(upload, 1, true).await >= READ_BYTES_MAX);
}

/// Of a body that comes in such pieces, `ends` or not.
async fn is_read(pieces: &[usize], ends: bool) -> bool {
    let pieces = pieces.iter().map(|&size| vec![b'x'; size].into());
    let pieces: Vec<Result<_, BodyError>> =
        pieces.map(|data: Bytes| Ok(Frame::data(data))).collect();
    let begun = futures_util::stream::iter(pieces);
    let rest = futures_util::stream::pending().take(usize::from(!ends));
    reads_rest(&mut StreamBody::new(begun.chain(rest))).await
}

#[tokio::test(start_paused = true)]
async fn a_rest_is_read_that_is_short_and_there() {
    let most = REST_BYTES_MAX as usize;
    assert!(is_read(&[], true).await);
    assert!(is_read(&[1, most - 1], true).await);
    assert!(!is_read(&[most, 1], true).await);
    assert!(!is_read(&[1], false).await);
    let mut long = Full::from(vec![b'x'; most + 1]);
    assert!(!reads_rest(&mut long).await);
    assert_eq!(long.size_hint().exact(), Some(REST_BYTES_MAX + 1));
}
