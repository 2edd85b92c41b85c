//! What a TLS server reads in a ClientHello that the gate has let through: another implementation than the gate's.

use std::io::Cursor;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rustls::pki_types::ServerName;
use rustls::server::Acceptor;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

use super::super::hello::tests::{hello_with, record, sni};
use super::super::hello::{BadHello, HelloReader};

const HOST: &str = "api.example.com";
const BYTES_MAX: usize = 16384;
const ROUNDS: usize = 20_000;

/// What a real client says first.
fn of_a_client(name: &str, versions: &[&'static SupportedProtocolVersion]) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut said = Vec::new();
    client.write_tls(&mut said).unwrap();
    said
}

/// An extension as a hostile client may write it: those that the gate looks at, and some that every client sends.
fn extension(random: &mut StdRng) -> (u16, Vec<u8>) {
    let [ours, other] = [HOST, "bad.example.net"].map(|name| sni(name.as_bytes()));
    let both = {
        // One list with two names.
        let names = [&ours[2..], &other[2..]].concat();
        [&(names.len() as u16).to_be_bytes()[..], &names].concat()
    };
    let many: [(u16, Vec<u8>); 12] = [
        (0, ours.clone()),
        (0, other.clone()),
        (0, both),
        (0, [ours.clone(), other].concat()),
        (0, sni(b"API.Example.com")),
        (0, sni(b"api.example.com.")),
        (0, vec![]),
        (10, vec![0, 2, 0, 29]),
        (13, vec![0, 2, 4, 3]),
        (42, vec![]),
        (43, vec![2, 3, 4]),
        (0xfe0d, vec![0; 8]),
    ];
    many.choose(random).unwrap().clone()
}

/// Some bytes of it are others, are gone, are there twice or come from elsewhere.
fn change(bytes: &mut Vec<u8>, random: &mut StdRng, elsewhere: &[u8]) {
    let at = random.random_range(0..bytes.len());
    let end = (at + random.random_range(1..24)).min(bytes.len());
    match random.random_range(0..5) {
        0 => bytes[at] = random.random(),
        1 => bytes[at] = bytes[at].wrapping_add([1, 255, 2, 254][random.random_range(0..4)]),
        2 if bytes.len() > 24 => drop(bytes.drain(at..end)),
        3 => bytes.splice(at..at, bytes[at..end].to_vec()).for_each(drop),
        _ => {
            let from = random.random_range(0..elsewhere.len());
            let piece = &elsewhere[from..(from + end - at).min(elsewhere.len())];
            bytes.splice(at..end, piece.iter().copied()).for_each(drop);
        }
    }
}

/// The gate's answer, however the bytes come: whether it lets it through, and how much is one ClientHello.
fn passes(bytes: &[u8], piece: usize) -> Option<Vec<u8>> {
    let mut reader = HelloReader::new(BYTES_MAX);
    for piece in bytes.chunks(piece) {
        if let Some(hello) = reader.push(piece).ok()? {
            hello.check(HOST).ok()?;
            return Some(reader.into_parts().0);
        }
    }
    None
}

/// What the server takes for its name; an error where it wants no such client.
fn read_by_a_server(bytes: &[u8]) -> Result<String, String> {
    let mut acceptor = Acceptor::default();
    let mut rest = Cursor::new(bytes);
    while (rest.position() as usize) < bytes.len() {
        acceptor.read_tls(&mut rest).map_err(|e| e.to_string())?;
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_owned);
                return Ok(name.unwrap_or_else(|| "no name".into()));
            }
            Ok(None) => {}
            Err((error, _)) => return Err(error.to_string()),
        }
    }
    Err("not whole".into())
}

/// A ClientHello of these parts, in no record.
fn of_parts(session: &[u8], suites: &[u8], compression: &[u8], rest: &[u8]) -> Vec<u8> {
    let (session_length, compression_length) = ([session.len() as u8], [compression.len() as u8]);
    let body = [
        &[3, 3][..],
        &[7; 32],
        &session_length,
        session,
        &(suites.len() as u16).to_be_bytes(),
        suites,
        &compression_length,
        compression,
        rest,
    ]
    .concat();
    [&[1], &(body.len() as u32).to_be_bytes()[1..], &body].concat()
}

