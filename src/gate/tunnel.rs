//! A CONNECT tunnel: the ClientHello is held until it names the host that was granted, then both ways are copied until
//! a side, a limit, the rules or the run ends it.
//!
//! What this cannot see: the Host of a request inside TLS, and a server name that is sent inside a renegotiation. A
//! granted host that serves others under its own name serves them to the run too.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::hello::{
    ALERT, Answer, BadHello, CLIENT_HELLO, HANDSHAKE, HelloReader, RECORD_HEADER_BYTES,
};
use super::meter::Meter;
use super::record::Entry;
use super::refusal::Refusal;
use super::target::Target;
use super::{Run, revoked};
use crate::slots::Slot;

/// Bytes that each direction holds.
const BUFFER_BYTES: usize = 32 << 10;
/// Bytes that are read at once while a tunnel begins.
const HELD_BYTES: usize = 4096;
/// For the last words to the run.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// For what a host has sent before it broke off.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const CHANGE_CIPHER_SPEC: u8 = 20;

/// A tunnel that has been answered with 200.
#[derive(Debug)]
pub(super) struct Tunnel {
    pub(super) entry: Entry,
    pub(super) target: Target,
    pub(super) upstream: TcpStream,
    pub(super) address: SocketAddr,
    /// One of `gate.max_tunnels`.
    pub(super) slot: Slot,
}

/// Why copying ended.
pub(super) enum End {
    /// A side has gone, or the meter says why.
    Broken,
    Hello(BadHello),
    HelloTimeout,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        End::Broken
    }
}

impl From<BadHello> for End {
    fn from(bad: BadHello) -> Self {
        End::Hello(bad)
    }
}

impl Tunnel {
    /// Until it ends. `early` is what the client has sent behind its CONNECT.
    pub(super) async fn run(
        self,
        run: std::sync::Arc<Run>,
        client: impl AsyncRead + AsyncWrite,
        early: &[u8],
    ) {
        let Tunnel {
            mut entry,
            target,
            mut upstream,
            address,
            slot,
        } = self;
        let meter = Meter::new(run.clone(), entry.counts.clone());
        let (mut from_run, mut to_run) = tokio::io::split(client);
        let (mut from_host, mut to_host) = upstream.split();
        let hello = Hello {
            run: &run,
            host: target.host(),
            meter: &meter,
        };
        let mut say = None;
        let copied = async {
            let behind = hello.first(&mut from_run, &mut to_host, early).await?;
            let (tell, taken) = oneshot::channel();
            let up = async {
                hello
                    .second(&mut from_run, &mut to_host, behind, taken)
                    .await?;
                copy(
                    &mut from_run,
                    &mut to_host,
                    &meter,
                    Meter::room_up,
                    Meter::up,
                    |_| (),
                )
                .await?;
                Ok::<(), End>(())
            };
            let down = async {
                // Gone with this direction: then nobody waits for it.
                let mut answer = Answer::new(tell);
                copy(
                    &mut from_host,
                    &mut to_run,
                    &meter,
                    Meter::room_down,
                    Meter::down,
                    |bytes| answer.push(bytes),
                )
                .await?;
                Ok::<(), End>(())
            };
            both(up, down, &meter).await
        };
        tokio::select! {
            biased;
            () = revoked(&run, &target, address) => entry.revoked(),
            () = meter.silence(run.gate.settings.idle_timeout) => entry.cut("idle"),
            copied = copied => match copied {
                Ok(()) => entry.ended("closed"),
                Err(End::Broken) if meter.is_spent() => entry.cut(Refusal::BytesSpent.code()),
                Err(End::Broken) => entry.ended("broken"),
                Err(End::HelloTimeout) => entry.cut("tls.hello_timeout"),
                Err(End::Hello(bad)) => {
                    entry.cut(word(bad));
                    say = Some(bad);
                }
            },
        }
        // The tunnel is over, whether or not the run hears of it.
        drop((entry, upstream, slot));
        let told = async {
            if let Some(bad) = say {
                to_run.write_all(&goodbye(bad, &target)).await?;
            }
            to_run.shutdown().await
        };
        // An end that is gone, or does not read, cannot be told.
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, told).await;
    }
}

/// Both directions, until both have ended or one of them fails. A host that takes no more has often said why before: what it has
/// sent is there to be read, so its direction gets a moment to end by itself.
pub(super) async fn both(
    up: impl Future<Output = Result<(), End>>,
    down: impl Future<Output = Result<(), End>>,
    meter: &Meter,
) -> Result<(), End> {
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    tokio::select! {
        sent = &mut up => {
            if matches!(sent, Err(End::Broken)) && !meter.is_spent() {
                let _ = tokio::time::timeout(LAST_ANSWER_TIMEOUT, down).await;
                return sent;
            }
            sent?;
            down.await
        }
        received = &mut down => {
            received?;
            up.await
        }
    }
}

/// The stable word of a record.
fn word(bad: BadHello) -> &'static str {
    match bad {
        BadHello::NotTls => "tls.required",
        BadHello::Malformed => "tls.malformed",
        BadHello::TooLong => "tls.hello_too_long",
        BadHello::NoName => "tls.no_name",
        BadHello::OtherName => "tls.other_name",
        BadHello::Encrypted => "tls.encrypted_hello",
        BadHello::EarlyData => "tls.early_data",
    }
}

