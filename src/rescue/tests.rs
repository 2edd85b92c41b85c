use http_body_util::BodyExt;
use tower::service_fn;

use super::*;
use crate::auth::Lapsed;

#[test]
fn a_run_that_is_too_large_for_the_sandbox_is_the_callers_to_change() {
    use skillgate_plugin_sdk::model::Error;
    let answer = |error: Error| ErrorObject::from(runs::Error::Sandbox(error));
    let large = || Error::new(abi::E_OUT_OF_RANGE, "25 MiB in /srv/secret/place");
    let refused = answer(large().not_executed());
    assert_eq!((refused.code, refused.kind), (Code::TooLarge, "too_large"));
    assert!(
        refused.message.contains("input_blobs"),
        "{}",
        refused.message
    );
    assert!(!refused.message.contains("secret"), "{}", refused.message);
    // Nothing that the caller could have asked for otherwise.
    assert_eq!(answer(large()).kind, "internal");
}

/// The caller learns nothing of it, so the log has to: which plugin, and what it has said.
#[test]
fn what_fails_inside_is_in_the_log_with_all_that_lies_below_it() {
    use skillgate_plugin_sdk::model::Error;
    let (log, _here) = crate::telemetry::logged::Log::begin();
    let failed = || Error::new(abi::E_INTERNAL, "no such table");
    let of = |which: &str| match which {
        "skill store" => catalog::Error::Store(failed()).into(),
        "blob store" => blobs::Error::Store(failed()).into(),
        _ => runs::Error::Sandbox(failed()).into(),
    };
    for which in ["skill store", "blob store", "sandbox"] {
        let error: ErrorObject = of(which);
        let line = log.taken();
        assert_eq!(error.kind, "internal");
        let named = line.contains(&format!("which={which:?}"));
        assert!(named && line.contains("no such table"), "{line}");
    }
}

/// Who obeys it would be gone for weeks.
#[test]
fn a_plugin_sends_nobody_away_for_longer_than_an_hour() {
    use skillgate_plugin_sdk::model::Error;
    for of_tenant in [false, true] {
        let soon = if of_tenant { 1000 } else { 5 };
        for (said, told) in [(0, 1000), (5, soon), (5000, 5000), (u32::MAX, 3_600_000)] {
            let mut error = Error::new(abi::E_EXHAUSTED, "full").retryable(said);
            error.of_tenant = of_tenant;
            let answer = ErrorObject::from(blobs::Error::Store(error));
            assert_eq!(answer.data["retry_after_ms"], told, "{of_tenant} {said}");
        }
    }
}

/// Others are served, and each of its tries would be a warning.
#[test]
fn a_tenant_that_has_its_share_is_told_that_it_is_its_own() {
    use skillgate_plugin_sdk::model::Error;
    let (log, _here) = crate::telemetry::logged::Log::begin();
    let share = Error::new(abi::E_UNAVAILABLE, "48 calls of this tenant").of_tenant();
    let told = ErrorObject::from(blobs::Error::Store(share.retryable(1000)));
    assert!(
        told.message.contains("your tenant has as much under way"),
        "{}",
        told.message
    );
    assert_eq!(told.data["retry_after_ms"], 1000);
    // What expires makes room, and what does not is not waited for.
    for expires in [true, false] {
        let mut used_up = Error::new(abi::E_EXHAUSTED, "its bytes").of_tenant();
        used_up.retryable = expires;
        let told = ErrorObject::from(blobs::Error::Store(used_up));
        assert_eq!(told.message.contains("expires"), expires);
        assert_eq!(told.data.contains_key("retry_after_ms"), expires);
    }
    assert!(!log.taken().contains("WARN"));
}

#[test]
fn who_publishes_where_nothing_is_published_is_not_told_to_try_again() {
    let answer = ErrorObject::from(catalog::Error::ReadOnly);
    let (code, kind) = (answer.code, answer.kind);
    assert_eq!((code, kind), (Code::Unavailable, "unavailable"));
    assert!(!answer.data.contains_key("retry_after_ms"));
}

/// Tokens are tried from somewhere, and it is the operator who stops that.
#[tokio::test]
async fn what_is_said_of_a_request_has_its_peer() {
    let refuses = service_fn(async |_: Named| {
        let refusal = Refusal::new(StatusCode::UNAUTHORIZED, "unauthenticated", "no");
        Err::<Response<Body>, _>(refusal)
    });
    let (log, _here) = crate::telemetry::logged::Log::begin();
    let mut request = Request::new(full(""));
    let peer = crate::server::Peer(([192, 0, 2, 7], 4711).into());
    request.extensions_mut().insert(peer);
    let answer = RescueLayer.layer(refuses).oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    let log = log.taken();
    let refused = log.lines().find(|line| line.contains("request refused"));
    assert!(refused.unwrap().contains("peer=192.0.2.7"), "{log}");
}

/// A model may take it for a tool.
#[test]
fn who_calls_a_skill_by_its_name_is_told_how() {
    let told = |method: &str| {
        let error = methods::Error::UnknownMethod {
            method: method.into(),
        };
        ErrorObject::from(error).message
    };
    let how = r#"execute_skill runs it, with {"name": "hello.world"}"#;
    assert!(told("hello.world").contains(how), "{}", told("hello.world"));
    for other in ["list_skill", "rpc.nothing", "tools.", "a.\u{1b}"] {
        assert!(!told(other).contains("runs it"), "{other}");
    }
}

/// Whether or not its connection has heard of the drain.
#[test]
fn what_comes_in_the_drain_is_told_that_nothing_follows() {
    let answer = Refusal::stopping().response(&RequestId::new());
    let header = |name| answer.headers().get(name).map(|it| it.to_str().unwrap());
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let told = (header(header::CONNECTION), header(header::RETRY_AFTER));
    assert_eq!(told, (Some("close"), Some("1")));
}

#[test]
fn where_a_new_token_does_not_help_nobody_is_told_to_get_one() {
    let told = |lapsed| {
        let refusal = Refusal::from(ErrorObject::from(runs::Error::Lapsed(lapsed)));
        let names = refusal.message.contains("get a new token");
        (refusal.status.as_u16(), names, refusal.headers)
    };
    for lapsed in [Lapsed::Expired, Lapsed::Withdrawn] {
        assert_eq!(told(lapsed), (401, true, Vec::new()), "{lapsed:?}");
    }
    let wait = (header::RETRY_AFTER, HeaderValue::from(30));
    for lapsed in [Lapsed::KeysUnavailable, Lapsed::ClockUnset] {
        assert_eq!(told(lapsed), (503, false, vec![wait.clone()]), "{lapsed:?}");
    }
}

#[tokio::test]
async fn a_panic_is_one_answer_and_tells_nothing() {
    let inner = service_fn(|named: Named| async move {
        assert_ne!(named.request.uri().path(), "/boom", "at /srv/secret/place");
        Ok::<_, Refusal>(Response::new(full("fine")))
    });
    let stack = RescueLayer.layer(inner);
    for (path, status) in [("/boom", 500), ("/", 200)] {
        let request = Request::builder().uri(path).body(full("")).unwrap();
        let response = stack.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        assert!(response.headers().contains_key(&REQUEST_ID));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        assert!(!text.contains("secret"), "{text}");
        if status == 500 {
            let error: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(error["error"]["code"], -32603);
            assert_eq!(error["error"]["data"]["kind"], "internal");
        }
    }
}
