//! The least HTTP/1.1 client that keeps its connection and streams in both directions.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

/// Longest silence of a server that is still taken for work.
const PATIENCE: Duration = Duration::from_secs(120);
/// Of an answer that is read at once; no page of it is touched before.
const BUFFER_BYTES: usize = 256 * 1024;

/// What came back.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> io::Result<Value> {
        serde_json::from_slice(&self.body)
            .map_err(|error| bad(format!("no JSON ({error}): {}", self.text())))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    host: String,
    token: Option<String>,
    id: u64,
}

impl Client {
    pub(crate) fn open(address: &str) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client {
            stream: BufReader::with_capacity(BUFFER_BYTES, stream),
            host: address.to_owned(),
            token: None,
            id: 0,
        })
    }

    /// Sends this token with every request.
    pub(crate) fn bearing(self, token: Option<&str>) -> Client {
        Client {
            token: token.map(str::to_owned),
            ..self
        }
    }

    /// The head of a request; the body is the caller's to write.
    pub(crate) fn head(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> io::Result<()> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.write(head.as_bytes())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// All that was written has been read (proc_net_tcp: `tx_queue:rx_queue`, in hexadecimal, of either end).
    pub(crate) fn is_read(&self) -> bool {
        let stream = self.stream.get_ref();
        let (ours, theirs) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let port = |address: &str| u16::from_str_radix(address.split(':').nth(1)?, 16).ok();
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let waits = |local: u16, remote: u16| {
            table.lines().find_map(|line| {
                let mut fields = line.split_whitespace().skip(1);
                let of = [port(fields.next()?)?, port(fields.next()?)?];
                let (sent, came) = fields.nth(1)?.split_once(':')?;
                (of == [local, remote]).then_some([sent == "00000000", came == "00000000"])
            })
        };
        let sent = waits(ours.port(), theirs.port()).is_some_and(|[all_sent, _]| all_sent);
        sent && waits(theirs.port(), ours.port()).is_some_and(|[_, all_read]| all_read)
    }

    /// A request with a body that is there.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(token) = &self.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.write(&bytes)?;
        self.answer()
    }

    pub(crate) fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.request("GET", path, &[], b"")
    }

    /// A POST of JSON as it is to `/rpc`.
    pub(crate) fn post(&mut self, body: &[u8]) -> io::Result<Answer> {
        self.request(
            "POST",
            "/rpc",
            &[("Content-Type", "application/json")],
            body,
        )
    }

    /// Sends one call without a token; its answer is the caller's to read.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> io::Result<()> {
        self.id += 1;
        let body = json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": params })
            .to_string();
        let length = body.len().to_string();
        let headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", length.as_str()),
        ];
        self.head("POST", "/rpc", &headers)?;
        self.write(body.as_bytes())
    }

    /// One call; the whole JSON-RPC answer.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> io::Result<Value> {
        self.id += 1;
        let body = json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": params });
        let answer = self.post(body.to_string().as_bytes())?;
        if answer.status != 200 {
            return Err(bad(format!("HTTP {}: {}", answer.status, answer.text())));
        }
        let reply = answer.json()?;
        if reply["id"] != self.id {
            return Err(bad(format!(
                "the answer to another call than {}: {reply}",
                self.id
            )));
        }
        Ok(reply)
    }

    /// One call that must have a result.
    pub(crate) fn result(&mut self, method: &str, params: Value) -> io::Result<Value> {
        let mut reply = self.call(method, params)?;
        if reply.get("error").is_some() {
            return Err(bad(format!("{method}: {reply}")));
        }
        Ok(reply["result"].take())
    }

    /// A run of code that must complete: its `RunResult`.
    pub(crate) fn run(&mut self, code: &str, args: Value) -> io::Result<Value> {
        let params = json!({ "language": "python", "code": code, "args": args });
        let result = self.result("run_code", params)?;
        if result["status"] != "completed" {
            return Err(bad(format!("the run failed: {result}")));
        }
        Ok(result)
    }

    /// The head of an answer, its body unread.
    pub(crate) fn answer_head(&mut self) -> io::Result<Answer> {
        let mut answer = Answer::default();
        let line = self.line()?;
        answer.status = line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| bad(format!("no status line: {line:?}")))?;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(answer);
            }
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| bad(format!("no header: {line:?}")))?;
            answer
                .headers
                .push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// A whole answer.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        let mut answer = self.answer_head()?;
        let mut body = Vec::new();
        self.body(&answer, |piece| body.extend_from_slice(piece))?;
        answer.body = body;
        Ok(answer)
    }

    /// The body of an answer whose head was read, in pieces.
    pub(crate) fn body(&mut self, head: &Answer, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        if head.status == 204 || head.status == 304 {
            return Ok(());
        }
        if head.header("transfer-encoding") == Some("chunked") {
            loop {
                let line = self.line()?;
                let size = u64::from_str_radix(line.trim(), 16)
                    .map_err(|_| bad(format!("no chunk size: {line:?}")))?;
                self.exactly(size, &mut take)?;
                self.line()?;
                if size == 0 {
                    return Ok(());
                }
            }
        }
        let length = head
            .header("content-length")
            .ok_or_else(|| bad("an answer without a length"))?;
        let length = length
            .parse()
            .map_err(|_| bad(format!("content-length: {length}")))?;
        self.exactly(length, &mut take)
    }

    fn exactly(&mut self, mut length: u64, take: &mut impl FnMut(&[u8])) -> io::Result<()> {
        while length > 0 {
            // What the stream holds anyway: a buffer of its own would be a part of what every short answer is measured to take.
            let there = self.stream.fill_buf()?;
            if there.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let n = there
                .len()
                .min(usize::try_from(length).unwrap_or(usize::MAX));
            take(&there[..n]);
            self.stream.consume(n);
            length -= n as u64;
        }
        Ok(())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// The client goes away, whatever is under way.
    pub(crate) fn hang_up(self) {
        // An error says that the other side went first.
        let _gone = self.stream.get_ref().shutdown(Shutdown::Both);
    }
}
