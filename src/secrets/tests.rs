//! Redaction, form by form and split by split; providers on real files; reload.

mod cuts;
mod encoders;
mod output;
mod reference;
mod wiped;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose as b64;

use super::forms::{FORM_BYTES_MAX, forms};
use super::{
    Missing, RUN_BYTES_MAX, Redactor, SECRETS_MAX, Search, Secret, Secrets, Stream, VALUE_BYTES_MAX,
};
use crate::config::{self, Config, Flags, SecretVariables, Sources};

/// Values with everything that encoders treat apart.
const VALUES: [&str; 8] = [
    "sk-live-0123456789abcdef",
    "correct horse battery staple",
    "p@ss/w'or\"d+\\=%&<x>~!*(){}[]",
    "zeile eins\nzeile\tzwei\r\n",
    "größe漢字🙂schlüssel",
    "12345678",
    "aaaaaaaaaaaaaaaa",
    "https://user:tok/en@example.com/?q=a b&c=#d",
];

fn redactor(values: &[(&str, &str)]) -> Arc<Redactor> {
    Arc::new(Redactor::new(values.iter().copied()).unwrap())
}

fn streamed(redactor: &Arc<Redactor>, pieces: &[&[u8]]) -> String {
    let (mut stream, mut out) = (Stream::new(redactor.clone()), Vec::new());
    for piece in pieces {
        stream.push(piece, &mut |text| out.extend_from_slice(text));
    }
    stream.finish(&mut |text| out.extend_from_slice(text));
    String::from_utf8(out).unwrap()
}

#[test]
fn every_form_is_found_however_it_is_split() {
    let (mut forms_seen, mut splits) = (0, 0);
    for value in VALUES {
        let redactor = redactor(&[("API_KEY", value)]);
        for form in forms(value) {
            let form = std::str::from_utf8(&form).unwrap();
            forms_seen += 1;
            let text = format!("<<{form}>>");
            let plain = redactor.text(&text).into_owned();
            assert!(
                !plain.contains(form) && plain.contains("[secret API_KEY]"),
                "{text} → {plain}"
            );
            assert!(
                plain.starts_with("<<") && plain.ends_with(">>"),
                "{text} → {plain}"
            );
            for at in 0..=text.len() {
                let (one, two) = text.as_bytes().split_at(at);
                assert_eq!(
                    streamed(&redactor, &[one, two]),
                    plain,
                    "split at {at}: {text}"
                );
                splits += 1;
            }
            let mut search = Search::new(redactor.clone());
            assert!(!search.push(b"<<") && !search.push(b"12"), "{text}");
            for byte in text.bytes() {
                search.push(&[byte]);
            }
            assert!(search.found(), "{text}");
            let single: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(streamed(&redactor, &single), plain);
            for size in [2, 3, 7] {
                let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
                assert_eq!(streamed(&redactor, &pieces), plain);
            }
        }
    }
    println!("{forms_seen} forms, {splits} splits in two");
}

#[test]
fn base64_of_longer_texts_is_found_at_each_place() {
    for value in VALUES {
        let redactor = redactor(&[("K", value)]);
        for before in 0..7 {
            for after in 0..4 {
                let text = format!("{}{value}{}", "u".repeat(before), ":".repeat(after));
                for encoded in [
                    b64::STANDARD.encode(&text),
                    b64::STANDARD_NO_PAD.encode(&text),
                    b64::URL_SAFE.encode(&text),
                    b64::URL_SAFE_NO_PAD.encode(&text),
                ] {
                    let plain = redactor.text(&encoded);
                    assert!(plain.contains("[secret K]"), "{encoded} → {plain}");
                    // At the edges no more than the character that it shares with its neighbour.
                    let rest = plain.replace("[secret K]", "");
                    let shared = encoded.len() - value.len() * 8 / 6;
                    assert!(rest.len() <= shared + 2, "{encoded} → {plain}");
                }
            }
        }
    }
}

