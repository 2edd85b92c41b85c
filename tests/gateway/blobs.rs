//! Blobs of a gibibyte through `/blobs`, in bounded memory.

use std::fs::File;
use std::io::{ErrorKind, Result, Write as _};
use std::time::{Duration, Instant};

use serde_json::json;
use sha2::{Digest, Sha256};
use skillgate::auth::DevelopmentKey;

use crate::examples::{instead, waiting_store};
use crate::jwt::{claims, house_of};
use crate::operator::metrics;
use crate::support::gateway::{Gateway, House, Settings};
use crate::support::http::{Answer, Client};
use crate::support::random::Random;
use crate::support::{MIB, eventually, look};
use crate::{alone, count};

/// What the gateway may grow by while it moves a blob of any size.
const GROWTH_KIB_MAX: u64 = 8 * 1024;

/// The content is one random mebibyte over and over, each time with its number in front: cheap, and no two alike.
struct Content {
    piece: Vec<u8>,
}

impl Content {
    fn piece(&mut self, number: u64) -> &[u8] {
        self.piece[..8].copy_from_slice(&number.to_le_bytes());
        &self.piece
    }

    /// Bytes `from..from + len` as they must come back.
    fn range(&mut self, from: u64, len: u64) -> Vec<u8> {
        (from..from + len)
            .map(|at| self.piece(at / MIB)[(at % MIB) as usize])
            .collect()
    }
}

/// Uploads mebibytes; the answer and the digest of what was sent.
fn upload(client: &mut Client, content: &mut Content, mib: u64) -> Result<(Answer, String)> {
    let length = (mib * MIB).to_string();
    let headers = [
        ("Content-Type", "application/octet-stream"),
        ("Content-Length", length.as_str()),
    ];
    client.head("POST", "/blobs", &headers)?;
    let mut digest = Sha256::new();
    for number in 0..mib {
        let piece = content.piece(number);
        digest.update(piece);
        client.write(piece)?;
    }
    Ok((client.answer()?, hex::encode(digest.finalize())))
}

fn download(client: &mut Client, id: &str) -> Result<(u64, String)> {
    client.head("GET", &format!("/blobs/{id}"), &[])?;
    let head = client.answer_head()?;
    assert_eq!(head.status, 200);
    let (mut size, mut digest) = (0, Sha256::new());
    client.body(&head, |piece| {
        size += piece.len() as u64;
        digest.update(piece);
    })?;
    Ok((size, hex::encode(digest.finalize())))
}

