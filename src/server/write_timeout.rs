//! Writes that wait for the peer: one that makes no progress for a time is an error, and so is too little of it for ten times
//! as long, which ends the connection and frees what its answer holds. A connection that has nothing to write may be as quiet as
//! it likes.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::progress::Progress;

/// What is asked of a stream whose peer seems to take nothing.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Offers bytes to the kernel although it has not said that there is room.
    fn offer(&self, bytes: &[u8]) -> io::Result<usize>;
    /// What is not sent yet goes with the connection.
    fn discard_unsent(&self) -> io::Result<()>;
}

/// A stream on which a write that waits for `timeout` without progress, or with too little, fails with `TimedOut`.
#[derive(Debug)]
pub(super) struct WriteTimeout<S> {
    stream: S,
    timeout: Duration,
    /// Since the first write that had to wait; none while they make progress.
    waits: Option<Pin<Box<Sleep>>>,
    /// When the write that waits has begun to.
    began: Option<Instant>,
    progress: Progress,
    /// The kernel took what was offered, and has not said that there is room: it is offered more until it takes none. Else
    /// each write, however small, would wait for the whole time beside room for thousands.
    took_offer: bool,
}

impl<S: Socket> WriteTimeout<S> {
    pub(super) fn new(stream: S, timeout: Duration) -> Self {
        WriteTimeout {
            stream,
            timeout,
            waits: None,
            began: None,
            progress: Progress::new(timeout),
            took_offer: false,
        }
    }

    /// How a write ends that the peer has let end.
    fn gone_on(&mut self, outcome: io::Result<usize>) -> Poll<io::Result<usize>> {
        let waited = self.began.take().map(|began| began.elapsed());
        let bytes = *outcome.as_ref().unwrap_or(&0);
        if self.progress.is_enough(bytes, waited.unwrap_or_default()) {
            return Poll::Ready(outcome);
        }
        self.give_up("the client reads too slowly (server.write_timeout_ms)")
    }

    fn give_up(&self, why: &str) -> Poll<io::Result<usize>> {
        if let Err(error) = self.stream.discard_unsent() {
            tracing::debug!(%error, "SO_LINGER");
        }
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, why)))
    }

    /// What a write has come to. `first` is of its bytes.
    fn watched(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
        first: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(outcome) = outcome {
            self.waits = None;
            self.took_offer = false;
            return self.gone_on(outcome);
        }
        if self.took_offer {
            match self.stream.offer(first) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.took_offer = false,
                outcome => return self.gone_on(outcome),
            }
        }
        let timeout = self.timeout;
        self.began.get_or_insert_with(Instant::now);
        let waits = self
            .waits
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(waits.as_mut().poll(cx));
        match self.stream.offer(first) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.give_up("the client does not read (server.write_timeout_ms)")
            }
            outcome => {
                self.waits = None;
                self.took_offer = true;
                self.gone_on(outcome)
            }
        }
    }
}

