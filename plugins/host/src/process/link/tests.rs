//! A link whose process is a program that neither reads nor says anything; the other end is the test's.

mod anything;

use std::io::Write as _;
use std::os::fd::OwnedFd;

use skillgate_plugin_sdk::model::RunRequest;

use super::outgoing::WAITING_BYTES_MAX;
use super::*;
use crate::process::ProcessSettings;
use crate::process::frame::FDS_MAX;
use crate::process::services::{PIECE_BYTES, Service, WINDOW_BYTES};
use crate::sandbox::RunHost;
use crate::wire::Out;

/// Only there to fail.
const PATIENCE: Duration = Duration::from_secs(30);
/// As many frames as no process that reads has replies to wait for.
const MANY: usize = 1_000_000;

/// Takes output until it has had enough.
#[derive(Default)]
struct Taker {
    enough: bool,
    /// Where blobs are made, that hangs until this says more, or is gone.
    hangs: Option<Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl RunHost for Taker {
    fn output(&self, _: u32, _: &[u8]) -> bool {
        !self.enough
    }
    fn secret(&self, name: &str) -> Result<Vec<u8>> {
        Err(Error::new(abi::E_NOT_FOUND, name))
    }
    fn blob_fd(&self, id: &str) -> Result<OwnedFd> {
        Err(Error::new(abi::E_NOT_FOUND, id))
    }
    fn blob_read(&self, _: &str, _: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(buf.len())
    }
    fn blob_create(&self, kind: &str) -> Result<i64> {
        if let Some(hangs) = &self.hangs {
            let _ = hangs.lock().unwrap().recv();
        }
        Err(Error::new(abi::E_NOT_FOUND, kind))
    }
    fn blob_write(&self, _: i64, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn blob_finish(&self, _: i64, _: bool) -> Result<Option<String>> {
        Ok(None)
    }
    fn gate_serve(&self, _: OwnedFd) -> Result<()> {
        Ok(())
    }
}

struct Other {
    link: Arc<Link>,
    /// The process's end of the socket, and of the pipe for begun runs.
    socket: UnixStream,
    begins: std::fs::File,
}

fn other() -> Other {
    let settings = ProcessSettings {
        program: "/bin/sleep".into(),
        ..ProcessSettings::this_program(&["1000"])
    };
    let (mut fresh, begins) = super::super::start::Image::spawn(&settings, "test").unwrap();
    let (ours, socket) = UnixStream::pair().unwrap();
    fresh.socket = ours;
    Other {
        link: Link::new(fresh, 1, Arc::default()).unwrap(),
        socket,
        begins: begins.into(),
    }
}

type Answered = tokio::sync::oneshot::Receiver<Error>;

impl Other {
    fn begin(&self, run: Option<Taker>) -> (u64, Answered) {
        self.begin_with(run, &[])
    }

    fn begin_with(&self, run: Option<Taker>, request: &[u8]) -> (u64, Answered) {
        let (tell, answered) = tokio::sync::oneshot::channel();
        let run = run.map(|host| {
            Arc::new(RunContext {
                host: Arc::new(host),
                request: Arc::new(RunRequest::default()),
            })
        });
        let pending = Pending {
            name: "run",
            started: run.is_none(),
            run,
            taken: services::Taken::default(),
            open: services::Open::default(),
            ends: None,
            done: Box::new(|answer| {
                drop(tell.send(answer.map(drop).unwrap_err()));
                Ok(())
            }),
        };
        let packet = Packet::new(Kind::Call, 0, |out| out.bytes.extend_from_slice(request));
        let call = self.link.begin(packet.unwrap(), pending);
        (call.map_err(|_| "refused").unwrap(), answered)
    }

    /// What it has been sent since.
    fn received(&self) -> Vec<Frame> {
        let mut incoming = Incoming::new(1 << 20);
        let mut frames = Vec::new();
        while socket::holds(&self.socket).unwrap() > 0 {
            incoming.receive(&self.socket, 0).unwrap();
            while let Some(frame) = incoming.frame().unwrap() {
                frames.push(frame);
            }
        }
        frames
    }

    fn output(&self, call: u64, data: &[u8]) {
        let mut frame = frame(Kind::Output, call, |out| {
            out.u8(1);
            out.data(data);
        });
        services::output(&self.link, &mut frame).unwrap();
    }

    fn why_killed(&self) -> Option<String> {
        self.link.why_killed.lock().unwrap().clone()
    }

    fn is_dead(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.link.process.pid));
        stat.unwrap().rsplit(')').next().unwrap().starts_with(" Z")
    }
}

