//! JSON-RPC over a stub of methods: every rule of the envelope, with literal bodies and answers.

mod places;

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use http::{Request, Response, header};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, StreamBody};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::{Service, ServiceExt, service_fn};

use super::{Call, ErrorObject, Limits, Rpc, SMALL_BYTES_MAX};
use crate::auth::{Authenticated, Authenticator, Caller};
use crate::rescue::{Refusal, RequestId};
use crate::server::{Body, BodyError, full};
use crate::slots::Slots;
use crate::telemetry::metrics::Metrics;

/// Echoes its parameters; `boom` panics, `long` answers 6,000 letters, `no` is refused.
async fn stub(call: Call) -> Result<Box<RawValue>, ErrorObject> {
    match call.method.as_str() {
        "echo" => Ok(RawValue::from_string(call.params.as_str().to_owned()).unwrap()),
        "boom" => panic!("a bug with /etc/secret in its text"),
        "null" => Ok(to_raw_value(&()).unwrap()),
        "long" => Ok(to_raw_value(&"x".repeat(6_000)).unwrap()),
        _ => Err(ErrorObject::new(
            super::Code::MethodNotFound,
            "method_not_found",
            "no such method",
        )),
    }
}

async fn post(body: &[u8], kind: &str) -> Result<(u16, String), Refusal> {
    post_as(Authenticator::off().local(), body, kind).await
}

async fn post_as(caller: Caller, body: &[u8], kind: &str) -> Result<(u16, String), Refusal> {
    post_body(caller, full(body.to_vec()), kind).await
}

const LIMITS: Limits = Limits {
    body_bytes_max: 10_000,
    body_timeout: Duration::from_secs(5),
    batch_max: 3,
    large_bodies_max: 1,
};

async fn post_body(caller: Caller, body: Body, kind: &str) -> Result<(u16, String), Refusal> {
    let rpc = Rpc::new(service_fn(stub), LIMITS);
    post_to(rpc, caller, body, kind).await
}

async fn post_to<S>(
    rpc: Rpc<S>,
    caller: Caller,
    body: Body,
    kind: &str,
) -> Result<(u16, String), Refusal>
where
    Rpc<S>: Service<Authenticated, Response = Response<Body>, Error = Refusal>,
{
    let request = Request::post("/rpc")
        .header(header::CONTENT_TYPE, kind)
        .body(body)
        .unwrap();
    let response = rpc
        .oneshot(Authenticated {
            caller,
            request_id: RequestId::new(),
            request,
        })
        .await?;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    Ok((status, String::from_utf8(bytes.to_vec()).unwrap()))
}

async fn ask(body: &str) -> Value {
    let (status, text) = post(body.as_bytes(), "application/json").await.unwrap();
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn results_and_ids() {
    for id in ["1", "\"a\"", "null", "-5"] {
        let (_, text) = post(
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"echo","params":{{"a":1.50}}}}"#)
                .as_bytes(),
            "application/json",
        )
        .await
        .unwrap();
        assert_eq!(
            text,
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"a":1.50}}}}"#),
            "id and result keep their exact text"
        );
    }
    assert_eq!(
        ask(r#"{"jsonrpc":"2.0","id":1,"method":"null"}"#).await,
        json!({"jsonrpc":"2.0","id":1,"result":null})
    );
    for nothing in ["null", "[]", "[ ]", "{}"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":{nothing}}}"#);
        assert_eq!(ask(&body).await["result"], json!({}), "{nothing}");
    }
}

#[tokio::test]
async fn errors_have_code_kind_and_request_id() {
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":{{"a":{}1{}}}}}"#,
        "[".repeat(300),
        "]".repeat(300)
    );
    for (body, id, code, kind) in [
        ("{", Value::Null, -32700, "parse_error"),
        ("", Value::Null, -32700, "parse_error"),
        ("\u{feff}{}", Value::Null, -32700, "parse_error"),
        ("[]", Value::Null, -32600, "invalid_request"),
        ("5", Value::Null, -32600, "invalid_request"),
        (r#"[1,1,1,1]"#, Value::Null, -32600, "invalid_request"),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"zzz"}"#,
            json!(1),
            -32601,
            "method_not_found",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}"#,
            json!(1),
            -32602,
            "invalid_params",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{"a":1,"a":2}}"#,
            json!(1),
            -32602,
            "invalid_params",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{"a":1e400}}"#,
            json!(1),
            -32602,
            "invalid_params",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{"a":"\ud800"}}"#,
            json!(1),
            -32700,
            "parse_error",
        ),
        (&deep, json!(1), -32700, "parse_error"),
        (
            r#"{"jsonrpc":"2.0","id":"x","method":"boom"}"#,
            json!("x"),
            -32603,
            "internal",
        ),
    ] {
        let answer = ask(body).await;
        assert_eq!(answer["id"], id, "{body}");
        assert_eq!(answer["error"]["code"], code, "{body}: {answer}");
        assert_eq!(answer["error"]["data"]["kind"], kind, "{body}");
        assert!(answer["error"]["data"]["request_id"].is_string());
        assert!(
            !answer.to_string().contains("secret"),
            "a panic's text stays inside"
        );
    }
}

