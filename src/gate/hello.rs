//! The first thing that a TLS client says: read far enough to know which host it names, and passed on as it is.
//!
//! Rules: RFC 8446, sections 4.1.2 (ClientHello), 5.1 (records); RFC 6066, section 3 (server_name); RFC 9849
//! (encrypted_client_hello). What cannot be read exactly is refused: a server might read it otherwise.

use thiserror::Error;
use tokio::sync::oneshot;

pub(super) const RECORD_HEADER_BYTES: usize = 5;
/// Longest plaintext of a record (RFC 8446, 5.1).
const RECORD_BYTES_MAX: usize = 1 << 14;
pub(super) const ALERT: u8 = 21;
const WARNING: u8 = 1;
/// Warnings before a ServerHello: a TLS 1.2 server that does not know the name may send one and go on (RFC 6066, 3).
const WARNINGS_MAX: usize = 4;
pub(super) const HANDSHAKE: u8 = 22;
pub(super) const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
/// The random of a ServerHello that asks for another ClientHello (RFC 8446, 4.1.3).
pub(super) const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];
const HOST_NAME: u8 = 0;
const EXT_SERVER_NAME: u16 = 0;
const EXT_EARLY_DATA: u16 = 42;
const EXT_ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
const EXT_ENCRYPTED_SERVER_NAME: u16 = 0xffce;

/// Why a ClientHello is not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum BadHello {
    /// The first byte is not that of a TLS handshake.
    #[error("not TLS")]
    NotTls,
    /// It breaks the grammar.
    #[error("malformed ClientHello")]
    Malformed,
    /// Longer than `gate.max_hello_bytes`.
    #[error("ClientHello too long")]
    TooLong,
    /// No server_name.
    #[error("no server name")]
    NoName,
    /// Another server_name than the host of CONNECT.
    #[error("another server name")]
    OtherName,
    /// encrypted_client_hello, or its predecessor: the name that counts is hidden.
    #[error("encrypted ClientHello")]
    Encrypted,
    /// early_data: a second ClientHello could come behind data that nobody can tell from the rest.
    #[error("early data")]
    EarlyData,
}

/// What a ClientHello says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    server_name: Option<Vec<u8>>,
    encrypted: bool,
    early_data: bool,
}

impl Hello {
    /// Whether it names `host`, which is in canonical form, and hides nothing.
    pub(super) fn check(&self, host: &str) -> Result<(), BadHello> {
        if self.encrypted {
            return Err(BadHello::Encrypted);
        }
        let name = self.server_name.as_deref().ok_or(BadHello::NoName)?;
        let same = std::str::from_utf8(name)
            .ok()
            .and_then(|name| skillgate_skill::network::canonical_host(name).ok())
            .is_some_and(|name| name == host);
        if !same {
            return Err(BadHello::OtherName);
        }
        if self.early_data {
            Err(BadHello::EarlyData)
        } else {
            Ok(())
        }
    }
}

/// Takes bytes as they come and says when the ClientHello is whole. Each byte is looked at once, however they come.
#[derive(Debug)]
pub(super) struct HelloReader {
    bytes_max: usize,
    /// All that has come.
    raw: Vec<u8>,
    /// Where the next record begins in it.
    next: usize,
    /// The handshake message, out of its records.
    message: Vec<u8>,
}

impl HelloReader {
    pub(super) fn new(bytes_max: usize) -> Self {
        HelloReader {
            bytes_max,
            raw: Vec::new(),
            next: 0,
            message: Vec::new(),
        }
    }

    /// How many bytes more may come before it is too long: never read further than that.
    pub(super) fn room(&self) -> usize {
        self.bytes_max - self.raw.len()
    }

    /// The records of the message, to be passed on as they came, and what has come behind them.
    pub(super) fn into_parts(mut self) -> (Vec<u8>, Vec<u8>) {
        let behind = self.raw.split_off(self.next);
        (self.raw, behind)
    }