/// As the process would send it.
fn frame(kind: Kind, call: u64, write: impl FnOnce(&mut Out)) -> Frame {
    let mut out = Out::default();
    write(&mut out);
    Frame {
        kind,
        call,
        body: out.bytes,
        fds: out.fds.into(),
        lost: false,
    }
}

#[tokio::test]
async fn a_secret_that_never_leaves_is_wiped_too() {
    use crate::process::frame::tests::WIPED;
    let other = other();
    // The socket takes some of them; nobody reads.
    let waits = |_: &usize| !other.link.outgoing().full;
    let sent = (0..MANY).take_while(waits).map(|_| {
        let mut packet = Packet::new(Kind::Reply, 1, |out| out.data(&[b'x'; 4096])).unwrap();
        packet.secret = true;
        other.link.reply(packet);
    });
    let sent = sent.count();
    other.link.bury();
    assert_eq!(WIPED.get(), sent);
}

#[tokio::test]
async fn its_end_is_its_death_and_what_it_has_begun_by_then_counts() {
    let mut other = other();
    let ((begun, crashed), (_, never_begun)) = (
        other.begin(Some(Taker::default())),
        other.begin(Some(Taker::default())),
    );
    assert!(!other.is_dead());
    tokio::time::timeout(PATIENCE, other.link.end())
        .await
        .unwrap();
    assert!(other.is_dead(), "nothing of it goes on");
    // There before the pipe is read.
    other.begins.write_all(&begun.to_le_bytes()).unwrap();
    assert_eq!(other.link.bury(), (2, 1));
    let error = crashed.await.unwrap();
    assert_eq!((error.code, error.not_executed), (abi::E_CRASHED, false));
    let error = never_begun.await.unwrap();
    assert_eq!((error.code, error.not_executed), (abi::E_UNAVAILABLE, true));
}

/// More than the socket takes, and nobody reads: of the first a part has left, and what has become of that nobody knows.
#[tokio::test]
async fn a_call_of_which_a_part_has_left_may_have_been_begun() {
    let other = other();
    let large = vec![0; 4 << 20];
    let (in_part, waits) = (other.begin_with(None, &large).1, other.begin(None).1);
    assert!(other.link.outgoing().sent > 0);
    assert_eq!(other.link.bury(), (2, 1));
    let error = in_part.await.unwrap();
    assert_eq!((error.code, error.not_executed), (abi::E_CRASHED, false));
    let error = waits.await.unwrap();
    assert_eq!((error.code, error.not_executed), (abi::E_UNAVAILABLE, true));
}

#[tokio::test]
async fn a_call_of_which_nothing_has_left_has_not_been_begun() {
    let other = other();
    other.link.outgoing().full = true;
    let waits = other.begin(None).1;
    assert_eq!(other.link.outgoing().sent, 0);
    assert_eq!(other.link.bury(), (1, 1));
    let error = waits.await.unwrap();
    assert_eq!((error.code, error.not_executed), (abi::E_UNAVAILABLE, true));
}

/// Nobody would count it as ended: its instance would be in use for ever.
#[tokio::test]
async fn a_failure_that_makes_no_sense_is_told_to_whoever_waits() {
    for kind in [Kind::Failed, Kind::Unheard] {
        let other = other();
        let (call, answered) = other.begin(None);
        let cut = frame(kind, call, |out| out.u8(1));
        let Malformed(why) = other.link.answer(cut).unwrap_err();
        assert_eq!(why, "run: code: the frame ends before it");
        let error = answered.await.unwrap();
        assert_eq!(error.code, abi::E_PROTOCOL, "{error}");
        assert!(error.message.contains("a malformed answer"), "{error}");
    }
}

