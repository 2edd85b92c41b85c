//! Replies for a plugin's unit tests, and what becomes of them.

use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use skillgate_plugin_abi as abi;

use super::lock;
use crate::model::Result;
use crate::reply::{OnCancel, Origin};
use crate::{BlobBuffer, BlobData, Reply};

/// How long a test waits for an answer that does not come.
const PATIENCE: Duration = Duration::from_secs(30);

/// The other end of a [`Reply`].
#[derive(Debug)]
pub struct Replied<T> {
    answers: Receiver<Result<T>>,
    caller: Arc<Caller>,
}

impl<T> Replied<T> {
    /// The answer, waited for.
    ///
    /// # Panics
    /// When there is none within 30 s.
    pub fn wait(self) -> Result<T> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(_) => panic!("no answer within {} s", PATIENCE.as_secs()),
        }
    }

    /// The answer, if it is there. Once: it is taken.
    #[must_use]
    pub fn now(&self) -> Option<Result<T>> {
        self.answers.try_recv().ok()
    }

    /// From now on nobody wants the answer any more, which is told to who has asked for it.
    pub fn cancel(&self) {
        lock(&self.caller.0).cancelled = true;
        self.caller.tell();
    }
}

/// Whoever wants an answer.
#[derive(Default)]
struct Caller(Mutex<Wanted>);

#[derive(Default)]
struct Wanted {
    cancelled: bool,
    then: Option<OnCancel>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Caller")
    }
}

impl Caller {
    fn tell(&self) {
        // Not under the lock: the test's own code.
        let then = lock(&self.0).then.take();
        if let Some(then) = then {
            then();
        }
    }
}

impl Origin for Caller {
    fn cancelled(&self, _: abi::Op) -> bool {
        lock(&self.0).cancelled
    }

    fn on_cancel(&self, _: abi::Op, then: OnCancel) {
        let before = lock(&self.0).then.replace(then);
        drop(before);
        if self.cancelled(0) {
            self.tell();
        }
    }

    fn forget(&self, _: abi::Op) {
        let then = lock(&self.0).then.take();
        drop(then);
    }
}

/// A reply whose answer goes through `map`, which may keep what the answer is about.
fn mapped<T, A>(map: impl FnOnce(T) -> A + Send + 'static) -> (Reply<T>, Replied<A>)
where
    A: Send + 'static,
{
    let (send, answers) = channel();
    let caller = Arc::new(Caller::default());
    let end = move |result: Result<T>| {
        // A test that has what it wants may have left.
        drop(send.send(result.map(map)));
    };
    let reply = Reply::new(0, Arc::<Caller>::clone(&caller), end);
    (reply, Replied { answers, caller })
}

/// For a call with a reply.
pub fn reply<T: Send + 'static>() -> (Reply<T>, Replied<T>) {
    mapped(|answer| answer)
}

/// For a call whose answer is wanted where and when it is given: on the thread that answers, `end` gets it.
pub fn reply_to<T: 'static>(end: impl FnOnce(Result<T>) + Send + 'static) -> Reply<T> {
    Reply::new(0, Arc::new(Caller::default()), end)
}

/// For `blob_write`.
#[must_use]
pub fn blob_data(bytes: &[u8]) -> (BlobData, Replied<()>) {
    let bytes = bytes.to_vec();
    let lent: *const [u8] = &*bytes;
    let (reply, replied) = mapped(move |()| drop(bytes));
    // SAFETY: the memory is that of `bytes`, which nobody writes to and the reply's end keeps.
    (unsafe { BlobData::new(&*lent, reply) }, replied)
}

/// For `blob_read`, with room for so many bytes. The answer is what was read, and whether the end is reached.
#[must_use]
pub fn blob_buffer(room: usize) -> (BlobBuffer, Replied<(Vec<u8>, bool)>) {
    let mut bytes = vec![0; room];
    let lent: *mut [u8] = &mut *bytes;
    let (reply, replied) = mapped(move |(n, eof)| {
        bytes.truncate(n);
        (bytes, eof)
    });
    // SAFETY: the memory is that of `bytes`, which the reply's end keeps, and nobody uses before.
    (unsafe { BlobBuffer::new(&mut *lent, reply) }, replied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Error;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn an_answer_is_there_once_and_may_come_from_any_thread() {
        let (one, replied) = reply::<u32>();
        assert!(replied.now().is_none());
        let thread = std::thread::spawn(move || one.ok(7));
        assert_eq!(replied.wait(), Ok(7));
        thread.join().unwrap();
        let (one, replied) = reply::<u32>();
        one.fail(Error::new(abi::E_NOT_FOUND, "no"));
        assert_eq!(replied.now().unwrap().unwrap_err().code, abi::E_NOT_FOUND);
        assert!(replied.now().is_none());
    }

    #[test]
    fn a_caller_that_leaves_is_told_of() {
        let told = Arc::new(AtomicUsize::new(0));
        let tell = || {
            let told = Arc::clone(&told);
            move || {
                told.fetch_add(1, Ordering::SeqCst);
            }
        };
        let (one, replied) = reply::<()>();
        one.on_cancel(tell());
        assert!(!one.cancelled());
        replied.cancel();
        replied.cancel();
        assert!(one.cancelled());
        assert_eq!(told.load(Ordering::SeqCst), 1, "once");
        one.on_cancel(tell());
        assert_eq!(told.load(Ordering::SeqCst), 2, "at once");
        one.ok(());
        let (one, replied) = reply::<()>();
        one.on_cancel(tell());
        one.ok(());
        replied.cancel();
        assert_eq!(told.load(Ordering::SeqCst), 2, "not after the answer");
    }

    #[test]
    fn blobs_are_lent_until_the_answer() {
        let (data, replied) = blob_data(b"abc");
        assert_eq!(data.bytes(), b"abc");
        data.finish(Ok(()));
        assert_eq!(replied.wait(), Ok(()));
        let (mut buffer, replied) = blob_buffer(4);
        buffer.room()[..2].copy_from_slice(b"xy");
        buffer.finish(Ok((2, true)));
        assert_eq!(replied.wait(), Ok((b"xy".to_vec(), true)));
        let (buffer, replied) = blob_buffer(4);
        buffer.finish(Ok((5, true)));
        assert_eq!(replied.wait().unwrap_err().code, abi::E_INTERNAL);
    }
}
