//! A listing, page after page.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answer::{decode, picture};
use crate::http::Endpoint;
use crate::run::clip;

/// How far one listing is followed.
#[derive(Debug, Clone, Copy)]
struct Limits {
    pages: usize,
    bytes: usize,
    time: Duration,
}

/// A server may have many skills of its own.
const LIMITS: Limits = Limits {
    pages: 100_000,
    bytes: 256 << 20,
    time: Duration::from_secs(600),
};

/// Follows `next_cursor` to the end; the pages become one answer.
pub(crate) fn to_the_end(endpoint: &Endpoint, params: &str) -> Result<(Value, String), String> {
    follow(endpoint, params, LIMITS)
}

fn follow(endpoint: &Endpoint, params: &str, limits: Limits) -> Result<(Value, String), String> {
    let mut params: Value = serde_json::from_str(params).map_err(|e| e.to_string())?;
    let mut skills = Vec::new();
    let mut sizes = Vec::new();
    let mut followed = BTreeSet::new();
    let (began, mut bytes) = (Instant::now(), 0);
    while sizes.len() < limits.pages && bytes < limits.bytes && began.elapsed() < limits.time {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": params});
        let answer = endpoint.post(body.to_string().as_bytes())?;
        bytes += answer.body.len();
        let seen = decode(&answer, Some("1"));
        let page = &seen["reply"]["result"];
        let items = page["skills"]
            .as_array()
            .ok_or_else(|| format!("a page has no skills: {}", clip(&picture(&seen), 1500)))?;
        sizes.push(items.len());
        skills.extend(items.iter().cloned());
        match &page["next_cursor"] {
            Value::Null => {
                let result = json!({"skills": skills, "page_sizes": sizes});
                return Ok((json!({"reply": {"result": result}}), params.to_string()));
            }
            cursor if !followed.insert(cursor.to_string()) => {
                let again = clip(&cursor.to_string(), 200);
                return Err(format!(
                    "next_cursor {again} for the second time: there is no end"
                ));
            }
            cursor => params["cursor"] = cursor.clone(),
        }
    }
    Err(format!(
        "the listing has no end: {} pages of {bytes} bytes in {} ms, and still a next_cursor",
        sizes.len(),
        began.elapsed().as_millis()
    ))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A page after which there is always another.
    fn endless() -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        std::thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                let mut stream = stream.expect("somebody connects");
                let mut request = [0u8; 4096];
                let read = stream.read(&mut request).expect("somebody asks");
                assert!(read > 0);
                let page = json!({"jsonrpc": "2.0", "id": 1, "result": {"skills": [n], "next_cursor": n.to_string()}});
                let page = page.to_string();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}",
                    page.len()
                )
                .expect("somebody reads");
            }
        });
        Endpoint::parse(&format!("http://{address}/rpc")).expect("this is an address")
    }

    #[test]
    fn a_listing_without_end_is_left() {
        let endpoint = endless();
        let all = Limits {
            pages: 30,
            ..LIMITS
        };
        let few_bytes = Limits {
            bytes: 500,
            ..LIMITS
        };
        let no_time = Limits {
            time: Duration::ZERO,
            ..LIMITS
        };
        for (limits, said) in [
            (all, "the listing has no end: 30 pages of "),
            (few_bytes, "the listing has no end: 8 pages of "),
            (no_time, "the listing has no end: 0 pages of 0 bytes"),
        ] {
            let why = follow(&endpoint, "{}", limits).expect_err("there is no end");
            assert!(why.starts_with(said), "{said}\n{why}");
            assert!(why.ends_with(" ms, and still a next_cursor"), "{why}");
        }
    }
}
