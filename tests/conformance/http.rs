//! The least HTTP client that can also send what no client should: one request, one connection.
//!
//! Whoever answers may be as wrong as can be: every answer has an end in time and in size, and what is no answer says why.

mod tls;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use serde_json::Value;

use self::tls::Stream;

/// Longest wait for a whole answer, however slowly it comes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);

/// Longest wait for one of a server's addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Silence that ends what comes back for bytes that need not be a request.
const SILENCE: Duration = Duration::from_secs(3);

/// Most that is read of an answer, its head and the frames of its chunks included. The largest that any case asks for is
/// three million bytes of blob, which may be 18 MB as JSON.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Longest wait that a server may ask for at once, and longest that this client waits for all that ask it to come later: some
/// have limits that a suite goes beyond.
const LATER_MAX: Duration = Duration::from_secs(60);
const LATER_ALL_MAX: Duration = Duration::from_secs(900);

/// Least wait of who is told to come at once.
const LATER_MIN: Duration = Duration::from_millis(20);

/// What is larger is no refusal.
const REFUSAL_BYTES_MAX: usize = 16 << 10;

/// Most that is read of an answer's head.
const HEAD_BYTES_MAX: usize = 256 << 10;

/// Where the server is: `http://host:port/rpc` or `https://host:port/rpc`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Endpoint {
    /// `127.0.0.1:8080`
    pub(crate) host: String,
    /// `/rpc`
    pub(crate) path: String,
    /// Of a server that speaks TLS.
    tls: Option<Arc<ClientConfig>>,
    /// The authorities that alone may vouch for that, where a test has named them.
    pub(crate) authorities: Option<PathBuf>,
    /// A bearer token that goes with every request.
    pub(crate) token: Option<String>,
    /// Requests without an answer since the last that had one.
    unanswered: Arc<AtomicUsize>,
    /// Milliseconds that were waited for a server that said when to come again.
    waited_ms: Arc<AtomicU64>,
    patience: Patience,
}

/// How long this client waits: the constants above, but for its own tests.
#[derive(Debug, Clone, Copy)]
struct Patience {
    answer: Duration,
    silence: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            answer: ANSWER_TIMEOUT,
            silence: SILENCE,
        }
    }
}

/// What came back, undecoded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    /// 0: no valid status line.
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) took: Duration,
}

impl Endpoint {
    /// Reads `http://host:port/path` or `https://host:port/path`; of the second the certificate is checked.
    pub(crate) fn parse(url: &str) -> Result<Endpoint, String> {
        Endpoint::trusting(url, None)
    }