/// The last words: an alert that a TLS library turns into an error of its own (RFC 8446, 6), or text for whoever did not
/// speak TLS.
fn goodbye(bad: BadHello, target: &Target) -> Vec<u8> {
    const UNRECOGNIZED_NAME: u8 = 112;
    const ACCESS_DENIED: u8 = 49;
    const DECODE_ERROR: u8 = 50;
    let description = match bad {
        BadHello::NotTls => {
            let text = format!(
                "a tunnel to {target} carries TLS and nothing else; http goes through the gate without CONNECT\n"
            );
            return format!(
                "HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
                text.len()
            )
            .into_bytes();
        }
        BadHello::NoName | BadHello::OtherName => UNRECOGNIZED_NAME,
        BadHello::Encrypted | BadHello::EarlyData => ACCESS_DENIED,
        BadHello::Malformed | BadHello::TooLong => DECODE_ERROR,
    };
    vec![ALERT, 3, 3, 0, 2, 2, description]
}

/// What is asked of ClientHellos.
struct Hello<'a> {
    run: &'a Run,
    host: &'a str,
    meter: &'a Meter,
}

impl Hello<'_> {
    /// Holds the first one until it is whole and right. Gives what came behind it.
    async fn first<R, W>(&self, from: &mut R, to: &mut W, early: &[u8]) -> Result<Vec<u8>, End>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let whole = self.pass(from, to, early.to_vec());
        tokio::time::timeout(self.run.gate.settings.hello_timeout, whole)
            .await
            .map_err(|_| End::HelloTimeout)?
    }

    /// Reads a ClientHello that begins with `held`, checks it and passes it on. Gives what came behind it.
    async fn pass<R, W>(&self, from: &mut R, to: &mut W, mut held: Vec<u8>) -> Result<Vec<u8>, End>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut reader = HelloReader::new(self.run.gate.settings.hello_bytes_max);
        let mut buf = vec![0; HELD_BYTES];
        loop {
            if held.is_empty() {
                let n = from.read(&mut buf).await?;
                if n == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                held.extend_from_slice(&buf[..n]);
            }
            let take = held.len().min(reader.room());
            let hello = reader.push(&held[..take])?;
            held.drain(..take);
            if let Some(hello) = hello {
                hello.check(self.host)?;
                let (records, mut behind) = reader.into_parts();
                self.send(to, &records).await?;
                behind.append(&mut held);
                return Ok(behind);
            }
        }
    }

    /// A server may ask for another ClientHello (HelloRetryRequest): one that is checked like the first. Looks at the
    /// client's records, of which `held` are here, until one comes that can only follow when there was no such request.
    /// Records that may stand in between (RFC 8446, 5 and 6) are passed on.
    ///
    /// After a ChangeCipherSpec a record may look like a ClientHello because it is encrypted: the end of a TLS 1.2 handshake
    /// that resumes a session. `taken`, what the server has made of the first one, tells the two apart.
    async fn second<R, W>(
        &self,
        from: &mut R,
        to: &mut W,
        mut held: Vec<u8>,
        taken: oneshot::Receiver<bool>,
    ) -> Result<(), End>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut buf = vec![0; HELD_BYTES];
        let mut taken = Some(taken);
        let mut may_be_encrypted = false;
        loop {
            match held.as_slice() {
                [
                    kind @ (CHANGE_CIPHER_SPEC | ALERT),
                    _,
                    _,
                    high,
                    low,
                    rest @ ..,
                ] => {
                    let length = usize::from(u16::from_be_bytes([*high, *low]));
                    if rest.len() >= length {
                        may_be_encrypted |= *kind == CHANGE_CIPHER_SPEC;
                        let behind = held.split_off(RECORD_HEADER_BYTES + length);
                        self.send(to, &held).await?;
                        held = behind;
                        continue;
                    }
                }
                [HANDSHAKE, _, _, 0, 0, ..] => return Err(BadHello::Malformed.into()),
                [HANDSHAKE, _, _, _, _, CLIENT_HELLO, ..] => {
                    // Held until the server has answered: what is sent before that may be what it asks for.
                    if may_be_encrypted
                        && let Some(taken) = taken.take()
                        && taken.await == Ok(true)
                    {
                        return self.send(to, &held).await;
                    }
                    held = self.pass(from, to, held).await?;
                    continue;
                }
                [HANDSHAKE, _, _, _, _, _, ..] => return self.send(to, &held).await,
                [HANDSHAKE | CHANGE_CIPHER_SPEC | ALERT, ..] | [] => {}
                _ => return self.send(to, &held).await,
            }
            let n = from.read(&mut buf).await?;
            if n == 0 {
                return self.send(to, &held).await;
            }
            held.extend_from_slice(&buf[..n]);
        }
    }

    async fn send<W: AsyncWrite + Unpin>(&self, to: &mut W, bytes: &[u8]) -> Result<(), End> {
        let passed = bytes.len().min(self.meter.room_up());
        write(to, &bytes[..passed], self.meter, Meter::up).await?;
        if passed < bytes.len() {
            return Err(io::Error::from(self.meter.spend()).into());
        }
        Ok(())
    }
}

/// One direction, to its end, which is passed on.
async fn copy<R, W>(
    from: &mut R,
    to: &mut W,
    meter: &Meter,
    room: fn(&Meter) -> usize,
    count: fn(&Meter, usize),
    mut look: impl FnMut(&[u8]),
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buf = vec![0; BUFFER_BYTES];
    loop {
        let n = from.read(&mut buf).await?;
        if n == 0 {
            return to.shutdown().await;
        }
        let passed = n.min(room(meter));
        write(to, &buf[..passed], meter, count).await?;
        look(&buf[..passed]);
        if passed < n {
            return Err(meter.spend().into());
        }
    }
}

/// Counts what has been written as it goes: whatever ends the tunnel may do so in the middle, and a side that reads slowly is
/// not silent.
async fn write<W: AsyncWrite + Unpin>(
    to: &mut W,
    mut bytes: &[u8],
    meter: &Meter,
    count: fn(&Meter, usize),
) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = to.write(bytes).await?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        count(meter, n);
        bytes = &bytes[n..];
    }
    Ok(())
}