fn id_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json().unwrap()["blob_id"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Does something and says by how much the gateway's memory grew at most meanwhile, in KiB.
fn grown<T>(gateway: &Gateway, work: impl FnOnce() -> T) -> (T, u64, f64) {
    let before = gateway.rss_kib();
    look::reset_peak(gateway.pid);
    let began = Instant::now();
    let result = work();
    let took = began.elapsed().as_secs_f64();
    let peak = look::status_kib(gateway.pid, "VmHWM");
    (result, peak.saturating_sub(before), took)
}

#[test]
fn a_gibibyte_in_bounded_memory() {
    let _alone = alone();
    let mib = count(192, 1024);
    let mut content = Content {
        piece: Random::seeded("blobs").bytes(MIB as usize),
    };
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    let (small, _) = upload(&mut client, &mut content, 4).unwrap();
    download(&mut client, &id_of(&small)).unwrap();

    let ((answer, sent), up, up_s) =
        grown(&gateway, || upload(&mut client, &mut content, mib).unwrap());
    let id = id_of(&answer);
    assert_eq!(answer.json().unwrap()["size_bytes"], mib * MIB);
    let (came, down, down_s) = grown(&gateway, || download(&mut client, &id).unwrap());
    println!(
        "{mib} MiB: up {:.0} MiB/s, memory grew by {up} KiB; down {:.0} MiB/s, memory grew by {down} KiB",
        mib as f64 / up_s,
        mib as f64 / down_s
    );
    assert_eq!(came, (mib * MIB, sent.clone()));
    assert!(
        up < GROWTH_KIB_MAX && down < GROWTH_KIB_MAX,
        "grew by {up} and {down} KiB"
    );

    let size = mib * MIB;
    for (ask, from, len) in [
        ("bytes=0-0".to_owned(), 0, 1),
        (format!("bytes={}-{}", MIB - 3, MIB + 3), MIB - 3, 7),
        (format!("bytes={}-", size - 5), size - 5, 5),
        ("bytes=-9".to_owned(), size - 9, 9),
        (format!("bytes={}-{}", size - 2, size + 100), size - 2, 2),
        (
            format!("bytes={}-{}", 5 * MIB + 77, 7 * MIB + 76),
            5 * MIB + 77,
            2 * MIB,
        ),
    ] {
        let answer = client
            .request("GET", &format!("/blobs/{id}"), &[("Range", &ask)], b"")
            .unwrap();
        assert_eq!(answer.status, 206, "{ask}");
        let said = format!("bytes {from}-{}/{size}", from + len - 1);
        assert_eq!(answer.header("content-range"), Some(said.as_str()), "{ask}");
        assert!(
            answer.body == content.range(from, len),
            "{ask}: other bytes"
        );
    }
    let beyond = [("Range", format!("bytes={size}-"))];
    let answer = client
        .request(
            "GET",
            &format!("/blobs/{id}"),
            &[(beyond[0].0, &beyond[0].1)],
            b"",
        )
        .unwrap();
    assert_eq!(answer.status, 416);
    let etag = client.request("HEAD", &format!("/blobs/{id}"), &[], b"");
    // A HEAD has the length of the body that it does not have: this client would wait for it.
    drop(etag);

    let mut client = gateway.client();
    let (reply, full, _) = grown(&gateway, || {
        client
            .call("read_blob", json!({ "blob_id": id, "mode": "full" }))
            .unwrap()
    });
    assert_eq!(reply["error"]["code"], -32006, "{reply}");
    assert_eq!(reply["error"]["data"]["kind"], "too_large", "{reply}");
    assert!(
        full < GROWTH_KIB_MAX,
        "a refused read grew memory by {full} KiB"
    );
    gateway.stop();
}

#[test]
fn what_is_broken_off_or_too_large_leaves_nothing() {
    let _alone = alone();
    let mut content = Content {
        piece: Random::seeded("blobs").bytes(MIB as usize),
    };
    let house = House::new(Settings {
        blobs: "max_bytes = 3145728",
        ..Settings::default()
    });
    let gateway = house.start();
    let fits = upload(&mut gateway.client(), &mut content, 3).unwrap();
    id_of(&fits.0);
    assert_eq!(house.blobs().len(), 1);

    // Half of a body, then nobody.
    for sent in [0, 1, 700_000, 2 * MIB as usize] {
        let mut client = gateway.client();
        let headers = [
            ("Content-Type", "text/plain"),
            ("Content-Length", "3000000"),
        ];
        client.head("POST", "/blobs", &headers).unwrap();
        client.write(&vec![b'x'; sent]).unwrap();
        if sent > MIB as usize {
            eventually("some of it has arrived", Duration::from_secs(10), || {
                house.unfinished() > 0
            });
        }
        client.hang_up();
    }
    eventually(
        "the broken-off are cleaned away",
        Duration::from_secs(10),
        || house.unfinished() == 0,
    );

    // A byte too many, with its length said and without.
    for headers in [
        [
            ("Content-Type", "text/plain"),
            ("Content-Length", "3145729"),
        ],
        [
            ("Content-Type", "text/plain"),
            ("Transfer-Encoding", "chunked"),
        ],
    ] {
        let mut client = gateway.client();
        client.head("POST", "/blobs", &headers).unwrap();
        let body = vec![b'x'; 3 * MIB as usize + 1];
        let sent = if headers[1].0 == "Content-Length" {
            client.write(&body)
        } else {
            client
                .write(b"300001\r\n")
                .and_then(|()| client.write(&body))
                .and_then(|()| client.write(b"\r\n0\r\n\r\n"))
        };
        // It may refuse before it has read all; what it said counts.
        if let Err(error) = sent {
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ),
                "{error}"
            );
        }
        match client.answer() {
            Ok(answer) => {
                let error = answer.json().unwrap()["error"].clone();
                assert_eq!(
                    (answer.status, &error["data"]["kind"], &error["code"]),
                    (413, &json!("too_large"), &json!(-32006)),
                    "{error}"
                );
                assert_eq!(answer.header("connection"), Some("close"));
            }
            Err(error) => panic!("{headers:?}: no answer: {error}"),
        }
        drop(client);
    }
    eventually(
        "the too large are cleaned away",
        Duration::from_secs(10),
        || house.unfinished() == 0,
    );
    assert_eq!(house.blobs().len(), 1, "only the first is there");
    gateway.stop();
}

