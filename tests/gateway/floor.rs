//! A store whose file system has less free space than is kept, or where a tenant has used up what it may have: what would take
//! more is refused, and says whose room has run out; the rest goes on.

use serde_json::{Value, json};
use skillgate::auth::DevelopmentKey;

use crate::alone;
use crate::audit::{assert_holds, lines, path};
use crate::jwt::{call, claims, house_of};
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

/// To an agent of that tenant "the store is full" would be wrong, and to the operator a warning at each of its tries.
#[test]
fn a_tenant_that_has_used_up_its_part_is_told_so_and_others_are_served() {
    let _alone = alone();
    let key = DevelopmentKey::generate("ES256").unwrap();
    let (house, sections) = house_of(&key, &["north", "south"]);
    house.configure(Settings {
        store: ", tenant_blob_bytes = 81920, tenant_skill_bytes = 98304",
        blobs: "ttl_s = 600",
        extra: &sections,
        ..Settings::default()
    });
    let gateway = house.start();
    let mut client = gateway.client();
    let token = |tenant| key.token(&claims("ann", tenant)).unwrap();
    let (north, south) = (token("north"), token("south"));
    let blob = |size| json!({ "content": "x".repeat(size), "kind": "text/plain" });
    assert!(call(&mut client, &north, "create_blob", blob(60_000))["result"].is_object());

    let skill = |name: &str| {
        json!({
            "manifest": { "name": name, "version": "1.0.0", "description": "x", "kind": "instruction", "namespace": "user" },
            "skill_md": format!("---\nname: {name}\ndescription: x\n---\n{}\n", "x".repeat(30_000)),
        })
    };
    let published = call(&mut client, &north, "create_skill", skill("user.first"));
    assert!(published["result"].is_object(), "{published}");

    // Blobs expire, and skills stay.
    for (method, params, store, ends_by_itself) in [
        ("create_blob", blob(60_000), "blob store", true),
        ("create_skill", skill("user.second"), "skill store", false),
    ] {
        let reply = call(&mut client, &north, method, params.clone());
        let error = &reply["error"];
        assert_eq!(error["code"], -32007, "{error}");
        assert_eq!(
            error["data"]["retry_after_ms"].as_u64() >= Some(10_000),
            ends_by_itself,
            "{error}"
        );
        let text = error["message"].as_str().unwrap();
        let begin = format!("your tenant has used up what it may have in the {store}: store less");
        assert!(text.starts_with(&begin), "{text}");
        assert_eq!(text.contains("expires"), ends_by_itself, "{text}");
        assert!(text.ends_with("or ask its operator for more"), "{text}");
        let served = call(&mut client, &south, method, params);
        assert!(served["result"].is_object(), "{served}");
    }
    let log = gateway.log();
    assert!(!log.contains("plugin is not available"), "{log}");
    gateway.stop();
}