    /// Takes the next bytes. `None`: not whole yet.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Option<Hello>, BadHello> {
        self.raw.extend_from_slice(bytes);
        loop {
            let rest = &self.raw[self.next..];
            if rest.first().is_some_and(|kind| *kind != HANDSHAKE) {
                return Err(if self.next == 0 {
                    BadHello::NotTls
                } else {
                    BadHello::Malformed
                });
            }
            // The major version of every TLS; the minor one is not looked at (RFC 8446, 5.1).
            if rest.get(1).is_some_and(|major| *major != 3) {
                return Err(if self.next == 0 {
                    BadHello::NotTls
                } else {
                    BadHello::Malformed
                });
            }
            let Some(header) = rest.get(..RECORD_HEADER_BYTES) else {
                return self.more();
            };
            let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
            if length == 0 || length > RECORD_BYTES_MAX {
                return Err(BadHello::Malformed);
            }
            let Some(fragment) = rest.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + length) else {
                return self.more();
            };
            self.message.extend_from_slice(fragment);
            self.next += RECORD_HEADER_BYTES + length;
            if self.message.first() != Some(&CLIENT_HELLO) {
                return Err(BadHello::Malformed);
            }
            let Some(size) = self.message.get(1..4) else {
                continue;
            };
            let size =
                usize::from(size[0]) << 16 | usize::from(size[1]) << 8 | usize::from(size[2]);
            if size > self.bytes_max {
                return Err(BadHello::TooLong);
            }
            match self.message.len().cmp(&(size + 4)) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => {
                    return read(&self.message[4..])
                        .ok_or(BadHello::Malformed)
                        .map(Some);
                }
                // No message follows a ClientHello before the server has answered.
                std::cmp::Ordering::Greater => return Err(BadHello::Malformed),
            }
        }
    }

    fn more(&self) -> Result<Option<Hello>, BadHello> {
        if self.room() == 0 {
            Err(BadHello::TooLong)
        } else {
            Ok(None)
        }
    }
}

/// Looks at what a server says first, and tells once whether it has taken the ClientHello: then no other one comes in the
/// clear. Whatever else it says, it may be asking for another.
#[derive(Debug)]
pub(super) struct Answer {
    raw: Vec<u8>,
    tell: Option<oneshot::Sender<bool>>,
}

impl Answer {
    pub(super) fn new(tell: oneshot::Sender<bool>) -> Self {
        Answer {
            raw: Vec::new(),
            tell: Some(tell),
        }
    }

    /// Takes the next bytes, of which few are kept: that much of any answer tells.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.tell.is_none() {
            return;
        }
        self.raw.extend_from_slice(bytes);
        if let Some(taken) = taken(&self.raw)
            && let Some(tell) = self.tell.take()
        {
            // Whoever asked may be gone.
            let _ = tell.send(taken);
            self.raw = Vec::new();
        }
    }
}

/// Whether a server that has said this has taken the ClientHello. `None`: it has not said enough.
fn taken(mut rest: &[u8]) -> Option<bool> {
    let mut message = Vec::new();
    for _ in 0..WARNINGS_MAX {
        let [ALERT, ..] = rest else {
            break;
        };
        let [_, _, _, high, low, level, _, behind @ ..] = rest else {
            return None;
        };
        if (*high, *low, *level) != (0, 2, WARNING) {
            return Some(false);
        }
        rest = behind;
    }
    loop {
        if *rest.first()? != HANDSHAKE {
            return Some(false);
        }
        let (header, body) = rest.split_at_checked(RECORD_HEADER_BYTES)?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 {
            return Some(false);
        }
        let (fragment, behind) = body.split_at(length.min(body.len()));
        message.extend_from_slice(fragment);
        if *message.first()? != SERVER_HELLO {
            return Some(false);
        }
        // Its kind, its length, legacy_version, random.
        if let Some(random) = message.get(1 + 3 + 2..1 + 3 + 2 + 32) {
            return Some(random != RETRY_RANDOM);
        }
        rest = behind;
    }
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(
            self.take(bytes)?
                .iter()
                .fold(0, |n, b| n << 8 | usize::from(*b)),
        )
    }

    /// A vector with its length in `bytes` bytes.
    fn vector(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let n = self.number(bytes)?;
        self.take(n)
    }
}

/// The body of the message (RFC 8446, 4.1.2). `None`: it is none.
fn read(body: &[u8]) -> Option<Hello> {
    let mut body = Cursor(body);
    body.take(2 + 32)?; // legacy_version, random
    let session = body.vector(1)?;
    let suites = body.vector(2)?;
    let compression = body.vector(1)?;
    if session.len() > 32 || suites.is_empty() || suites.len() % 2 != 0 || compression.is_empty() {
        return None;
    }
    let mut hello = Hello {
        server_name: None,
        encrypted: false,
        early_data: false,
    };
    if body.0.is_empty() {
        // TLS 1.2 allows a ClientHello without extensions: it names nobody.
        return Some(hello);
    }
    let mut extensions = Cursor(body.vector(2)?);
    if !body.0.is_empty() {
        return None;
    }
    let mut seen = Vec::new();
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)? as u16;
        let data = extensions.vector(2)?;
        if seen.contains(&kind) {
            return None;
        }
        seen.push(kind);
        match kind {
            EXT_SERVER_NAME => hello.server_name = Some(server_name(data)?.to_vec()),
            EXT_ENCRYPTED_CLIENT_HELLO | EXT_ENCRYPTED_SERVER_NAME => hello.encrypted = true,
            EXT_EARLY_DATA => hello.early_data = true,
            _ => {}
        }
    }
    Some(hello)
}