/// Also where the bundled rules have the same ceiling, which they know as a policy's denial.
#[test]
fn a_length_beyond_the_limit_is_the_limit_s_to_refuse() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    let headers = [
        ("Content-Type", "text/plain"),
        ("Content-Length", "1073741825"),
    ];
    client.head("POST", "/blobs", &headers).unwrap();
    let answer = client.answer().unwrap();
    let error = answer.json().unwrap()["error"].clone();
    assert_eq!(
        (answer.status, &error["data"]["kind"], &error["code"]),
        (413, &json!("too_large"), &json!(-32006)),
        "{error}"
    );
    gateway.stop();
}

/// Who sends or reads nothing holds what has begun, and no more than his tenant's part.
#[test]
fn transfers_that_do_not_go_on_are_their_tenants_alone() {
    let _alone = alone();
    let key = DevelopmentKey::generate("ES256").unwrap();
    let (house, sections) = house_of(&key, &["north", "south"]);
    house.configure(Settings {
        blobs: "max_transfers = 4",
        extra: &sections,
        ..Settings::default()
    });
    let gateway = house.start();
    let [north, south] = [("alice", "north"), ("bob", "south")].map(|(subject, tenant)| {
        format!("Bearer {}", key.token(&claims(subject, tenant)).unwrap())
    });
    let begin = |token: &str, method: &str, path: &str, bytes: usize| {
        let mut client = gateway.client();
        let length = bytes.to_string();
        let mut headers = vec![
            ("Authorization", token),
            ("Content-Type", "application/octet-stream"),
            ("Content-Length", &length),
        ];
        if method == "POST" {
            headers.push(("Expect", "100-continue"));
        }
        client.head(method, path, &headers).unwrap();
        let head = client.answer_head().unwrap();
        (client, head)
    };
    let put = |token: &str, bytes: usize| {
        let (mut client, mut head) = begin(token, "POST", "/blobs", bytes);
        if head.status == 100 {
            client.write(&vec![b'x'; bytes]).unwrap();
            return client.answer().unwrap();
        }
        let mut body = Vec::new();
        client
            .body(&head, |piece| body.extend_from_slice(piece))
            .unwrap();
        head.body = body;
        head
    };
    // More than a connection holds on its way.
    let large = format!("/blobs/{}", id_of(&put(&north, 32 << 20)));

    for (method, path, goes_on) in [
        ("POST", "/blobs", 100),
        ("GET", &*large, 200),
        ("POST", "/blobs", 100),
    ] {
        let bytes = usize::from(method == "POST");
        let mut held: Vec<(Client, Answer)> = Vec::new();
        // As soon as what was let go of before is noticed.
        eventually("three are on their way", Duration::from_secs(10), || {
            held.drain(..).for_each(|(client, _)| client.hang_up());
            held.extend((0..3).map(|_| begin(&north, method, path, bytes)));
            held.iter().all(|(_, head)| head.status == goes_on)
        });
        let answer = put(&north, 1);
        let error = answer.json().unwrap()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert_eq!(
            (answer.status, &error["data"]["kind"]),
            (503, &json!("unavailable"))
        );
        assert!(message.contains("blobs.max_transfers"), "{message}");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(begin(&north, "GET", &large, 0).1.status, 503, "either way");
        id_of(&put(&south, 1));

        let (mut first, head) = held.pop().unwrap();
        if method == "POST" {
            first.write(b"x").unwrap();
            id_of(&first.answer().unwrap());
        } else {
            first.body(&head, |_| {}).unwrap();
        }
        let what = "what has arrived makes room";
        eventually(what, Duration::from_secs(10), || {
            put(&north, 1).status == 201
        });
        held.into_iter().for_each(|(client, _)| client.hang_up());
    }
    gateway.stop();
}