    /// The same, with these authorities (a file in PEM) instead of the system's.
    pub(crate) fn trusting(url: &str, authorities: Option<&Path>) -> Result<Endpoint, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (port, tls) = match scheme {
            "http" => (80, None),
            "https" => (443, Some(Arc::new(tls::trusting(authorities)?))),
            _ => return Err(format!("{url:?} is not an http:// or https:// address")),
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, "rpc"));
        let named = host.rsplit_once(':');
        // The colons of an IPv6 address stand in brackets.
        let has_port = named.is_some_and(|(_, port)| !port.ends_with(']'));
        Ok(Endpoint {
            host: if has_port {
                host.to_owned()
            } else {
                format!("{host}:{port}")
            },
            path: format!("/{path}"),
            tls,
            authorities: authorities.map(Path::to_owned),
            ..Endpoint::default()
        })
    }

    /// How many requests in a row have had no answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// How long it was waited for a server that had no time.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_millis(self.waited_ms.load(Ordering::Relaxed))
    }

    /// The endpoint as an address.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.host, self.path)
    }

    /// `POST` of JSON to the endpoint.
    pub(crate) fn post(&self, body: &[u8]) -> Result<Answer, String> {
        let json = [("Content-Type".to_owned(), "application/json".to_owned())];
        self.request("POST", &self.path, &json, body)
    }

    /// Any request with a body whose length is said; again where the server has done nothing of it and says when to come.
    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(String, String)],
        body: &[u8],
    ) -> Result<Answer, String> {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            head.push_str(&format!("Host: {}\r\n", self.host));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(token) = &self.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if !body.is_empty() || method != "GET" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("Connection: close\r\n\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        loop {
            let answer = self.exchange(&bytes, |reader| reader.answer(method == "HEAD"))?;
            let Some(later) = answer.later().filter(|later| *later <= LATER_MAX) else {
                return Ok(answer);
            };
            let later = later.max(LATER_MIN);
            let ms = u64::try_from(later.as_millis()).unwrap_or(u64::MAX);
            let waited = self.waited_ms.fetch_add(ms, Ordering::Relaxed);
            if Duration::from_millis(waited) + later > LATER_ALL_MAX {
                return Ok(answer);
            }
            std::thread::sleep(later);
        }
    }

    /// Text as it is, but for the token in each request; everything that comes back until the server closes or falls silent.
    pub(crate) fn raw(&self, text: &str) -> Result<Answer, String> {
        let text = match &self.token {
            Some(token) => {
                let begun = format!(" HTTP/1.1\r\nAuthorization: Bearer {token}\r\n");
                text.replace(" HTTP/1.1\r\n", &begun)
            }
            None => text.to_owned(),
        };
        self.exchange(text.as_bytes(), Reader::until_silent)
    }

    /// Sends the bytes and has `read` read what comes back, on a connection of their own.
    fn exchange(
        &self,
        bytes: &[u8],
        read: impl FnOnce(&mut Reader) -> Result<Answer, String>,
    ) -> Result<Answer, String> {
        let began = Instant::now();
        let answer = self.connected().and_then(|mut stream| {
            stream.wait_until(began + self.patience.answer / 2);
            let sent = send(&mut stream, bytes);
            let mut reader = Reader {
                stream,
                raw: Vec::new(),
                patience: self.patience,
                deadline: began + self.patience.answer,
            };
            // A server may refuse early and close: what it said is the answer, not our broken pipe.
            read(&mut reader).map_err(|why| match sent {
                Ok(()) => why,
                Err(e) => format!("{why}; the request could not be sent whole: {e}"),
            })
        });
        match answer {
            Ok(answer) => {
                self.unanswered.store(0, Ordering::Relaxed);
                let took = began.elapsed();
                Ok(Answer { took, ..answer })
            }
            Err(why) => {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
                Err(why)
            }
        }
    }

    fn connected(&self) -> Result<Stream, String> {
        let tcp = match self.host.to_socket_addrs() {
            Ok(addrs) => connect(&self.host, addrs)?,
            Err(e) => return Err(format!("{}: {e}", self.host)),
        };
        let name = self.host.rsplit_once(':').unwrap_or_default().0;
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        Stream::new(tcp, self.tls.as_ref(), bare)
    }
}

/// A name may stand for several addresses (`localhost`: ::1 and 127.0.0.1), and a server listens on one of them.
fn connect(host: &str, addrs: impl Iterator<Item = SocketAddr>) -> Result<TcpStream, String> {
    let mut refused = Vec::new();
    for addr in addrs {
        match TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(e) => refused.push(format!("cannot connect to {addr}: {e}")),
        }
    }
    if refused.is_empty() {
        return Err(format!("{host} has no address"));
    }
    Err(refused.join("; "))
}

/// Writes all of it in the time that the stream has, also to a server that reads a byte now and then.
fn send(stream: &mut Stream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)?;
    loop {
        match stream.flush() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            flushed => return flushed,
        }
    }
}

/// What comes back on a connection, read as far as it has to be.
#[derive(Debug)]
struct Reader {
    stream: Stream,
    /// All that has come.
    raw: Vec<u8>,
    patience: Patience,
    deadline: Instant,
}

/// Why no more came.
#[derive(Debug)]
enum End {
    Closed,
    /// For the time given.
    Silent(Duration),
    Failed(std::io::Error),
    TooLarge,
}

impl Reader {
    /// The answer to a request, to a HEAD or to another.
    fn answer(&mut self, to_head: bool) -> Result<Answer, String> {
        let mut at = 0;
        loop {
            let end = self.find(b"\r\n\r\n", at, HEAD_BYTES_MAX)?;
            let mut answer =
                head(&self.raw[at..end]).ok_or_else(|| self.no_http(at, "not an HTTP answer"))?;
            at = end + 4;
            // It only says that the answer proper is on its way.
            if (100..200).contains(&answer.status) && answer.status != 101 {
                continue;
            }
            // Such an answer has no body whatever its head says: what comes all the same is for the cases to see.
            let bodiless = to_head || matches!(answer.status, 101 | 204 | 304);
            answer.body = match answer.framing()? {
                _ if bodiless => self.beyond(at)?,
                Framing::Chunks => self.chunks(at)?,
                Framing::Length(length) => self.exactly(at, length)?,
                Framing::ToTheEnd => self.until_closed(at)?,
            };
            return Ok(answer);
        }
    }

