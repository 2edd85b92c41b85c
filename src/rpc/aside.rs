//! Work on a large text in the middle of a call.

use tokio::runtime::{Handle, RuntimeFlavor};

use super::SMALL_BYTES_MAX;

/// Does something that takes as long as a text of so many bytes is. On a thread that others need these are given to another one
/// meanwhile. Outside of a runtime with threads of its own there is none to give them to.
pub(crate) fn aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let others =
        || Handle::try_current().is_ok_and(|it| it.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes > SMALL_BYTES_MAX && others() {
        return tokio::task::block_in_place(work);
    }
    work()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::{SMALL_BYTES_MAX, aside};

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_meanwhile() {
        let (say, hears) = mpsc::channel();
        let large = tokio::spawn(async move {
            let other = tokio::spawn(async move { say.send(()) });
            let heard = aside(SMALL_BYTES_MAX + 1, || {
                hears.recv_timeout(Duration::from_secs(30))
            });
            heard.is_ok() && other.await.is_ok()
        });
        assert!(large.await.unwrap(), "on the one thread that there is");
    }

    #[tokio::test]
    async fn it_is_done_where_there_are_no_others() {
        assert_eq!(aside(SMALL_BYTES_MAX + 1, || 1), 1);
    }
}