impl<S: Socket> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: Socket> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watched(cx, outcome, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        let first = bufs.iter().find(|buf| !buf.is_empty());
        self.watched(cx, outcome, first.map_or(&[], |buf| buf))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // A socket's flush and shutdown wait for nobody, so there is nothing to watch.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::{Socket, WriteTimeout};
    use crate::server::connection::Connection;
    use std::io::{self, ErrorKind, IoSlice};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::{Instant, advance, timeout};

    const LIMIT: Duration = Duration::from_secs(30);
    const ALMOST: Duration = Duration::from_secs(29);

    impl Socket for DuplexStream {
        fn offer(&self, _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::WouldBlock.into())
        }

        fn discard_unsent(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A stream that takes ten bytes, and its peer.
    fn pair() -> (WriteTimeout<DuplexStream>, DuplexStream) {
        let (ours, peer) = duplex(10);
        (WriteTimeout::new(ours, LIMIT), peer)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_takes_fails_when_the_time_is_over() {
        let (mut stream, _peer) = pair();
        let began = Instant::now();
        let error = stream.write_all(&[0; 11]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!((LIMIT..LIMIT + Duration::from_millis(10)).contains(&began.elapsed()));

        let (mut stream, _peer) = pair();
        let began = Instant::now();
        stream.write_all(&[0; 10]).await.unwrap();
        let pieces = [IoSlice::new(&[]), IoSlice::new(b"more")];
        let error = stream.write_vectored(&pieces).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(began.elapsed() >= LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_a_little_has_the_whole_time_again() {
        let (mut stream, mut peer) = pair();
        let began = Instant::now();
        let writes = tokio::spawn(async move { stream.write_all(&[0; 20]).await });
        for _ in 0..10 {
            tokio::time::sleep(ALMOST).await;
            assert!(!writes.is_finished());
            peer.read_u8().await.unwrap();
        }
        writes.await.unwrap().unwrap();
        assert!(began.elapsed() > 9 * LIMIT);
    }

    /// How long writes went on, to a peer that reads so many bytes every 29 seconds, and how that ended.
    async fn read_at(bytes: usize) -> (Duration, io::Result<()>) {
        let (ours, mut peer) = duplex(64 << 10);
        let mut stream = WriteTimeout::new(ours, LIMIT);
        let began = Instant::now();
        let reads = tokio::spawn(async move {
            let mut piece = vec![0; bytes];
            loop {
                tokio::time::sleep(ALMOST).await;
                peer.read_exact(&mut piece).await.unwrap();
            }
        });
        let writes = stream.write_all(&[0; 1 << 20]).await;
        reads.abort();
        (began.elapsed(), writes)
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_a_little_has_not_all_the_time_there_is() {
        let second = Duration::from_secs(1);
        let (took, written) = read_at(29 << 10).await;
        written.unwrap();
        assert!(took > 30 * LIMIT, "{took:?}");
        // With what was there at once, in the first ten times.
        let (took, written) = read_at((29 << 10) - 1).await;
        let error = written.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("too slowly"), "{error}");
        assert!(
            took >= 20 * LIMIT && took < 20 * LIMIT + 60 * second,
            "{took:?}"
        );
        let (took, written) = read_at(1).await;
        assert_eq!(written.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(
            took >= 10 * LIMIT && took < 10 * LIMIT + 60 * second,
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_write_that_waits_there_is_no_time() {
        let (mut stream, mut peer) = pair();
        stream.write_all(&[0; 10]).await.unwrap();
        advance(100 * LIMIT).await;
        // Neither does one that was waited for count against the next.
        let second = timeout(ALMOST, stream.write_all(&[0; 1]));
        assert!(second.await.is_err(), "it waits");
        peer.read_exact(&mut [0; 10]).await.unwrap();
        stream.write_all(&[0; 10]).await.unwrap();
        peer.read_exact(&mut [0; 10]).await.unwrap();
        let (read, written) = tokio::join!(stream.read_u8(), async {
            tokio::time::sleep(100 * LIMIT).await;
            peer.write_u8(7).await
        });
        written.unwrap();
        assert_eq!(read.unwrap(), 7, "it is quiet and has not ended");
        stream.write_all(&[0; 10]).await.unwrap();
    }

    /// A connection whose peer has read a little of what waits for it: far from a third, which is when the kernel says that
    /// there is room. By the clock: the kernel's buffers know no other.
    async fn slowly_read(limit: Duration) -> (WriteTimeout<Connection>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut peer, ours) = (peer.unwrap(), accepted.unwrap().0);
        let mut stream = WriteTimeout::new(Connection::new(ours), limit);
        let piece = vec![0; 64 * 1024];
        let mut written = 0;
        while let Ok(n) = timeout(limit / 10, stream.write(&piece)).await {
            written += n.unwrap();
        }
        peer.read_exact(&mut vec![0; written / 10]).await.unwrap();
        (stream, peer)
    }

    #[tokio::test]
    async fn small_writes_do_not_wait_one_by_one_for_what_the_kernel_does_not_tell() {
        let limit = Duration::from_secs(1);
        let (mut stream, _peer) = slowly_read(limit).await;
        let mut taken = 0;
        let writes = async {
            loop {
                match stream.write(&[0; 100]).await {
                    Ok(_) => taken += 1,
                    Err(error) => break error,
                }
            }
        };
        let error = timeout(20 * limit, writes)
            .await
            .expect("there is room for all of them");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(taken > 1, "{taken} writes");
    }

    #[tokio::test]
    async fn a_reader_that_is_slower_than_the_kernel_tells_is_not_cut_off() {
        let (mut stream, mut peer) = slowly_read(Duration::from_secs(1)).await;
        let piece = vec![0; 64 * 1024];
        assert!(stream.write(&piece).await.unwrap() > 0);
        let error = loop {
            if let Err(error) = stream.write(&piece).await {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        drop(stream);
        let mut rest = Vec::new();
        let error = peer.read_to_end(&mut rest).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}
