//! What a cache may keep of an answer, and what a client that has it is not sent again (RFC 9110, RFC 9111).

use serde_json::json;

use crate::support::gateway::{House, Settings};

/// RFC 9110 section 13.1.2: who has it already is not sent it again.
#[test]
fn who_has_a_blob_is_told_that_it_has_not_changed() {
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    let blob = json!({ "kind": "text/plain", "content": "12345" });
    let id = client.result("create_blob", blob).unwrap()["blob_id"].take();
    let path = format!("/blobs/{}", id.as_str().unwrap());
    let etag = client
        .get(&path)
        .unwrap()
        .header("etag")
        .unwrap()
        .to_owned();
    let several = format!("\"other\", W/{etag}");
    for (known, status) in [
        (etag.as_str(), 304),
        (&several, 304),
        ("*", 304),
        ("\"other\"", 200),
        ("other", 200),
    ] {
        let headers = [("If-None-Match", known), ("Range", "bytes=0-1")];
        let answer = client.request("GET", &path, &headers[..1], b"").unwrap();
        assert_eq!(answer.status, status, "{known}");
        assert_eq!(answer.header("etag"), Some(etag.as_str()));
        // Whoever keeps it asks before it is used again (RFC 9111 section 5.2.2.4).
        assert_eq!(answer.header("cache-control"), Some("private, no-cache"));
        // It comes before a range (section 13.2.2).
        let answer = client.request("GET", &path, &headers, b"").unwrap();
        let ranged = if status == 304 { 304 } else { 206 };
        assert_eq!(answer.status, ranged, "{known}");
    }
    let other = client.request("GET", "/blobs/blob:none", &[("If-None-Match", "*")], b"");
    assert_eq!(other.unwrap().status, 404);
    gateway.stop();
}

/// An answer is for one caller, and for now, unless it says otherwise.
#[test]
fn what_is_no_blob_is_kept_by_nobody() {
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    for (method, path, status) in [
        ("GET", "/blobs/blob:none", 404),
        ("GET", "/nowhere", 404),
        ("GET", "/rpc", 405),
        ("POST", "/rpc", 415),
        ("GET", "/livez", 200),
        ("GET", "/openrpc.json", 200),
    ] {
        let answer = client.request(method, path, &[], b"").unwrap();
        let kept = answer.header("cache-control");
        assert_eq!((answer.status, kept), (status, Some("no-store")), "{path}");
    }
    gateway.stop();
}
