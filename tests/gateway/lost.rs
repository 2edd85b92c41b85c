//! The store is gone, and the gateway lives: what needs none goes on and changes as ever, what needs one is refused at once, and
//! it comes back when it can.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::alone;
use crate::policy::{narrow, policy_in};
use crate::support::eventually;
use crate::support::gateway::{Gateway, House, Settings};
use crate::swap::{TAKEN, readyz, reload};

/// The gateway itself waits half a minute for a store to come back.
const PATIENCE: Duration = Duration::from_secs(120);
/// Far less than that, on any machine.
const AT_ONCE: Duration = Duration::from_secs(10);
const LOST: &str = "is still not as it should be";

fn create_blob(gateway: &Gateway) -> serde_json::Value {
    let params = json!({ "content": "x", "kind": "text/plain" });
    gateway.client().call("create_blob", params).unwrap()
}

/// Refused, and soon; and nobody sends it anything.
fn is_without(gateway: &Gateway) {
    let began = Instant::now();
    let reply = create_blob(gateway);
    assert_eq!(reply["error"]["code"], -32007, "{reply}");
    assert!(began.elapsed() < AT_ONCE, "after {:?}", began.elapsed());
    // What is shown may be some seconds old.
    eventually("it is not ready", AT_ONCE, || readyz(gateway).0 == 503);
}

#[test]
fn a_store_that_is_lost_keeps_nothing_else_from_changing() {
    let _alone = alone();
    let house = House::new(Settings::default());
    policy_in(&house, |_| ());
    let settings = Settings {
        server: "reload_watch_ms = 0",
        extra: "[policy]\npath = \"policies\"",
        ..Settings::default()
    };
    house.configure(settings);
    let gateway = house.start();
    assert!(create_blob(&gateway)["result"].is_object());

    // Neither the new one nor the one before can have its directory.
    let aside = house.path().join("aside");
    fs::rename(house.store(), &aside).unwrap();
    fs::write(house.store(), "").unwrap();
    house.configure(Settings {
        store: ", tenant_blob_bytes = 1000000000",
        ..settings
    });
    gateway.signal("HUP");
    eventually("the store is lost", PATIENCE, || {
        gateway.log().contains("; and the one before: ")
    });
    // As many tries as there are reloads.
    let tries = |count: usize| {
        eventually("it is tried again", PATIENCE, || {
            gateway.log().matches(LOST).count() == count
        });
        is_without(&gateway);
    };
    tries(1);

    // The rest of what is written is taken: the policy allows less.
    house.configure(settings);
    policy_in(&house, narrow);
    reload(&gateway, TAKEN);
    tries(2);
    let code = json!({ "language": "python", "code": "def main(args):\n    return 1\n" });
    let reply = gateway.client().call("run_code", code).unwrap();
    assert_eq!(reply["error"]["code"], -32003, "{reply}");

    // And what is refused does not keep it from coming back.
    fs::remove_file(house.store()).unwrap();
    fs::rename(&aside, house.store()).unwrap();
    fs::write(house.config(), "[server\n").unwrap();
    reload(&gateway, "reload refused");
    eventually("it is back", PATIENCE, || {
        readyz(&gateway).0 == 200 && create_blob(&gateway)["result"].is_object()
    });
    gateway.stop();
}