/// As `encodeURIComponent` and `quote` write it into a path, and as it is.
#[test]
fn an_id_may_be_percent_encoded() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    let params = json!({ "content": "hello", "kind": "text/plain" });
    let made = client.result("create_blob", params).unwrap();
    let id = made["blob_id"].as_str().unwrap();
    for colon in [":", "%3A", "%3a"] {
        let path = format!("/blobs/{}", id.replace(':', colon));
        let answer = client.get(&path).unwrap();
        assert_eq!(
            (answer.status, answer.text()),
            (200, "hello".into()),
            "{path}"
        );
    }
    let path = format!("/blobs/{}", id.replace(':', "%253A"));
    assert_eq!(
        client.get(&path).unwrap().status,
        404,
        "once, and not twice"
    );
    gateway.stop();
}

/// It is somebody's bytes, which may be a page with a script: a browser keeps it as a file, and shows nothing of it as ours.
#[test]
fn a_blob_is_no_page() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    let page = b"<script>alert(1)</script>";
    let html = [("Content-Type", "text/html")];
    let blob = client.request("POST", "/blobs", &html, page).unwrap();
    let path = format!("/blobs/{}", id_of(&blob));
    for headers in [&[][..], &[("Range", "bytes=0-7")]] {
        let answer = client.request("GET", &path, headers, b"").unwrap();
        assert!([200, 206].contains(&answer.status), "{}", answer.status);
        for (name, expected) in [
            ("content-type", "text/html"),
            ("content-disposition", "attachment"),
            ("content-security-policy", "sandbox; default-src 'none'"),
            ("x-content-type-options", "nosniff"),
        ] {
            assert_eq!(answer.header(name), Some(expected), "{headers:?}");
        }
    }
    gateway.stop();
}

/// Its length and its limits would be those of something else than what is stored, or read.
#[test]
fn a_body_in_a_coding_is_not_taken() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    let call = br#"{"jsonrpc":"2.0","id":1,"method":"list_skills","params":{}}"#;
    for path in ["/rpc", "/blobs"] {
        let typed = ("Content-Type", "application/json");
        let good = client.request("POST", path, &[typed], call).unwrap();
        assert!([200, 201].contains(&good.status), "{path}: {}", good.text());
        for coding in ["gzip", "identity"] {
            let coded = [typed, ("Content-Encoding", coding)];
            let answer = client.request("POST", path, &coded, call).unwrap();
            assert_eq!(answer.status, 415, "{path} {coding}: {}", answer.text());
            let said = "a Content-Encoding is not accepted";
            assert!(answer.text().contains(said), "{}", answer.text());
        }
    }
    assert_eq!(house.blobs().len(), 1, "of the good one");
    gateway.stop();
}