#[test]
fn overlapping_and_nested_values_are_covered_whole() {
    let redactor = redactor(&[
        ("LONG", "prefix-secret-suffix"),
        ("MID", "secret-suffix-and-more"),
        ("SHORT", "t-suffix"),
    ]);
    assert_eq!(
        redactor.text("a prefix-secret-suffix b"),
        "a [secret LONG] b"
    );
    assert_eq!(
        redactor.text("prefix-secret-suffix-and-more"),
        "[secret MID]"
    );
    assert_eq!(redactor.text("x t-suffix y"), "x [secret SHORT] y");
    let same = self::redactor(&[("A", "same-value"), ("B", "same-value")]);
    assert!(same.text("same-value").starts_with("[secret "));
    // A value is taken as it is: it is no pattern.
    let meta = self::redactor(&[("K", ".*[a-z]+(x)")]);
    assert_eq!(
        meta.text("anything abcx .*[a-z]+(x)"),
        "anything abcx [secret K]"
    );
}

/// A value that follows on itself, in one piece and in many: bounded memory, linear time.
#[test]
fn repetition_is_bounded() {
    let redactor = redactor(&[("A", &"a".repeat(VALUE_BYTES_MAX)), ("B", "aaaaaaaab")]);
    let (mut stream, mut out) = (Stream::new(redactor.clone()), 0);
    let piece = vec![b'a'; 64 << 10];
    let began = Instant::now();
    for _ in 0..32 {
        stream.push(&piece, &mut |text| out += text.len());
        assert!(
            stream.held_bytes() <= FORM_BYTES_MAX,
            "{}",
            stream.held_bytes()
        );
    }
    println!("2 MiB of repetition in {} ms", began.elapsed().as_millis());
    stream.finish(&mut |text| out += text.len());
    assert_eq!(out, "[secret A]".len());
}

#[test]
fn nothing_is_held_back_that_cannot_be_a_secret() {
    let redactor = redactor(&[("K", VALUES[0])]);
    let (mut stream, mut out) = (Stream::new(redactor), Vec::new());
    stream.push(b"a line\n", &mut |text| out.extend_from_slice(text));
    assert_eq!(out, b"a line\n");
    stream.push(b"sk-live-01", &mut |text| out.extend_from_slice(text));
    assert_eq!(out, b"a line\n");
    stream.push(b"x", &mut |text| out.extend_from_slice(text));
    assert_eq!(out, b"a line\nsk-live-01x");
}