/// RFC 8446, sections 4.1.2 and 5.1; each server has its own way with what breaks them.
#[test]
fn what_is_not_exactly_a_client_hello_is_refused_at_once() {
    let said = |bytes: &[u8]| {
        let read = HelloReader::new(1 << 20).push(bytes);
        read.map(|hello| hello.map(|hello| hello.check(HOST)))
    };
    let (good, malformed) = (Ok(Some(Ok(()))), Err(BadHello::Malformed));
    let name = sni(HOST.as_bytes());
    let length = name.len() as u8;
    let extensions = [&[0, length + 4, 0, 0, 0, length], &name[..]].concat();
    let (suite, null) = ([0x13, 1], [0]);
    type Parts<'a> = (&'a [u8], &'a [u8], &'a [u8]);
    let cases: [(Parts<'_>, bool); 8] = [
        ((&[], &suite, &null), true),
        ((&[9; 32], &suite, &null), true),
        ((&[9; 33], &suite, &null), false),
        ((&[], &[0x13, 1, 0x13, 2], &null), true),
        ((&[], &[0x13, 1, 0x13], &null), false),
        ((&[], &[], &null), false),
        ((&[], &suite, &[0, 1]), true),
        ((&[], &suite, &[]), false),
    ];
    for ((session, suites, compression), is_good) in cases {
        let hello = record(&of_parts(session, suites, compression, &extensions));
        let expected = if is_good { good } else { malformed };
        assert_eq!(said(&hello), expected, "{hello:02x?}");
    }
    let behind = [&extensions[..], &[0]].concat();
    assert_eq!(
        said(&record(&of_parts(&[], &suite, &null, &behind))),
        malformed
    );
    assert_eq!(said(&hello_with(&[(0, sni(b""))])), malformed);
    // As TLS 1.2 has it.
    let without = record(&of_parts(&[], &suite, &null, &[]));
    assert_eq!(said(&without), Ok(Some(Err(BadHello::NoName))));

    let whole = of_parts(&[], &suite, &null, &extensions);
    let (first, last) = whole.split_at(20);
    let (first, last) = (record(first), record(last));
    assert_eq!(said(&[&first[..], &last].concat()), good);
    let empty = record(&[]);
    assert_eq!(said(&[&first[..], &empty, &last].concat()), malformed);
    assert_eq!(said(&[&first[..], &[22, 2]].concat()), malformed);
    assert_eq!(said(&[&first[..], &[21]].concat()), malformed);
    // 2^14 bytes of a record are to come, and one more.
    assert_eq!(said(&[22, 3, 1, 0x40, 0]), Ok(None));
    assert_eq!(said(&[22, 3, 1, 0x40, 1]), malformed);
}

#[test]
fn a_server_reads_no_other_name_than_the_gate() {
    let clients: Vec<Vec<u8>> = [
        (HOST, rustls::DEFAULT_VERSIONS),
        (HOST, &[&rustls::version::TLS12]),
        (HOST, &[&rustls::version::TLS13]),
        ("bad.example.net", rustls::DEFAULT_VERSIONS),
    ]
    .map(|(name, versions)| of_a_client(name, versions))
    .to_vec();
    let seed = 9849;
    let mut random = StdRng::seed_from_u64(seed);
    let (mut passed, mut agreed) = (0, 0);
    for round in 0..ROUNDS {
        let mut bytes = if random.random_bool(0.5) {
            clients.choose(&mut random).unwrap().clone()
        } else {
            let count = random.random_range(1..6);
            let extensions: Vec<_> = (0..count).map(|_| extension(&mut random)).collect();
            hello_with(&extensions)
        };
        let elsewhere = clients.choose(&mut random).unwrap();
        for _ in 0..random.random_range(0..3) {
            change(&mut bytes, &mut random, elsewhere);
        }
        if random.random_bool(0.2) && bytes.len() > 6 {
            // In records of another length.
            let fragment = random.random_range(1..bytes.len());
            bytes = bytes[5..].chunks(fragment).flat_map(record).collect();
        }
        let first = passes(&bytes, BYTES_MAX);
        let piece = random.random_range(1..=bytes.len());
        assert_eq!(
            first,
            passes(&bytes, piece),
            "in pieces of {piece}, round {round}"
        );
        let Some(hello) = first else {
            continue;
        };
        passed += 1;
        // A server that refuses it serves no other name.
        if let Ok(name) = read_by_a_server(&hello) {
            agreed += 1;
            let said = format!("round {round} of seed {seed}: {hello:02x?}");
            assert!(name.eq_ignore_ascii_case(HOST), "{name:?}, {said}");
        }
    }
    // Neither refuses all of them.
    assert!(passed > ROUNDS / 20, "{passed}");
    assert!(agreed > passed / 2, "{agreed} of {passed}");
}