/// Exactly one name, of the one type that there is: with two, servers would differ in which they take.
fn server_name(data: &[u8]) -> Option<&[u8]> {
    let mut data = Cursor(data);
    let mut list = Cursor(data.vector(2)?);
    let kind = list.number(1)?;
    let name = list.vector(2)?;
    (data.0.is_empty() && list.0.is_empty() && kind == usize::from(HOST_NAME) && !name.is_empty())
        .then_some(name)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A ClientHello in one record, with these extensions.
    pub(crate) fn hello_with(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        record(&message(extensions))
    }

    /// One that names a host.
    pub(crate) fn hello(name: &str) -> Vec<u8> {
        hello_with(&[(0, sni(name.as_bytes())), (43, vec![2, 3, 4])])
    }

    pub(crate) fn sni(name: &[u8]) -> Vec<u8> {
        let mut out = ((name.len() + 3) as u16).to_be_bytes().to_vec();
        out.push(0);
        out.extend((name.len() as u16).to_be_bytes());
        out.extend(name);
        out
    }

    pub(crate) fn message(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0); // session id
        body.extend([0, 2, 0x13, 0x01]); // one suite
        body.extend([1, 0]); // no compression
        let mut list = Vec::new();
        for (kind, data) in extensions {
            list.extend(kind.to_be_bytes());
            list.extend((data.len() as u16).to_be_bytes());
            list.extend(data);
        }
        body.extend((list.len() as u16).to_be_bytes());
        body.extend(list);
        let mut out = vec![1];
        out.extend(&(body.len() as u32).to_be_bytes()[1..]);
        out.extend(body);
        out
    }

    pub(crate) fn record(fragment: &[u8]) -> Vec<u8> {
        let mut out = vec![22, 3, 1];
        out.extend((fragment.len() as u16).to_be_bytes());
        out.extend(fragment);
        out
    }

    fn check(bytes: &[u8]) -> Result<(), BadHello> {
        let mut reader = HelloReader::new(16384);
        match reader.push(bytes)? {
            Some(hello) => hello.check("api.example.com"),
            None => panic!("not whole"),
        }
    }

    #[test]
    fn names() {
        assert_eq!(check(&hello("api.example.com")), Ok(()));
        assert_eq!(check(&hello("API.example.COM")), Ok(()));
        for other in [
            "example.com",
            "evil.com",
            "api.example.com.",
            "api.example.com:443",
            "xapi.example.com",
            "api.example.com.evil.com",
            "api.example.com\0",
            "api.example.com\0.evil.com",
            " api.example.com",
            "127.0.0.1",
            "api.example.com ",
            "api%2eexample.com",
            "api。example.com",
        ] {
            assert_eq!(check(&hello(other)), Err(BadHello::OtherName), "{other:?}");
        }
        assert_eq!(check(&hello_with(&[])), Err(BadHello::NoName));
        assert_eq!(
            check(&hello_with(&[(0, sni(b"\xff.com"))])),
            Err(BadHello::OtherName)
        );
    }

    #[test]
    fn what_hides_a_name() {
        let name = || (0, sni(b"api.example.com"));
        for kind in [0xfe0d, 0xffce] {
            assert_eq!(
                check(&hello_with(&[name(), (kind, vec![0; 40])])),
                Err(BadHello::Encrypted)
            );
        }
        assert_eq!(
            check(&hello_with(&[name(), (42, vec![])])),
            Err(BadHello::EarlyData)
        );
    }

    #[test]
    fn any_way_of_cutting_it() {
        let whole = message(&[(0, sni(b"api.example.com")), (43, vec![2, 3, 4])]);
        for fragment in 1..whole.len() {
            let bytes: Vec<u8> = whole.chunks(fragment).flat_map(record).collect();
            for segment in [1, 2, 5, 7, bytes.len()] {
                let mut reader = HelloReader::new(16384);
                let mut hello = None;
                for piece in bytes.chunks(segment) {
                    assert!(hello.is_none(), "said to be whole too early");
                    hello = reader.push(piece).unwrap();
                }
                assert_eq!(hello.unwrap().check("api.example.com"), Ok(()));
                assert_eq!(
                    reader.into_parts(),
                    (bytes.clone(), Vec::new()),
                    "passed on as it came"
                );
            }
        }
    }

    #[test]
    fn what_comes_behind_is_kept_apart() {
        let (first, second) = (hello("api.example.com"), hello("evil.com"));
        let mut reader = HelloReader::new(16384);
        let both = [first.clone(), second.clone()].concat();
        assert!(reader.push(&both).unwrap().is_some());
        assert_eq!(reader.into_parts(), (first, second));
    }

    #[test]
    fn not_tls() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"SSH-2.0-x\r\n",
            b"\x80\x2e\x01\x03\x01",
            b"\x17\x03\x03\x00\x01\x00",
            b"\x16\x02",
            b"\0",
            b"\x15\x03\x01\x00\x02\x02\x28",
        ] {
            assert_eq!(
                HelloReader::new(16384).push(bytes),
                Err(BadHello::NotTls),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn malformed() {
        let good = message(&[(0, sni(b"api.example.com"))]);
        let name = (0, sni(b"api.example.com"));
        let two_names = [
            sni(b"api.example.com")[2..].to_vec(),
            sni(b"evil.com")[2..].to_vec(),
        ]
        .concat();
        let two_names = [((two_names.len()) as u16).to_be_bytes().to_vec(), two_names].concat();
        let mut other_type = sni(b"api.example.com");
        other_type[2] = 1;
        let mut trailing = sni(b"api.example.com");
        trailing.push(0);
        let with_more = [good.clone(), good.clone()].concat();
        let mut cases = vec![
            hello_with(&[name.clone(), name.clone()]),
            hello_with(&[(0, two_names)]),
            hello_with(&[(0, other_type)]),
            hello_with(&[(0, trailing)]),
            hello_with(&[(0, vec![])]),
            hello_with(&[(0, vec![0, 0])]),
            hello_with(&[(0, sni(b""))]),
            hello_with(&[(5, vec![]), (5, vec![])]),
            record(&with_more),
            record(&[&[2], &good[1..]].concat()), // a ServerHello
            vec![22, 3, 1, 0, 0],
            vec![22, 3, 1, 0xff, 0xff],
        ];
        // A length that is wrong by one, anywhere.
        for at in [1 + 2, 38, 39, 40, 43, 45] {
            let mut bad = good.clone();
            bad[at] = bad[at].wrapping_add(1);
            cases.push(record(&bad));
        }
        // A record of another kind in between.
        let (a, b) = good.split_at(20);
        cases.push([record(a), vec![23, 3, 3, 0, 1, 0], record(b)].concat());
        for bytes in cases {
            let mut reader = HelloReader::new(16384);
            let got = reader.push(&bytes);
            // One whose length says more than there is waits for the rest, which is never passed on.
            let refused = matches!(got, Err(BadHello::Malformed) | Ok(None))
                || matches!(&got, Ok(Some(hello)) if hello.check("api.example.com").is_err());
            assert!(refused, "{got:?} {bytes:?}");
        }
    }

    #[test]
    fn too_long() {
        let long = message(&[(0, sni(b"api.example.com")), (21, vec![0; 5000])]);
        let mut reader = HelloReader::new(4096);
        let bytes = record(&long);
        let mut got = Ok(None);
        let mut at = 0;
        while got == Ok(None) {
            let room = reader.room().min(100);
            assert!(room > 0);
            got = reader.push(&bytes[at..at + room]);
            at += room;
        }
        assert_eq!(got, Err(BadHello::TooLong));
        assert_eq!(
            HelloReader::new(4096).push(&[22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff]),
            Err(BadHello::TooLong)
        );
    }

    #[test]
    fn an_answer_is_kept_until_it_tells_and_no_longer() {
        let hello = record(&[&[SERVER_HELLO, 0, 0, 38, 3, 3][..], &[7; 32]].concat());
        let (tell, mut told) = oneshot::channel();
        let mut answer = Answer::new(tell);
        let (first, last) = hello.split_at(20);
        answer.push(first);
        assert!(told.try_recv().is_err() && answer.raw == first);
        for _ in 0..3 {
            answer.push(last);
            assert!(answer.raw.is_empty());
        }
        assert_eq!(told.try_recv(), Ok(true));
        // Data that only looks like it.
        assert_eq!(taken(&[&[23], &hello[1..]].concat()), Some(false));
    }

    #[test]
    fn no_bytes_crash_it() {
        use rand::Rng as _;
        let mut rng = rand::rng();
        for _ in 0..200_000 {
            let mut bytes = hello("api.example.com");
            for _ in 0..rng.random_range(0..4) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
            bytes.truncate(rng.random_range(0..=bytes.len()));
            if let Ok(Some(hello)) = HelloReader::new(16384).push(&bytes) {
                let _ = hello.check("api.example.com");
            }
        }
    }
}