/// The sandbox cuts summaries and tracebacks before the gateway sees them: what is left of a value at a cut is covered.
/// A run that has a secret can write what it begins with as often as it likes, and a mark of a cut behind each.
#[test]
fn many_cuts_cost_what_the_text_is_long() {
    let lines: String = (0..VALUE_BYTES_MAX / 13)
        .map(|nth| format!("line{nth:08}\n"))
        .collect();
    let redactor = redactor(&[("KEY", &lines), ("LAST", "zq-0123456789")]);
    let cuts = 20_000;
    let began = Instant::now();
    let plain = redactor.text(&"zq-0…".repeat(cuts)).into_owned();
    let took = began.elapsed();
    assert_eq!(plain, "[secret LAST]…".repeat(cuts));
    // To look through tens of thousands of forms for each of them took many times that.
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// What a log or a traceback puts before each line is not known here.
#[test]
fn the_lines_of_a_value_are_found_one_by_one() {
    let key = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIBkg4Lr0q1yw2b0Zt3xVw8a6\r\n  oAoGCCqGSM49AwEHoUQDQgAE3mW7\nshort\n-----END EC PRIVATE KEY-----\n";
    let redactor = redactor(&[("KEY", key), ("TOKEN", " tok-0123456789\n")]);
    for before in ["[info] ", "  | ", ""] {
        let printed: String = key
            .lines()
            .map(|line| format!("{before}{line}\n"))
            .collect();
        let plain = printed
            .replace("MHcCAQEEIBkg4Lr0q1yw2b0Zt3xVw8a6", "[secret KEY]")
            .replace("oAoGCCqGSM49AwEHoUQDQgAE3mW7", "[secret KEY]");
        assert_ne!(plain, printed);
        assert_eq!(redactor.uncut(&printed), plain);
        assert_eq!(streamed(&redactor, &[printed.as_bytes()]), plain);
    }
    assert_eq!(redactor.uncut("<tok-0123456789>"), "<[secret TOKEN]>");
    // Whole, it is one find.
    assert_eq!(redactor.uncut(&format!("a{key}b")), "a[secret KEY]b");
    let encoded = b64::STANDARD.encode("MHcCAQEEIBkg4Lr0q1yw2b0Zt3xVw8a6");
    assert_eq!(redactor.uncut(&encoded), "[secret KEY]");
}

#[test]
fn what_it_costs() {
    for len in [40, 4096, VALUE_BYTES_MAX] {
        let value: String = (0..len)
            .map(|at| char::from(b'!' + (at * 7 % 90) as u8))
            .collect();
        let began = Instant::now();
        let redactor = redactor(&[("K", &value)]);
        let made = began.elapsed();
        let text = "an ordinary line of a log, nothing in it\n".repeat(25_000);
        let began = Instant::now();
        assert!(redactor.text(&text).len() == text.len());
        println!(
            "{len} bytes: {} forms, made in {} µs, {} KiB of text in {} µs",
            forms(&value).len(),
            made.as_micros(),
            text.len() >> 10,
            began.elapsed().as_micros()
        );
    }
}

// === providers ===

fn config(secrets: &str, variables: &[(&str, &[u8])]) -> Config {
    let text = format!("[secrets]\n{secrets}\n");
    let sources = Sources {
        env: Default::default(),
        secrets: SecretVariables::new(
            variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.to_vec())),
        ),
        read: Box::new(move |path| match path == Path::new("./skillgate.toml") {
            true => Ok(text.clone()),
            false => Err(std::io::ErrorKind::NotFound.into()),
        }),
        is_dir: Box::new(|_| false),
        exe: None,
    };
    Config::load(&sources, &Flags::default()).unwrap()
}

fn refusal(config: &Config) -> Vec<String> {
    Secrets::prepare(config).map(drop).unwrap_err().problems
}

#[tokio::test]
async fn variables() {
    let config = config("", &[("API_KEY", b"value-one"), ("OTHER", b"value-two\n")]);
    let secrets = Secrets::new(Secrets::prepare(&config).unwrap());
    assert_eq!(secrets.get("API_KEY").unwrap().expose(), "value-one");
    assert_eq!(
        secrets.get("OTHER").unwrap().expose(),
        "value-two\n",
        "a variable is taken as it is"
    );
    for name in ["NONE", "api_key", "PATH", "API_KEY\0", &"A".repeat(1000)] {
        assert!(matches!(secrets.get(name), Err(Missing::NoValue { .. })));
    }
    for shown in [
        format!("{config:?}"),
        format!("{secrets:?}"),
        config.show(true),
        config.show_json().to_string(),
        format!("{:?}", secrets.get("API_KEY")),
    ] {
        assert!(!shown.contains("value-"), "{shown}");
    }
    let granted = secrets.grant(&["API_KEY".into()]).await.unwrap();
    assert!(granted.value("OTHER").is_none());
    assert_eq!(
        granted.redactor().unwrap().text("value-one value-two"),
        "[secret API_KEY] value-two",
        "no oracle for others"
    );
    assert!(!format!("{granted:?}").contains("value-"));
    assert!(secrets.grant(&[]).await.unwrap().redactor().is_none());
    let missing = secrets
        .grant(&["API_KEY".into(), "NONE".into()])
        .await
        .unwrap_err();
    assert_eq!(
        missing,
        Missing::NoValue {
            name: "NONE".into()
        }
    );
}