    /// Everything, until the server closes or says nothing for a while; the status is that of the first answer in it.
    fn until_silent(&mut self) -> Result<Answer, String> {
        let body = self.beyond(0)?;
        let first = body.windows(4).position(|w| w == b"\r\n\r\n");
        let status = first.and_then(|end| head(&body[..end]));
        Ok(Answer {
            status: status.map_or(0, |answer| answer.status),
            body,
            ..Answer::default()
        })
    }

    /// Reads on; `None` when something came.
    fn more(&mut self, wait: Duration) -> Option<End> {
        if self.raw.len() >= ANSWER_BYTES_MAX {
            return Some(End::TooLarge);
        }
        let mut chunk = [0u8; 65536];
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(End::Silent(self.patience.answer));
            }
            self.stream.wait_until(Instant::now() + left.min(wait));
            match self.stream.read(&mut chunk) {
                Ok(0) => return Some(End::Closed),
                Ok(n) => {
                    self.raw.extend_from_slice(&chunk[..n]);
                    return None;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    let all = if left < wait {
                        self.patience.answer
                    } else {
                        wait
                    };
                    return Some(End::Silent(all));
                }
                Err(e) => return Some(End::Failed(e)),
            }
        }
    }

    /// Reads on for an answer that has not come to its end.
    fn need(&mut self) -> Result<(), String> {
        match self.more(self.patience.answer) {
            None => Ok(()),
            Some(End::TooLarge) => Err(self.too_large()),
            Some(end) if self.raw.is_empty() => Err(self.nothing(&end)),
            Some(end) => Err(self.unended(&end)),
        }
    }

    /// Where `what` begins, `most` bytes after `from` at most.
    fn find(&mut self, what: &[u8], from: usize, most: usize) -> Result<usize, String> {
        let mut looked = from;
        loop {
            let rest = &self.raw[looked..];
            if let Some(at) = rest.windows(what.len()).position(|w| w == what) {
                return Ok(looked + at);
            }
            // A part of it may have come.
            looked = from.max(self.raw.len().saturating_sub(what.len() - 1));
            if looked - from > most {
                return Err(
                    self.no_http(from, &format!("no end of a head or line in {most} bytes"))
                );
            }
            self.need()?;
        }
    }

    fn exactly(&mut self, at: usize, length: usize) -> Result<Vec<u8>, String> {
        let end = at
            .checked_add(length)
            .filter(|end| *end <= ANSWER_BYTES_MAX);
        let Some(end) = end else {
            return Err(format!(
                "an answer of more than {ANSWER_BYTES_MAX} bytes: it says that {length} follow the first {at}"
            ));
        };
        while self.raw.len() < end {
            let there = self.raw.len() - at;
            self.need().map_err(|why| {
                format!("{why}: it says that {length} bytes follow, of which {there} have come")
            })?;
        }
        Ok(self.raw[at..end].to_vec())
    }

    fn chunks(&mut self, mut at: usize) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        loop {
            let end = self.find(b"\r\n", at, HEAD_BYTES_MAX)?;
            let line = String::from_utf8_lossy(&self.raw[at..end]).into_owned();
            let size = line.split(';').next().unwrap_or_default().trim();
            let digits = !size.is_empty() && size.bytes().all(|b| b.is_ascii_hexdigit());
            let size = usize::from_str_radix(size, 16).ok().filter(|_| digits);
            let size = size.ok_or_else(|| self.no_http(at, "no chunk of a chunked answer"))?;
            at = end + 2;
            if size == 0 {
                return Ok(body);
            }
            let chunk = self.exactly(at, size)?;
            body.extend_from_slice(&chunk);
            at += size;
            if self.exactly(at, 2)? != b"\r\n" {
                return Err(self.no_http(at, "a chunk is longer than it says"));
            }
            at += 2;
        }
    }

    /// The connection's end is the body's, also where it is reset: what was sent before has come.
    fn until_closed(&mut self, at: usize) -> Result<Vec<u8>, String> {
        loop {
            match self.more(self.patience.answer) {
                None => {}
                Some(End::Closed | End::Failed(_)) => return Ok(self.raw[at..].to_vec()),
                Some(End::TooLarge) => return Err(self.too_large()),
                Some(end) => return Err(self.unended(&end)),
            }
        }
    }

    /// What comes from there on until the server closes or says nothing for a while.
    fn beyond(&mut self, at: usize) -> Result<Vec<u8>, String> {
        loop {
            match self.more(self.patience.silence) {
                None => {}
                Some(End::TooLarge) => return Err(self.too_large()),
                Some(end @ (End::Silent(_) | End::Failed(_))) if self.raw.is_empty() => {
                    return Err(self.nothing(&end));
                }
                Some(_) => return Ok(self.raw[at..].to_vec()),
            }
        }
    }

    fn nothing(&self, end: &End) -> String {
        match end {
            End::Closed => "no answer: the server has closed the connection".to_owned(),
            End::Silent(time) => format!("no answer in {} ms", time.as_millis()),
            End::Failed(e) => format!("no answer: {e}"),
            End::TooLarge => self.too_large(),
        }
    }

    fn unended(&self, end: &End) -> String {
        let why = match end {
            End::Closed => "the server has closed the connection".to_owned(),
            End::Silent(time) => format!("that was all in {} ms", time.as_millis()),
            End::Failed(e) => e.to_string(),
            End::TooLarge => return self.too_large(),
        };
        self.no_http(0, &format!("an answer without its end, {why}"))
    }

    fn too_large(&self) -> String {
        self.no_http(
            0,
            &format!("an answer of more than {ANSWER_BYTES_MAX} bytes"),
        )
    }

    /// What is wrong, and the bytes from there on.
    fn no_http(&self, at: usize, wrong: &str) -> String {
        let rest = &self.raw[at.min(self.raw.len())..];
        let shown = String::from_utf8_lossy(&rest[..rest.len().min(200)]);
        format!("{wrong}: {shown:?} ({} bytes)", rest.len())
    }
}

