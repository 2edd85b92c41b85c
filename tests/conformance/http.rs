//! The least HTTP client that can also send what no client should: one request, one connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest wait for a single answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);

/// Where the server is: `http://host:port/rpc`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Endpoint {
    /// `127.0.0.1:8080`
    pub(crate) host: String,
    /// `/rpc`
    pub(crate) path: String,
    /// A bearer token that goes with every request.
    pub(crate) token: Option<String>,
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
    /// Reads `http://host:port/path`.
    pub(crate) fn parse(url: &str) -> Result<Endpoint, String> {
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| format!("{url:?} is not an http:// address"))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, "rpc"));
        let host = if host.contains(':') {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        Ok(Endpoint {
            host,
            path: format!("/{path}"),
            token: None,
        })
    }

    /// The endpoint as an address.
    pub(crate) fn url(&self) -> String {
        format!("http://{}{}", self.host, self.path)
    }

    /// `POST` of JSON to the endpoint.
    pub(crate) fn post(&self, body: &[u8]) -> Result<Answer, String> {
        let json = [("Content-Type".to_owned(), "application/json".to_owned())];
        self.request("POST", &self.path, &json, body)
    }

    /// Any request with a body whose length is said.
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
        let (raw, took) = self.exchange(&bytes, ANSWER_TIMEOUT)?;
        let mut answer = parse(&raw, method == "HEAD").ok_or_else(|| {
            format!(
                "not an HTTP answer: {:?}",
                String::from_utf8_lossy(&raw[..raw.len().min(200)])
            )
        })?;
        answer.took = took;
        Ok(answer)
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
        let (raw, took) = self.exchange(text.as_bytes(), Duration::from_secs(3))?;
        let status = parse(&raw, false).map_or(0, |a| a.status);
        Ok(Answer {
            status,
            headers: Vec::new(),
            body: raw,
            took,
        })
    }

    fn exchange(&self, bytes: &[u8], patience: Duration) -> Result<(Vec<u8>, Duration), String> {
        let began = Instant::now();
        let addr = self
            .host
            .to_socket_addrs()
            .map_err(|e| format!("{}: {e}", self.host))?
            .next()
            .ok_or_else(|| format!("{} has no address", self.host))?;
        let mut stream = TcpStream::connect_timeout(&addr, Duration::from_secs(10))
            .map_err(|e| format!("cannot connect to {addr}: {e}"))?;
        stream
            .set_read_timeout(Some(patience))
            .map_err(|e| e.to_string())?;
        stream
            .set_write_timeout(Some(patience))
            .map_err(|e| e.to_string())?;
        // A server may refuse early and close: what it said is the answer, not our broken pipe.
        let sent = stream.write_all(bytes);
        let mut raw = Vec::new();
        let mut chunk = [0u8; 65536];
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => raw.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    if raw.is_empty() {
                        return Err(format!("no answer: {e}; sending: {sent:?}"));
                    }
                    break;
                }
            }
        }
        Ok((raw, began.elapsed()))
    }
}

/// Splits an HTTP/1.1 answer, that to a HEAD, which has no body whatever its headers say, or another; `None` when it is none.
fn parse(raw: &[u8], to_head: bool) -> Option<Answer> {
    let end = raw.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&raw[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()?
        .strip_prefix("HTTP/1.")?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let rest = &raw[end + 4..];
    let chunked = headers
        .iter()
        .any(|(n, v)| n == "transfer-encoding" && v.eq_ignore_ascii_case("chunked"));
    let body = if to_head {
        rest.to_vec()
    } else if chunked {
        unchunk(rest)?
    } else {
        let said = headers.iter().find(|(n, _)| n == "content-length");
        let length = said.and_then(|(_, v)| v.parse().ok()).unwrap_or(rest.len());
        rest.get(..length)?.to_vec()
    };
    Some(Answer {
        status,
        headers,
        body,
        took: Duration::ZERO,
    })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}