#[test]
fn values_that_cannot_be_given_are_refused_by_name() {
    let long = vec![b'x'; VALUE_BYTES_MAX + 1];
    let config = config(
        "",
        &[
            ("EMPTY", b""),
            ("SHORT", b"7 bytes"),
            ("NUL", b"with\0in it"),
            ("BINARY", b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8"),
            ("LONG", &long),
            ("LD_PRELOAD", b"/tmp/evil.so"),
            ("PYTHONPATH", b"/tmp/evil"),
            ("lower", b"canary-value"),
            ("HTTPS_PROXY", b"http://evil"),
            ("FINE", b"canary-value"),
        ],
    );
    let problems = refusal(&config);
    let places: Vec<&str> = problems
        .iter()
        .map(|problem| problem.split(": ").next().unwrap())
        .collect();
    let expected = [
        "BINARY",
        "EMPTY",
        "HTTPS_PROXY",
        "LD_PRELOAD",
        "LONG",
        "NUL",
        "PYTHONPATH",
        "SHORT",
        "lower",
    ];
    assert_eq!(
        places,
        expected.map(|name| format!("environment variable SKILLGATE_SECRET_{name}"))
    );
    for word in ["7 bytes", "with", "evil", "canary", "xxxx"] {
        assert!(
            !problems.iter().any(|problem| problem.contains(word)),
            "{word}: {problems:?}"
        );
    }
}

/// As the kubelet writes a secret's volume (its `AtomicWriter`): links to files in a directory that `..data` names.
fn mount(dir: &Path, version: &str, files: &[(&str, &str)]) {
    let data = dir.join(format!("..{version}"));
    fs::create_dir(&data).unwrap();
    for (name, value) in files {
        fs::write(data.join(name), value).unwrap();
        if fs::symlink_metadata(dir.join(name)).is_err() {
            symlink(format!("..data/{name}"), dir.join(name)).unwrap();
        }
    }
    symlink(format!("..{version}"), dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
}

#[tokio::test]
async fn a_directory_as_kubernetes_mounts_it_and_its_reload() {
    let dir = tempfile::tempdir().unwrap();
    mount(
        dir.path(),
        "2026_01",
        &[
            ("API_KEY", "value-one\n"),
            ("OTHER", "two lines\nof it\r\n"),
        ],
    );
    let config = config(
        &format!("provider = \"dir\"\ndir = {:?}", dir.path()),
        &[("IGNORED", b"x")],
    );
    let secrets = Secrets::new(Secrets::prepare(&config).unwrap());
    assert_eq!(secrets.get("API_KEY").unwrap().expose(), "value-one");
    assert_eq!(secrets.get("OTHER").unwrap().expose(), "two lines\nof it");
    let before = secrets.grant(&["API_KEY".into()]).await.unwrap();

    mount(dir.path(), "2026_02", &[("API_KEY", "value-new")]);
    fs::remove_dir_all(dir.path().join("..2026_01")).unwrap();
    let prepared = Secrets::prepare(&config).unwrap();
    assert_eq!(
        secrets.get("API_KEY").unwrap().expose(),
        "value-one",
        "not yet in force"
    );
    secrets.install(prepared);
    let after = secrets.grant(&["API_KEY".into()]).await.unwrap();
    assert_eq!(after.value("API_KEY").unwrap().expose(), "value-new");
    assert_eq!(
        after.redactor().unwrap().text("value-new"),
        "[secret API_KEY]"
    );
    assert_eq!(
        before.redactor().unwrap().text("value-one"),
        "[secret API_KEY]",
        "a run keeps its own"
    );
    assert!(secrets.get("OTHER").is_err());

    mount(dir.path(), "2026_03", &[("API_KEY", "short")]);
    let problems = refusal(&config);
    assert!(
        problems.len() == 1
            && problems[0].starts_with(&format!("{}: ", dir.path().join("API_KEY").display())),
        "{problems:?}"
    );
    assert_eq!(
        secrets.get("API_KEY").unwrap().expose(),
        "value-new",
        "the last good ones stay"
    );
}

#[test]
fn files_that_are_no_secrets_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let config = config(&format!("provider = \"dir\"\ndir = {path:?}"), &[]);
    fs::write(path.join("GOOD"), "value-one").unwrap();
    fs::write(path.join(".hidden"), "x").unwrap();
    fs::write(
        path.join("EXACT"),
        format!("{}\r\n", "x".repeat(VALUE_BYTES_MAX)),
    )
    .unwrap();
    assert!(Secrets::prepare(&config).is_ok());
    fs::set_permissions(path.join("GOOD"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(
        Secrets::prepare(&config).is_ok(),
        "readable by others is a warning"
    );

    fs::write(path.join("api-key"), "value-one").unwrap();
    fs::write(path.join("EMPTY"), "\n").unwrap();
    fs::write(path.join("LARGE"), vec![b'x'; 1 << 20]).unwrap();
    fs::create_dir(path.join("DIRECTORY")).unwrap();
    symlink("nowhere", path.join("DANGLING")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path.join("SOCKET")).unwrap();
    let problems = refusal(&config);
    let names: Vec<String> = [
        "DANGLING",
        "DIRECTORY",
        "EMPTY",
        "LARGE",
        "SOCKET",
        "api-key",
    ]
    .iter()
    .map(|name| path.join(name).display().to_string())
    .collect();
    assert_eq!(
        problems
            .iter()
            .map(|problem| problem.split(": ").next().unwrap())
            .collect::<Vec<_>>(),
        names
    );

    // Of what is no secret so many files are not looked at one by one.
    for n in 0..=2 * SECRETS_MAX {
        fs::write(path.join(format!("more{n}")), "").unwrap();
    }
    let most = 2 * SECRETS_MAX;
    assert!(refusal(&config)[0].ends_with(&format!("more than {most} files")));

    let gone = self::config("provider = \"dir\"\ndir = \"/nonexistent/secrets\"", &[]);
    assert!(refusal(&gone)[0].starts_with("secrets.dir: cannot read /nonexistent/secrets: "));
}

#[test]
fn there_is_a_most_of_secrets() {
    let names: Vec<String> = (0..=SECRETS_MAX).map(|n| format!("S{n}")).collect();
    let variables: Vec<(&str, &[u8])> = names
        .iter()
        .map(|name| (name.as_str(), b"value-one".as_slice()))
        .collect();
    assert!(Secrets::prepare(&config("", &variables[1..])).is_ok());
    let told = format!(
        "{} secrets, over the limit of {SECRETS_MAX}",
        SECRETS_MAX + 1
    );
    assert_eq!(refusal(&config("", &variables)), [told]);
}

#[tokio::test]
async fn one_run_has_a_limit() {
    let value = vec![b'x'; VALUE_BYTES_MAX];
    let names: Vec<String> = (0..=RUN_BYTES_MAX / VALUE_BYTES_MAX)
        .map(|n| format!("S{n}"))
        .collect();
    let variables: Vec<(&str, &[u8])> = names
        .iter()
        .map(|name| (name.as_str(), value.as_slice()))
        .collect();
    let secrets = Secrets::new(Secrets::prepare(&config("", &variables)).unwrap());
    assert!(matches!(
        secrets.grant(&names).await,
        Err(Missing::TooLarge { .. })
    ));
    assert!(secrets.grant(&names[1..]).await.is_ok());
}

#[test]
fn a_value_shows_nothing() {
    let secret = Secret(Arc::new(zeroize::Zeroizing::new("canary".into())));
    assert_eq!(format!("{secret:?}"), "Secret");
    assert_eq!(config::SECRET_PREFIX, "SKILLGATE_SECRET_");
}