/// Where an answer's body ends.
#[derive(Debug)]
enum Framing {
    Chunks,
    Length(usize),
    ToTheEnd,
}

impl Answer {
    /// When to send the request again that was refused for want of time: `Retry-After` of a 429 or a 503 (RFC 9110, section 10.2.3;
    /// a date is not understood), or `error.data.retry_after_ms`.
    fn later(&self) -> Option<Duration> {
        if matches!(self.status, 429 | 503) {
            let (_, after) = self
                .headers
                .iter()
                .find(|(name, _)| name == "retry-after")?;
            return after.trim().parse().ok().map(Duration::from_secs);
        }
        if self.body.len() > REFUSAL_BYTES_MAX {
            return None;
        }
        let reply: Value = serde_json::from_slice(&self.body).ok()?;
        let ms = reply["error"]["data"]["retry_after_ms"].as_u64()?;
        Some(Duration::from_millis(ms))
    }

    /// As its headers say (RFC 9112, section 6.3).
    fn framing(&self) -> Result<Framing, String> {
        let named = |name: &str| {
            let found = self.headers.iter().filter(move |(n, _)| n == name);
            found.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
        };
        let coded = named("transfer-encoding").join(",");
        let last = coded.rsplit(',').next().unwrap_or_default().trim();
        if last.eq_ignore_ascii_case("chunked") {
            return Ok(Framing::Chunks);
        }
        let lengths = named("content-length");
        let Some(length) = lengths.first() else {
            return Ok(Framing::ToTheEnd);
        };
        let same = lengths.iter().all(|other| other == length);
        let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
        match length.parse() {
            Ok(length) if same && digits => Ok(Framing::Length(length)),
            _ => Err(format!(
                "an answer whose Content-Length is none: {lengths:?}"
            )),
        }
    }
}

/// Status and headers; `None` when the bytes are no head of an answer.
fn head(raw: &[u8]) -> Option<Answer> {
    // What is no ASCII in a header is the server's own affair.
    let head = String::from_utf8_lossy(raw);
    let mut lines = head.split("\r\n");
    let status = lines
        .next()?
        .strip_prefix("HTTP/1.")?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()?;
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Some(Answer {
        status,
        headers,
        ..Answer::default()
    })
}

#[cfg(test)]
mod tests;