/// Each byte in time, and no end: it is told so, and nothing is left of it.
#[test]
fn an_upload_that_comes_drop_by_drop_ends() {
    let _alone = alone();
    let house = House::new(Settings {
        server: "body_timeout_ms = 1500",
        ..Settings::default()
    });
    let gateway = house.start();
    let mut tries = 1;
    let answer = loop {
        let mut client = gateway.client();
        let headers = [("Content-Type", "text/plain"), ("Content-Length", "1000")];
        client.head("POST", "/blobs", &headers).unwrap();
        let (began, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
        // Longer than the 15 s that it may, and not so long that what comes after the answer is no longer taken (10 s more).
        while began.elapsed() < Duration::from_secs(17) {
            longest = longest.max(last.elapsed());
            last = Instant::now();
            client.write(b"x").unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        longest = longest.max(last.elapsed());
        // Where the machine has stood still for so long, a byte was not in time.
        if longest < Duration::from_millis(1000) || tries == 3 {
            break client.answer().unwrap();
        }
        tries += 1;
    };
    assert_eq!(answer.status, 408, "{}", answer.text());
    assert!(answer.text().contains("too slowly"), "{}", answer.text());
    eventually("nothing is left of it", Duration::from_secs(10), || {
        house.unfinished() == 0
    });
    gateway.stop();
}

/// Neither his place nor what the store has open for him stays with who has gone, whatever he has sent behind his request.
#[test]
fn a_download_that_hangs_in_the_store_ends_with_its_caller() {
    let _alone = alone();
    let house = House::new(Settings {
        blobs: "max_transfers = 1",
        ..Settings::default()
    });
    let text = std::fs::read_to_string(house.config()).unwrap();
    let (store, pipe) = waiting_store(&house, "blob_read");
    let store = format!("{store}\nisolation = \"gateway\"");
    let text = instead(&text, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let kind = [("Content-Type", "text/plain")];
    let put = || gateway.client().request("POST", "/blobs", &kind, b"x");
    let path = format!("/blobs/{}", id_of(&put().unwrap()));
    // Its reader too: what is written stays there until somebody comes.
    let mut go = File::options().read(true).write(true).open(pipe).unwrap();
    for after in ["", "\r\n"] {
        let mut hangs = gateway.client();
        hangs.head("GET", &path, &[]).unwrap();
        hangs.write(after.as_bytes()).unwrap();
        assert_eq!(hangs.answer_head().unwrap().status, 200);
        assert_eq!(put().unwrap().status, 503, "his is the only place");
        hangs.hang_up();
        eventually("the place is free", Duration::from_secs(20), || {
            put().unwrap().status == 201
        });
    }
    // Two threads of the store still wait.
    go.write_all(b"xx").unwrap();
    gateway.stop();
}

/// Nobody knows its name, and nobody could remove it: it would have its room for good, and its sender's next try a second one.
#[test]
fn a_blob_whose_sender_has_gone_before_he_could_be_told_is_not_kept() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let _alone = alone();
    let house = House::new(Settings::default());
    let usual = std::fs::read_to_string(house.config()).unwrap();
    let (store, pipe) = waiting_store(&house, "blob_commit");
    let text = instead(&usual, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let blob = json!({ "content": "x", "kind": "text/plain" });
    let said = |line: &str| metrics(&gateway).lines().any(|have| have == line);
    let in_commit = || {
        let written =
            r#"skillgate_plugin_calls_total{plugin="storage",op="blob_write",outcome="ok"} 1"#;
        said(written) && said(r#"skillgate_plugin_calls_in_flight{plugin="storage"} 1"#)
    };
    let mut sender = gateway.client();
    sender.ask("create_blob", blob.clone()).unwrap();
    eventually("it is all there", PATIENCE, in_commit);
    sender.hang_up();
    let gone =
        r#"skillgate_rpc_requests_total{method="create_blob",outcome="no_answer",kind=""} 1"#;
    eventually("its sender has gone", PATIENCE, || said(gone));
    // Also a reader, so that what is for the second blob stays there until that is read.
    let mut pipe = File::options().read(true).write(true).open(pipe).unwrap();
    pipe.write_all(b"xx").unwrap();
    let deleted =
        r#"skillgate_plugin_calls_total{plugin="storage",op="blob_delete",outcome="ok"} 1"#;
    eventually("it is gone", PATIENCE, || said(deleted));
    // Whoever waits has his.
    let mut client = gateway.client();
    let kept = client.result("create_blob", blob).unwrap();
    let read = json!({ "blob_id": kept["blob_id"], "mode": "full" });
    assert_eq!(client.result("read_blob", read).unwrap()["content"], "x");
    assert!(said(deleted), "none but that one");
    gateway.stop();
}
