//! Bytes and silence: what is counted against the limits of a run while a connection lasts.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::Run;
use super::record::Counts;

/// A run has moved as many bytes in one direction as it may.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the run's bytes are spent")]
pub(super) struct Spent;

impl From<Spent> for io::Error {
    fn from(spent: Spent) -> Self {
        io::Error::other(spent)
    }
}

/// Counts for one connection, which is one of a run's.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    run: Arc<Run>,
    counts: Arc<Counts>,
    began: Instant,
    /// Milliseconds from `began` to the last byte in either direction.
    last_ms: Arc<AtomicU64>,
    spent: Arc<AtomicBool>,
}

impl Meter {
    pub(super) fn new(run: Arc<Run>, counts: Arc<Counts>) -> Self {
        Meter {
            run,
            counts,
            began: Instant::now(),
            last_ms: Arc::default(),
            spent: Arc::default(),
        }
    }

    /// The error of who would pass a limit; the connection remembers that this is why it ended.
    pub(super) fn spend(&self) -> Spent {
        self.spent.store(true, Ordering::Release);
        Spent
    }

    pub(super) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Acquire)
    }

    /// Bytes that may still be sent. The limit is the run's: connections side by side may each pass it by one buffer.
    pub(super) fn room_up(&self) -> usize {
        room(self.run.gate.settings.run_upload_bytes_max, &self.run.up)
    }

    pub(super) fn room_down(&self) -> usize {
        room(
            self.run.gate.settings.run_download_bytes_max,
            &self.run.down,
        )
    }

    pub(super) fn up(&self, n: usize) {
        self.count(n, &self.counts.up, &self.run.up);
    }

    pub(super) fn down(&self, n: usize) {
        self.count(n, &self.counts.down, &self.run.down);
    }

    fn count(&self, n: usize, own: &AtomicU64, all: &AtomicU64) {
        own.fetch_add(n as u64, Ordering::Relaxed);
        all.fetch_add(n as u64, Ordering::Relaxed);
        self.last_ms
            .store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Ends when nothing has moved for `timeout`.
    pub(super) async fn silence(&self, timeout: Duration) {
        loop {
            let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let until = self.began + last + timeout;
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

fn room(max: u64, used: &AtomicU64) -> usize {
    usize::try_from(max.saturating_sub(used.load(Ordering::Relaxed))).unwrap_or(usize::MAX)
}

/// An upstream connection whose bytes are counted: read is down, written is up.
#[derive(Debug)]
pub(super) struct Metered<T> {
    inner: T,
    meter: Meter,
}

impl<T> Metered<T> {
    pub(super) fn new(inner: T, meter: Meter) -> Self {
        Metered { inner, meter }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.meter.is_spent() {
            return Poll::Ready(Err(Spent.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let n = buf.filled().len() - before;
        // What there is room for comes through, as in a tunnel: else a run would never have spent its bytes.
        let passed = n.min(self.meter.room_down());
        buf.set_filled(before + passed);
        self.meter.down(passed);
        if passed == n {
            return Poll::Ready(Ok(()));
        }
        let spent = self.meter.spend();
        if passed == 0 {
            return Poll::Ready(Err(spent.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let room = self.meter.room_up();
        if room == 0 && !buf.is_empty() {
            return Poll::Ready(Err(self.meter.spend().into()));
        }
        let n = ready!(Pin::new(&mut self.inner).poll_write(cx, &buf[..buf.len().min(room)]))?;
        self.meter.up(n);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
