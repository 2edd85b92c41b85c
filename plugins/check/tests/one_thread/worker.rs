//! The thread, and the way to it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Error, Result};

enum Message<S> {
    Job(Box<dyn FnOnce(&mut S) + Send>),
    End,
}

/// A thread that has `S` to itself, and does one thing after the other.
pub(crate) struct Worker<S> {
    post: Post<S>,
    thread: Option<JoinHandle<()>>,
}

/// Hands something to the thread, from anywhere.
pub(crate) struct Post<S>(Sender<Message<S>>);

impl<S> Clone for Post<S> {
    fn clone(&self) -> Self {
        Post(self.0.clone())
    }
}

impl<S> Post<S> {
    /// If the thread has ended, the job is dropped, and the reply in it says so.
    pub(crate) fn send(&self, job: impl FnOnce(&mut S) + Send + 'static) {
        drop(self.0.send(Message::Job(Box::new(job))));
    }
}

impl<S: Default + 'static> Worker<S> {
    pub(crate) fn start(name: &str) -> Result<Self> {
        let (post, received) = channel();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work::<S>(&received));
        let thread = thread.map_err(|error| Error::new(abi::E_EXHAUSTED, error.to_string()))?;
        Ok(Worker {
            post: Post(post),
            thread: Some(thread),
        })
    }
}

impl<S> Worker<S> {
    pub(crate) fn ask(&self, job: impl FnOnce(&mut S) + Send + 'static) {
        self.post.send(job);
    }

    pub(crate) fn post(&self) -> Post<S> {
        self.post.clone()
    }
}

/// An instance ends when its thread has.
impl<S> Drop for Worker<S> {
    fn drop(&mut self) {
        drop(self.post.0.send(Message::End));
        if let Some(thread) = self.thread.take() {
            // One that has panicked has ended as well, and its panic is in the log.
            drop(thread.join());
        }
    }
}

fn work<S: Default>(messages: &Receiver<Message<S>>) {
    let mut state = S::default();
    while let Ok(Message::Job(job)) = messages.recv() {
        job(&mut state);
    }
}