#[tokio::test]
async fn output_of_a_call_without_a_run_is_not_answered() {
    let other = other();
    let (call, _answered) = other.begin(None);
    assert_eq!(other.received().len(), 1);
    for call in [call, call + 1, 0] {
        other.output(call, &[0; 1 << 20]);
        assert_eq!(other.received().len(), 0, "call {call}");
    }
}

#[tokio::test]
async fn small_output_is_answered_before_whoever_sends_it_waits() {
    const LINE_BYTES: usize = 64;
    let other = other();
    let (call, _answered) = other.begin(Some(Taker::default()));
    other.received();
    let (mut told, mut answers) = (0, 0);
    for sent in (0..WINDOW_BYTES * 2).step_by(LINE_BYTES) {
        other.output(call, &[0; LINE_BYTES]);
        for mut frame in other.received() {
            let read = |from: &mut In<'_>| Ok((from.u32("bytes")?, from.flag("more")?));
            let (bytes, more) = frame.read(read).unwrap();
            assert_eq!((frame.kind, more), (Kind::Taken, true));
            told += bytes as usize;
            answers += 1;
        }
        let sent = sent + LINE_BYTES;
        assert!(sent - told < WINDOW_BYTES / 2, "{told} of {sent}");
    }
    assert!((1..=8).contains(&answers), "{answers}");
}

#[tokio::test]
async fn one_that_has_sent_enough_is_told_once_and_at_once() {
    let other = other();
    let (call, _answered) = other.begin(Some(Taker {
        enough: true,
        ..Taker::default()
    }));
    other.received();
    for answers in [1, 0, 0] {
        other.output(call, b"one");
        let received = other.received();
        assert_eq!(received.len(), answers);
        assert!(received.iter().all(|frame| frame.body.last() == Some(&0)));
    }
}

#[tokio::test]
async fn one_that_sends_and_does_not_read_is_ended() {
    let other = other();
    let ask = |_: &usize| {
        let asked = frame(Kind::Service, 99, |out| {
            out.u8(Service::Secret as u8);
            out.u64(7);
            out.text("TOKEN");
        });
        services::service(&other.link, asked, &tokio::runtime::Handle::current()).unwrap();
        other.why_killed().is_some()
    };
    let asked = (0..MANY).find(ask);
    assert!(asked.is_some_and(|asked| asked > 10_000), "{asked:?}");
    let why = other.why_killed().unwrap();
    assert!(why.starts_with("it sends and does not read"), "{why}");
    let dead = tokio::time::timeout(PATIENCE, other.link.gone()).await;
    dead.unwrap().unwrap();
}

/// A writer whose commit was not said is still open, and is let go of; and what is let go of is not kept.
#[tokio::test]
async fn what_there_is_no_place_for_any_more_is_not_forgotten() {
    let other = other();
    let with = |bytes| Packet::new(Kind::Call, 0, |out| out.data(&vec![0; bytes])).unwrap();
    // More than its socket takes, and behind that all that may wait but a MiB.
    assert!(other.link.send(with(4 << 20)));
    let mut all = with(0);
    all.bytes.reserve_exact(WAITING_BYTES_MAX - (5 << 20));
    assert!(other.link.send(all));
    let ends = Arc::new(AtomicBool::new(false));
    let commit = Pending {
        name: "blob_commit",
        started: true,
        run: None,
        taken: services::Taken::default(),
        open: services::Open::default(),
        ends: Some(ends.clone()),
        done: Box::new(|_| Ok(())),
    };
    assert!(other.link.begin(with(2 << 20), commit).is_err());
    assert!(ends.load(Ordering::Acquire));
    assert!(other.why_killed().is_none());
    other.link.insist(with(2 << 20));
    let why = other.why_killed().unwrap();
    assert!(why.starts_with("it does not read what it is told"), "{why}");
    let dead = tokio::time::timeout(PATIENCE, other.link.gone()).await;
    dead.unwrap().unwrap();
}

