//! Where in a body something is wrong.

use super::ask;

/// A place in the body is told; one that counts from somewhere inside it reads like one, and is wrong.
#[tokio::test]
async fn a_place_is_one_in_the_body_or_not_told() {
    let said = async |body: &str| {
        let answer = ask(body).await;
        let error = answer.get(0).unwrap_or(&answer)["error"].clone();
        error["message"].as_str().unwrap().to_owned()
    };
    let told = said("{\n  \"jsonrpc\": \"2.0\",\n  nothing").await;
    assert!(told.ends_with(" at line 3 column 3"), "{told}");
    for (params, expected) in [
        (
            r#"{"a":"\ud800"}"#,
            "parse error in params: half of a surrogate pair, which is no character",
        ),
        (
            r#"{"a":1,"a":2}"#,
            "member \"a\" is there twice in one object",
        ),
        (r#"{"a":1e400}"#, "number out of range"),
    ] {
        let one =
            format!("{{\n\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\n\"params\":{params}}}");
        assert_eq!(said(&one).await, expected);
        assert_eq!(said(&format!("[\n{one}]")).await, expected);
    }
    let twice = r#"{"jsonrpc":"2.0","id":1,"method":"echo","id":2}"#;
    for body in [format!("\n\n{twice}"), format!("[\n{twice}]")] {
        assert_eq!(said(&body).await, "member \"id\" is there twice");
    }
}
