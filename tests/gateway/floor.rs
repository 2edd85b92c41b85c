//! A store whose file system has less free space than is kept: what would make it less is refused, the rest goes on.

use serde_json::{Value, json};

use crate::alone;
use crate::audit::{assert_holds, lines, path};
use crate::support::gateway::{House, Settings};
use crate::support::http::Client;

/// More than any disk has.
const RESERVE: &str = ", reserve_bytes = 9007199254740992";
const NONE: &str = ", reserve_bytes = 0";

fn with(store: &str) -> Settings<'_> {
    Settings {
        store,
        ..Settings::default()
    }
}

/// What the caller can act on, and nothing of the host.
fn assert_words(house: &House, error: &Value) {
    assert_eq!(error["code"], -32007, "{error}");
    assert_eq!(error["data"]["kind"], "unavailable", "{error}");
    assert!(
        error["data"]["retry_after_ms"].as_u64() >= Some(10_000),
        "{error}"
    );
    let text = error["message"].as_str().unwrap();
    assert!(
        text.contains("store is full") && text.contains("store less"),
        "{text}"
    );
    let place = house.path().to_str().unwrap();
    assert!(!error.to_string().contains(place), "{error}");
}

#[test]
fn below_the_floor_nothing_is_stored_and_all_else_goes_on() {
    let _alone = alone();
    let house = House::new(with(NONE));
    let gateway = house.start();
    let kept = gateway
        .client()
        .result(
            "create_blob",
            json!({ "content": "kept", "kind": "text/plain" }),
        )
        .unwrap()["blob_id"]
        .as_str()
        .unwrap()
        .to_owned();
    gateway.stop();

    house.configure(with(RESERVE));
    let gateway = house.start();
    let mut client = gateway.client();
    let put = gateway
        .client()
        .request("POST", "/blobs", &[("Content-Type", "text/plain")], b"x")
        .unwrap();
    assert_eq!(put.status, 503, "{}", put.text());
    assert_words(&house, &put.json().unwrap()["error"]);
    for (method, params) in [
        (
            "create_blob",
            json!({ "content": "x", "kind": "text/plain" }),
        ),
        (
            "create_skill",
            json!({
                "manifest": { "name": "user.x", "version": "1.0.0", "description": "x", "kind": "instruction", "namespace": "user" },
                "skill_md": "---\nname: user.x\ndescription: x\n---\nx\n",
            }),
        ),
    ] {
        assert_words(&house, &client.call(method, params).unwrap()["error"]);
    }
    let storing = "from runtime import blobs\ndef main(args):\n    return blobs.write_text('x')\n";
    let failed = client
        .result("run_code", json!({ "language": "python", "code": storing }))
        .unwrap();
    assert_eq!(failed["status"], "failed", "{failed}");
    assert_eq!(failed["error"]["type"], "DiskFull", "{failed}");
    let text = failed["error"]["message"].as_str().unwrap();
    assert!(text.contains("store less"), "{text}");
    assert_eq!(house.blobs().len(), 1);
    assert_eq!(house.unfinished(), 0);

    // What is there is read, by a caller and by a run; code runs.
    assert_eq!(client.get(&format!("/blobs/{kept}")).unwrap().body, b"kept");
    let reading =
        "from runtime import blobs\ndef main(args):\n    return blobs.read_text(args['id'])\n";
    let read = client
        .result(
            "run_code",
            json!({ "language": "python", "code": reading, "args": { "id": kept }, "input_blobs": [kept] }),
        )
        .unwrap();
    assert_eq!(read["output"], "kept", "{read}");

    let mut operator = Client::open(&gateway.admin).unwrap();
    let verbose = operator.get("/readyz?verbose").unwrap();
    assert_eq!(verbose.status, 200, "it serves");
    let text = verbose.text();
    assert!(
        text.contains("[!]storage impaired") && text.contains("reserve_bytes"),
        "{text}"
    );
    let metrics = operator.get("/metrics").unwrap().text();
    assert!(
        metrics.contains(r#"skillgate_plugin_value{plugin="storage",name="free_bytes"}"#),
        "{metrics}"
    );
    let log = gateway.log();
    assert_eq!(
        log.matches("has no more free space than is kept").count(),
        1,
        "{log}"
    );
    gateway.stop();
    assert_holds(&house);
    let runs = lines(&path(&house));
    let runs = runs.iter().filter(|line| line["kind"] == "run");
    assert_eq!(runs.count(), 2, "both runs are on record");
}