/// Nobody would try again, and whoever waits for an answer would wait for ever.
#[tokio::test]
async fn one_whose_socket_does_not_take_what_is_sent_is_ended() {
    let other = other();
    let file = tempfile::tempfile().unwrap();
    let mut packet = Packet::new(Kind::Call, 0, |_| {}).unwrap();
    // More than the system takes at once, as no packet has that was made like others.
    let too_many = (0..=FDS_MAX).map(|_| file.try_clone().unwrap().into());
    packet.fds = too_many.collect();
    assert!(other.link.send(packet));
    let why = other.why_killed().unwrap();
    assert!(why.starts_with("what is sent to it is not taken"), "{why}");
    let dead = tokio::time::timeout(PATIENCE, other.link.gone()).await;
    dead.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_of_blobs_may_wait_for_a_process_that_reads_later() {
    const PIECES: usize = 64;
    let other = other();
    let (call, _answered) = other.begin(Some(Taker::default()));
    other.received();
    for number in 0..PIECES {
        let asked = frame(Kind::Service, call, |out| {
            out.u8(Service::BlobRead as u8);
            out.u64(number as u64);
            out.text("blob:a");
            out.u64(0);
            out.u64(PIECE_BYTES as u64);
        });
        services::service(&other.link, asked, &tokio::runtime::Handle::current()).unwrap();
    }
    let served = async {
        while other.link.services.load(Ordering::Acquire) > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, served).await.unwrap();
    let reading = std::thread::spawn(move || {
        other.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut incoming = Incoming::new(2 * PIECE_BYTES);
        let mut whole = 0;
        while whole < PIECES {
            // As the task that serves the link does when there is room again.
            other.link.send_more().unwrap();
            incoming.receive(&other.socket, 0).unwrap();
            while let Some(frame) = incoming.frame().unwrap() {
                assert_eq!(frame.kind, Kind::Reply);
                assert!(frame.body.len() > PIECE_BYTES);
                whole += 1;
            }
        }
        other.why_killed()
    });
    let why = tokio::task::spawn_blocking(|| reading.join().unwrap()).await;
    assert_eq!(why.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_hangs_is_answered_when_its_call_is_cancelled_and_once() {
    let other = other();
    let (let_go, hangs) = std::sync::mpsc::channel();
    let (call, answered) = other.begin(Some(Taker {
        hangs: Some(Mutex::new(hangs)),
        ..Taker::default()
    }));
    other.received();
    let create = |number: u64| {
        let asked = frame(Kind::Service, call, |out| {
            out.u8(Service::BlobCreate as u8);
            out.u64(number);
            out.text("text/plain");
        });
        services::service(&other.link, asked, &tokio::runtime::Handle::current()).unwrap();
    };
    let told = |number| {
        let mut frames = other.received();
        let mut reply = frames.pop().unwrap();
        assert_eq!((reply.kind, reply.call), (Kind::Reply, number));
        assert_eq!(reply.body[0], 0, "it has failed");
        reply.body.remove(0);
        assert_eq!(reply.read(take_error).unwrap().code, abi::E_CANCELLED);
        frames
    };
    // The process may say one number twice: each is answered.
    create(7);
    create(7);
    assert!(other.received().is_empty());
    other.link.cancel(call);
    let before = told(7);
    let kinds: Vec<_> = before.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [Kind::Cancel, Kind::Reply], "first it is told why");
    create(8);
    assert!(told(8).is_empty());
    assert_eq!(
        other.link.services.load(Ordering::Acquire),
        2,
        "they go on, and count"
    );
    drop(let_go);
    let come_back = async {
        while other.link.services.load(Ordering::Acquire) > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, come_back).await.unwrap();
    assert!(other.received().is_empty(), "nobody waits for that");
    assert!(other.link.is_pending(call));
    drop(answered);
}