#[tokio::test]
async fn batches_and_notifications() {
    let answer =
        ask(r#"[{"jsonrpc":"2.0","id":1,"method":"echo"},{"jsonrpc":"2.0","method":"echo"},7]"#)
            .await;
    assert_eq!(
        answer.as_array().unwrap().len(),
        2,
        "the notification is not answered, the 7 is refused: {answer}"
    );
    assert_eq!(answer[1]["error"]["code"], -32600);
    for silent in [
        r#"{"jsonrpc":"2.0","method":"echo"}"#,
        r#"{"jsonrpc":"2.0","method":"zzz"}"#,
        r#"[{"jsonrpc":"2.0","method":"boom"}]"#,
    ] {
        assert_eq!(
            post(silent.as_bytes(), "application/json").await.unwrap(),
            (204, String::new()),
            "{silent}"
        );
    }
    let answer = ask(r#"[[],{"jsonrpc":"2.0","id":1,"method":"echo"}]"#).await;
    assert_eq!(answer[0]["error"]["code"], -32600, "no batch in a batch");
}

/// What is made is answered, whatever it takes; what would come after too much is not made.
#[tokio::test]
async fn the_answers_of_a_batch_have_an_end() {
    let call =
        |id: u8, method: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
    let body = format!(
        "[{},{},{}]",
        call(1, "long"),
        call(2, "long"),
        call(3, "boom")
    );
    let answer = ask(&body).await;
    for made in [0, 1] {
        assert_eq!(answer[made]["result"].as_str().map(str::len), Some(6_000));
    }
    let error = &answer[2]["error"];
    assert_eq!(
        (&answer[2]["id"], &error["code"]),
        (&json!(3), &json!(-32006)),
        "{error}"
    );
    assert_eq!(error["data"]["kind"], "too_large");
    assert!(
        error["message"].as_str().unwrap().contains("was not made"),
        "{error}"
    );
    let body = format!("[{},{}]", call(1, "long"), call(2, "echo"));
    assert_eq!(ask(&body).await[1]["result"], json!({}), "there is room");
}

#[test]
fn an_answer_fits_by_its_json() {
    for (answer, bytes) in [("abc", 5), ("\u{1}\n", 10), ("\u{e9}", 4)] {
        assert_eq!(super::json_bytes(&answer, bytes), Some(bytes), "{answer:?}");
        assert_eq!(super::json_bytes(&answer, bytes + 7), Some(bytes));
        assert_eq!(super::json_bytes(&answer, bytes - 1), None, "{answer:?}");
    }
}

#[tokio::test]
async fn refusals_before_json_rpc() {
    let status = |outcome: Result<(u16, String), Refusal>| outcome.unwrap_err().status.as_u16();
    assert_eq!(status(post(b"{}", "text/plain").await), 415);
    assert_eq!(status(post(b"{}", "").await), 415);
    assert_eq!(
        status(post(&vec![b' '; 10_001], "application/json").await),
        413
    );
    assert!(post(b"{}", "Application/JSON; charset=utf-8").await.is_ok());
    let (status, text) = post(b"\xff\xfe", "application/json").await.unwrap();
    assert!(status == 200 && text.contains("-32700"), "{text}");
}

/// A call whose text comes in so many pieces, each a while after the one before; the last of them ends it, if it may.
async fn post_slowly(pieces: usize, pause_s: u64, ends: bool) -> (Result<String, Refusal>, u64) {
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"null"}"#;
    let mut parts: Vec<Bytes> = vec![Bytes::from_static(b" "); pieces - 1];
    parts.push(Bytes::from_static(text.as_bytes()));
    let arriving = stream::iter(parts).then(move |part| async move {
        tokio::time::sleep(Duration::from_secs(pause_s)).await;
        Ok(Frame::data(part))
    });
    let body = if ends {
        StreamBody::new(arriving).boxed_unsync()
    } else {
        StreamBody::new(arriving.chain(stream::pending())).boxed_unsync()
    };
    let began = tokio::time::Instant::now();
    let answer = post_body(Authenticator::off().local(), body, "application/json").await;
    (answer.map(|(_, text)| text), began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_body_may_come_slowly_but_not_stop_and_not_for_ever() {
    // Five seconds for each piece, fifty for all.
    let (answer, took_s) = post_slowly(9, 4, true).await;
    assert!(answer.unwrap().contains(r#""result":null"#));
    assert_eq!(took_s, 36);

    for (pieces, pause_s, ends, expected_s, why) in [
        (1, 6, true, 5, "the body stopped arriving"),
        (3, 4, false, 17, "the body stopped arriving"),
        (100, 4, true, 50, "the body did not arrive in 10 times"),
    ] {
        let (answer, took_s) = post_slowly(pieces, pause_s, ends).await;
        let refusal = answer.unwrap_err();
        assert_eq!(
            (refusal.status.as_u16(), refusal.kind, took_s),
            (408, "timeout", expected_s),
            "{}",
            refusal.message
        );
        assert!(refusal.message.starts_with(why), "{}", refusal.message);
        assert!(refusal.message.contains("server.body_timeout_ms"));
    }
}

#[tokio::test]
async fn a_body_in_pieces_has_the_same_limit() {
    for (piece, pieces, status) in [(1000, 10, 200), (1000, 11, 413), (10_001, 1, 413)] {
        let arriving = stream::iter(vec![Bytes::from(vec![b' '; piece]); pieces]);
        let body = StreamBody::new(arriving.map(|part| Ok(Frame::data(part)))).boxed_unsync();
        let answer = post_body(Authenticator::off().local(), body, "application/json").await;
        let said = answer.map_or_else(|refusal| refusal.status.as_u16(), |(status, _)| status);
        assert_eq!(said, status, "{pieces} times {piece} bytes");
    }
}

/// Says how long it is. None of it comes before somebody asks for it, as with `Expect: 100-continue`.
struct Announced(u64);

impl http_body::Body for Announced {
    type Data = Bytes;
    type Error = BodyError;
    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Pending
    }
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_says_that_it_is_too_large_is_not_waited_for() {
    for (bytes, status) in [(10_000, 408), (10_001, 413), (u64::MAX, 413)] {
        let body = Announced(bytes).boxed_unsync();
        let answer = post_body(Authenticator::off().local(), body, "application/json").await;
        assert_eq!(answer.unwrap_err().status, status, "{bytes}");
    }
}

/// There is one place for a large body, and it has it until it is answered.
#[tokio::test(start_paused = true)]
async fn large_bodies_are_here_in_turn() {
    let limits = Limits {
        body_bytes_max: 1 << 20,
        ..LIMITS
    };
    let (release, held) = tokio::sync::watch::channel(false);
    let waits = move |call: Call| {
        let mut held = held.clone();
        async move {
            if call.params.as_str().len() > SMALL_BYTES_MAX {
                held.wait_for(|released| *released).await.unwrap();
            }
            stub(call).await
        }
    };
    let rpc = Rpc::new(service_fn(waits), limits);
    let post = |bytes: usize| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":{{"a":"{}"}}}}"#,
            "x".repeat(bytes)
        );
        let caller = Authenticator::off().local();
        tokio::spawn(post_to(rpc.clone(), caller, full(body), "application/json"))
    };
    let first = post(SMALL_BYTES_MAX);
    let began = Instant::now();
    let refused = post(SMALL_BYTES_MAX).await.unwrap().unwrap_err();
    assert_eq!(
        (refused.status.as_u16(), refused.kind),
        (503, "unavailable")
    );
    assert_eq!(began.elapsed().as_secs(), 5);
    assert!(
        refused.message.contains("POST /blobs"),
        "{}",
        refused.message
    );
    assert_eq!(post(1000).await.unwrap().unwrap().0, 200, "a small one");
    let waiting = post(SMALL_BYTES_MAX);
    tokio::task::yield_now().await;
    release.send(true).unwrap();
    for answered in [first, waiting] {
        let (status, text) = answered.await.unwrap().unwrap();
        assert!(status == 200 && text.len() > SMALL_BYTES_MAX, "{status}");
    }
}

/// Whoever sends most of many bodies and never their ends leaves places to others, and all have an end.
#[tokio::test(start_paused = true)]
async fn bodies_that_do_not_arrive_have_places_too() {
    let limits = Limits {
        body_bytes_max: 1 << 20,
        ..LIMITS
    };
    let rpc = Rpc::new(service_fn(stub), limits);
    let post = |body: Body| {
        let caller = Authenticator::off().local();
        tokio::spawn(post_to(rpc.clone(), caller, body, "application/json"))
    };
    let spaces = |bytes: usize| Ok(Frame::data(Bytes::from(vec![b' '; bytes])));
    let dripping = |bytes: usize| {
        let drips = stream::repeat(()).then(move |()| async move {
            tokio::time::sleep(Duration::from_secs(4)).await;
            spaces(1)
        });
        StreamBody::new(stream::iter([spaces(bytes)]).chain(drips)).boxed_unsync()
    };
    // Of the 16 places one tenant has twelve.
    let held: Vec<_> = (0..12).map(|_| post(dripping(20_000))).collect();
    tokio::task::yield_now().await;
    let began = Instant::now();
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"null"}"#;
    let whole = |bytes: usize| full(" ".repeat(bytes) + call);
    let refused = post(whole(20_000)).await.unwrap().unwrap_err();
    assert_eq!(
        (refused.status.as_u16(), refused.kind),
        (503, "unavailable"),
        "{}",
        refused.message
    );
    assert_eq!(began.elapsed().as_secs(), 5);
    assert!(refused.message.contains("server.max_large_bodies"));
    assert_eq!(post(whole(16_000)).await.unwrap().unwrap().0, 200, "little");
    let waiting = post(whole(20_000));
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    held[0].abort();
    assert_eq!(waiting.await.unwrap().unwrap().0, 200);
    let other = post(whole(SMALL_BYTES_MAX));
    assert_eq!(other.await.unwrap().unwrap().0, 200);
}

/// Whoever asks for many answers and reads none leaves places to others, in a batch as by themselves.
#[tokio::test(start_paused = true)]
async fn answers_that_are_not_read_have_places_too() {
    const BYTES: usize = 200_000;
    let limits = Limits {
        body_bytes_max: 1 << 20,
        ..LIMITS
    };
    let reads = |call: Call| async move {
        if call.method != "read" {
            return stub(call).await;
        }
        call.space.enter(BYTES as u64).await?;
        Ok(to_raw_value(&"x".repeat(BYTES)).unwrap())
    };
    let rpc = Rpc::new(service_fn(reads), limits);
    // The head and no more: the answer stays as it is.
    let ask = |text: &str| {
        let request = Request::post("/rpc")
            .header(header::CONTENT_TYPE, "application/json")
            .body(full(text.to_owned()))
            .unwrap();
        let asked = rpc.clone().oneshot(Authenticated {
            caller: Authenticator::off().local(),
            request_id: RequestId::new(),
            request,
        });
        async { asked.await.unwrap().into_body() }
    };
    let text = async |body: Body| body.collect().await.unwrap().to_bytes();
    let is_refused = |answer: &[u8]| {
        let answer: Value = serde_json::from_slice(answer).unwrap();
        answer["error"]["code"] == -32007
    };
    let call = |id: u8| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"read"}}"#);
    let mut unread = Vec::new();
    for n in 0..30 {
        let answer = ask(&call(n)).await;
        // Of the 16 places one tenant has twelve.
        if n < 12 {
            unread.push(answer);
        } else {
            let answer = text(answer).await;
            let answer = answer.as_ref();
            assert!(is_refused(answer), "{n}: {} bytes", answer.len());
        }
    }
    let null = ask(r#"{"jsonrpc":"2.0","id":1,"method":"null"}"#).await;
    assert!(!is_refused(&text(null).await), "little");
    let read = unread.pop().unwrap();
    assert!(text(read).await.len() > BYTES);
    let batch = format!("[{},{}]", call(1), call(2));
    let _large = rpc.places.large.take("another").unwrap();
    let answers: Value = serde_json::from_slice(&text(ask(&batch).await).await).unwrap();
    assert_eq!(answers[0]["result"].as_str().map(str::len), Some(BYTES));
    assert_eq!(answers[1]["error"]["code"], -32007, "both together");
}

/// Its caller would do it again.
#[tokio::test]
async fn what_has_been_done_is_answered_without_a_place_too() {
    let done = |call: Call| async move {
        match call.method.as_str() {
            "do" => Ok(to_raw_value(&"x".repeat(300_000)).unwrap()),
            _ => stub(call).await,
        }
    };
    let limits = Limits {
        body_bytes_max: 1 << 20,
        body_timeout: Duration::from_millis(1),
        ..LIMITS
    };
    let rpc = Rpc::new(service_fn(done), limits);
    let _place = rpc.places.large.take("another").unwrap();
    let call =
        |id: u8, method: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
    let (alone, batch) = (
        call(1, "do"),
        format!("[{},{}]", call(1, "do"), call(2, "do")),
    );
    for body in [alone, batch] {
        let caller = Authenticator::off().local();
        let answer = post_to(rpc.clone(), caller, full(body), "application/json").await;
        let answer: Value = serde_json::from_str(&answer.unwrap().1).unwrap();
        let first = answer.get(0).unwrap_or(&answer);
        let result = first["result"].as_str().map(str::len);
        assert_eq!(result, Some(300_000), "{}", first["error"]);
        if let Some(second) = answer.get(1) {
            assert_eq!(second["error"]["code"], -32007, "it was not made");
        }
    }
}

/// Text that is no request at all costs as much to look at.
#[tokio::test(start_paused = true)]
async fn large_bodies_are_looked_at_in_turn() {
    let limits = Limits {
        body_bytes_max: 1 << 20,
        ..LIMITS
    };
    let mut rpc = Rpc::new(service_fn(stub), limits);
    rpc.walks = Slots::new(1);
    let turn = rpc.walks.wait("another").await;
    let post = |bytes: usize| {
        let body = full(format!("[{}", "1,".repeat(bytes / 2)));
        let caller = Authenticator::off().local();
        post_to(rpc.clone(), caller, body, "application/json")
    };
    let is_refused = |(_, text): (u16, String)| text.contains("-32600");
    assert!(is_refused(post(1000).await.unwrap()), "a small one");
    let mut large = pin!(post(SMALL_BYTES_MAX));
    let within = tokio::time::timeout(Duration::from_secs(60), &mut large);
    assert!(within.await.is_err(), "another's turn is not over");
    drop(turn);
    assert!(is_refused(large.await.unwrap()));
}

/// A batch that takes long does not outlive the token that it came with.
#[tokio::test]
async fn nothing_begins_after_the_token_has_expired() {
    let body = br#"[{"jsonrpc":"2.0","id":1,"method":"echo","params":{}},{"jsonrpc":"2.0","method":"echo"}]"#;
    let caller = Authenticator::off().local().expired();
    let (status, text) = post_as(caller, body, "application/json").await.unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, answer.as_array().unwrap().len()), (200, 1));
    assert_eq!(answer[0]["error"]["code"], -32001);
    assert_eq!(answer[0]["error"]["data"]["kind"], "unauthenticated");
}

/// The slow ones above all are those that a client gives up.
#[tokio::test]
async fn a_call_without_an_answer_is_counted_too() {
    let metrics = Metrics::new(["echo", "slow"]);
    let methods = service_fn(async |call: Call| match call.method.as_str() {
        "slow" => std::future::pending().await,
        _ => stub(call).await,
    });
    let rpc = Rpc::new(methods, LIMITS).watched_by(metrics.clone());
    let body = full(
        r#"[{"jsonrpc":"2.0","id":1,"method":"echo","params":{}},{"jsonrpc":"2.0","id":2,"method":"slow"}]"#,
    );
    let caller = Authenticator::off().local();
    let mut asked = Box::pin(post_to(rpc, caller, body, "application/json"));
    assert!(asked.as_mut().now_or_never().is_none());
    drop(asked);
    let page = metrics.page().into_text();
    for line in [
        r#"skillgate_rpc_requests_total{method="echo",outcome="ok",kind=""} 1"#,
        r#"skillgate_rpc_requests_total{method="slow",outcome="no_answer",kind=""} 1"#,
        r#"skillgate_rpc_duration_seconds_count{method="slow"} 1"#,
    ] {
        assert!(page.lines().any(|have| have == line), "{line}: {page}");
    }
}
