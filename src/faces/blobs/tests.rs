use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::Instant;

use super::{Caller, Refusal, Unsatisfiable, pieces, range};
use crate::auth::Authenticator;
use crate::server::full;

const ETAG: &str = "\"abc\"";

#[test]
fn ranges() {
    let ask = |text: &'static str, size| {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_static(text));
        range(&Method::GET, &headers, ETAG, size)
    };
    assert_eq!(range(&Method::GET, &HeaderMap::new(), ETAG, 10), Ok(None));
    for (text, expected) in [
        ("bytes=0-3", Ok(Some((0, 4)))),
        ("bytes=4-", Ok(Some((4, 6)))),
        ("bytes=-3", Ok(Some((7, 3)))),
        ("bytes=-30", Ok(Some((0, 10)))),
        ("bytes=9-99999999999999999999", Ok(Some((9, 1)))),
        ("bytes=10-", Err(Unsatisfiable)),
        ("bytes=-0", Err(Unsatisfiable)),
        ("bytes=3-1", Ok(None)),
        ("bytes=0-1,3-4", Ok(None)),
        ("lines=0-1", Ok(None)),
        ("bytes=x-", Ok(None)),
        ("bytes=-", Ok(None)),
        ("bytes=+1-2", Ok(None)),
    ] {
        assert_eq!(ask(text, 10), expected, "{text}");
    }
    assert_eq!(ask("bytes=0-", 0), Err(Unsatisfiable));
}

const IDLE: Duration = Duration::from_secs(30);

/// So many bytes in each piece and so many pieces, ten seconds apart: how many came, after how many seconds, and what ended it.
async fn uploaded(caller: Caller, bytes: usize, count: usize) -> (usize, u64, Option<Refusal>) {
    let content = stream::iter(vec![Bytes::from(vec![b'x'; bytes]); count]);
    let arriving = content.then(async |piece| {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok(Frame::data(piece))
    });
    let body = StreamBody::new(arriving.boxed()).boxed_unsync();
    let (began, mut came) = (Instant::now(), 0);
    let mut pieces = std::pin::pin!(pieces(body, caller, IDLE));
    let mut why = None;
    while let Some(piece) = pieces.next().await {
        match piece {
            Ok(_) => came += 1,
            Err(error) => why = Some(Refusal::from(error)),
        }
    }
    (came, began.elapsed().as_secs(), why)
}

#[tokio::test(start_paused = true)]
async fn an_upload_may_take_long_but_not_for_ever() {
    let caller = || Authenticator::off().local();
    let (came, took_s, why) = uploaded(caller(), 10_240, 1000).await;
    assert_eq!((came, took_s), (1000, 10_000), "{why:?}");
    let (came, took_s, why) = uploaded(caller(), 10_239, 1000).await;
    let why = why.unwrap();
    assert_eq!((came, took_s, why.status.as_u16()), (29, 300, 408));
    assert!(why.message.contains("server.body_timeout_ms"));
    // One that ends before it is looked at has been quick enough.
    let (came, _, why) = uploaded(caller(), 1, 29).await;
    assert!(came == 29 && why.is_none(), "{why:?}");
}

#[tokio::test]
async fn nothing_is_stored_after_the_token_has_expired() {
    let expired = Authenticator::off().local().expired();
    let mut pieces = std::pin::pin!(pieces(full(""), expired, IDLE));
    let why = Refusal::from(pieces.next().await.unwrap().unwrap_err());
    assert_eq!((why.status.as_u16(), why.kind), (401, "unauthenticated"));
    assert!(pieces.next().await.is_none());
}

#[test]
fn a_range_is_for_get_and_for_who_has_the_rest_of_the_same() {
    for (method, if_range, expected) in [
        (Method::GET, None, Ok(Some((4, 6)))),
        (Method::GET, Some(ETAG), Ok(Some((4, 6)))),
        (Method::GET, Some("W/\"abc\""), Ok(None)),
        (Method::GET, Some("\"abd\""), Ok(None)),
        (Method::GET, Some("abc"), Ok(None)),
        (Method::GET, Some("Thu, 26 Nov 2026 18:00:00 GMT"), Ok(None)),
        (Method::HEAD, None, Ok(None)),
        (Method::HEAD, Some(ETAG), Ok(None)),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_static("bytes=4-"));
        if let Some(value) = if_range {
            headers.insert(header::IF_RANGE, HeaderValue::from_static(value));
        }
        let got = range(&method, &headers, ETAG, 10);
        assert_eq!(got, expected, "{method} {if_range:?}");
    }
}
