//! A runtime of which one thread is held up goes on.
//!
//! Of an idle runtime's threads one waits for the network and the clock, and the others for work. The one that wakes for a
//! request handles it itself, and wakes nobody to wait in its place before it has done so: should it be held up, by a disk that
//! hangs under the audit log, the gateway would hear of nothing any more, no connection, no timer and no signal, however many
//! threads it has. Work that comes from outside of the runtime wakes one of those, and where that finds nobody waiting for the
//! network it does. So there is a little of it, ten times a second.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use tokio::runtime::Handle;

const INTERVAL: Duration = Duration::from_millis(100);

/// As long as this is there.
pub(super) struct Pulse {
    _ends: mpsc::Sender<()>,
}

impl Pulse {
    /// # Errors
    /// There is no thread for it.
    pub(super) fn of(runtime: &Handle) -> std::io::Result<Self> {
        let runtime = runtime.clone();
        let (ends, end) = mpsc::channel();
        let beat = move || {
            while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(INTERVAL) {
                drop(runtime.spawn(async {}));
            }
        };
        std::thread::Builder::new()
            .name("skillgate-pulse".into())
            .spawn(beat)?;
        Ok(Pulse { _ends: ends })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn while_one_thread_is_held_up_another_waits_for_the_network() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .worker_threads(2)
            .build()
            .unwrap();
        let pair = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            ours.set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            (ours, theirs)
        };
        let ((mut holding, held), (mut asking, asked)) = (pair(), pair());
        let (is_held, held_up) = mpsc::channel();
        let (goes_on, go_on) = mpsc::channel::<()>();
        runtime.spawn(async move {
            let mut held = tokio::net::UnixStream::from_std(held).unwrap();
            held.read_u8().await.unwrap();
            is_held.send(()).unwrap();
            let _ = go_on.recv(); // as a write to such a disk does, on this thread
        });
        runtime.spawn(async move {
            let mut asked = tokio::net::UnixStream::from_std(asked).unwrap();
            let byte = asked.read_u8().await.unwrap();
            asked.write_u8(byte).await.unwrap();
        });
        let _pulse = Pulse::of(runtime.handle()).unwrap();

        // Only of those that wait one alone waits for the network.
        let metrics = runtime.metrics();
        while (0..2).any(|worker| metrics.worker_park_unpark_count(worker).is_multiple_of(2)) {
            std::thread::yield_now();
        }
        holding.write_all(b"x").unwrap();
        held_up.recv().unwrap();
        asking.write_all(b"y").unwrap();
        let mut answer = [0];
        let answered = asking.read_exact(&mut answer);
        drop(goes_on);
        answered.expect("an answer, while the other thread is held up");
        assert_eq!(answer, *b"y");
    }
}
