//! What a configuration may say, and what is answered to one that may not be.

use super::*;

mod environment;
mod robust;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// A world with these variables, these files, and a directory for each of `dirs`.
fn world(env: &[(&str, &str)], files: &[(&str, &str)], dirs: &[&str]) -> Sources {
    let files: BTreeMap<PathBuf, String> = files
        .iter()
        .map(|(path, text)| (path.into(), (*text).into()))
        .collect();
    let dirs: Vec<PathBuf> = dirs.iter().map(PathBuf::from).collect();
    Sources {
        env: env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), OsString::from(value)))
            .collect(),
        secrets: SecretVariables::default(),
        read: Box::new(move |path: &Path| {
            files
                .get(path)
                .cloned()
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        }),
        is_dir: Box::new(move |path: &Path| dirs.iter().any(|dir| dir == path)),
        exe: Some("/opt/skillgate/bin/skillgate".into()),
    }
}

/// A configuration from the text of `./skillgate.toml`.
fn load(text: &str) -> Result<Config, ConfigErrors> {
    Config::load(
        &world(&[], &[("./skillgate.toml", text)], &["skills", "policies"]),
        &Flags::default(),
    )
}

/// A configuration from variables alone.
fn load_env(env: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
    Config::load(&world(env, &[], &["skills", "policies"]), &Flags::default())
}

fn answer(result: Result<Config, ConfigErrors>) -> String {
    match result {
        Ok(_) => "accepted".into(),
        Err(errors) => errors.to_string(),
    }
}

// === defaults ===

#[test]
fn the_defaults_are_the_documented_ones() {
    let config = load_env(&[]).unwrap();
    let Config {
        server,
        admin,
        auth,
        policy,
        runs,
        skills,
        blobs,
        secrets,
        plugins,
        audit,
        ..
    } = &config;
    assert_eq!(server.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(admin.listen, "127.0.0.1:9081".parse().unwrap());
    assert!(admin.allowed_hosts.is_empty() && !admin.allow_remote);
    assert!(server.allowed_hosts.is_empty() && !server.tls && !server.insecure_no_auth);
    assert_eq!(
        (
            server.max_body_bytes,
            server.max_connections,
            server.max_batch
        ),
        (16_777_216, 10_000, 20)
    );
    assert_eq!(
        (
            server.header_timeout_ms,
            server.body_timeout_ms,
            server.write_timeout_ms,
            server.drain_timeout_ms
        ),
        (10_000, 30_000, 30_000, 30_000)
    );
    assert_eq!(
        (auth.mode, auth.issuers.len(), config.rate_limit.len()),
        (AuthMode::Off, 0, 0)
    );
    assert_eq!(
        (policy.mode, policy.path.as_path()),
        (PolicyMode::Enforce, Path::new("policies"))
    );
    assert_eq!(
        (policy.instruction_budget, policy.confirm),
        (250_000, Confirm::Sample)
    );
    assert_eq!(
        (runs.default_timeout_ms, runs.max_timeout_ms),
        (300_000, 600_000)
    );
    assert_eq!(
        (runs.max_concurrent, runs.max_queued, runs.max_pids),
        (64, 256, 64)
    );
    assert_eq!(
        (runs.max_concurrent_per_tenant, runs.max_output_blobs),
        (0, 1000)
    );
    assert_eq!(
        (
            runs.memory_bytes,
            runs.workspace_bytes,
            runs.workspace_inodes
        ),
        (536_870_912, 268_435_456, 16_384)
    );
    assert_eq!(runs.on_disconnect, OnDisconnect::Kill);
    assert_eq!(
        (skills.paths.as_slice(), skills.max_files),
        ([PathBuf::from("skills")].as_slice(), 1000)
    );
    assert_eq!(
        (
            skills.max_bytes,
            blobs.max_bytes,
            blobs.ttl_s,
            blobs.max_transfers
        ),
        (16_777_216, 1_073_741_824, 0, 512)
    );
    assert_eq!(secrets, &Secrets::Env);
    assert_eq!(audit.path, Path::new(".skillgate/audit.jsonl"));
    assert_eq!(
        (audit.fsync, audit.max_file_bytes, audit.on_failure),
        (
            Fsync::Interval(std::time::Duration::from_secs(1)),
            104_857_600,
            OnAuditFailure::Deny
        )
    );
    assert_eq!(
        plugins.storage.source,
        PluginSource::Name("storage-fs".into())
    );
    assert_eq!(
        plugins.storage.config,
        serde_json::json!({"root": ".skillgate/store"})
    );
    assert_eq!(
        plugins.sandbox.source,
        PluginSource::Name("sandbox-process".into())
    );
    assert_eq!(
        (plugins.sandbox.isolation, &plugins.sandbox.config),
        (PluginIsolation::Gateway, &serde_json::json!({}))
    );
    assert_eq!(plugins.state_dir, Path::new(".skillgate/state"));
    assert_eq!(runs.max_output_blobs, 1000);
    assert_eq!(
        (config.log.filter.as_str(), config.log.format),
        ("info", LogFormat::Text)
    );
    assert_eq!(config.file, None);
}

/// `default.toml` with the keys that have no default, which it shows as `#key = example`.
fn default_with_examples() -> String {
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    // The list of none gives way to the example of one.
    DEFAULT_TOML
        .lines()
        .filter(|line| *line != "rate_limit = []")
        .map(|line| uncomment(line) + "\n")
        .collect()
}

/// The paths of all keys of a tree, with `[]` for any item; a plugin's own section is one key.
fn keys(path: &str, table: &Table, found: &mut BTreeSet<String>) {
    for (key, node) in table {
        let path = raw::join(path, key);
        found.insert(path.clone());
        let open = path.starts_with("plugins.") && key == "config";
        match &node.value {
            raw::Value::Table(inner) if !open => keys(&path, inner, found),
            raw::Value::List(items) => {
                for item in items {
                    if let raw::Value::Table(inner) = &item.value {
                        keys(&format!("{path}[]"), inner, found);
                    }
                }
            }
            _ => {}
        }
    }
}

#[test]
fn the_default_file_has_every_key_that_is_read_and_no_other() {
    let tree = raw::parse(&Document::Default, &default_with_examples()).unwrap();
    let notes = Notes::default();
    Section::root(&tree, &notes, |root| read(root, &Flags::default()));
    let known: BTreeSet<String> = notes.known.into_inner().into_keys().collect();
    let mut written = BTreeSet::new();
    keys("", &tree, &mut written);
    assert_eq!(
        known, written,
        "left: read by the program, right: written in default.toml"
    );
}

#[test]
fn every_key_of_the_default_file_has_a_comment() {
    let lines: Vec<&str> = DEFAULT_TOML.lines().collect();
    let is_key = |line: &str| {
        let line = line.strip_prefix('#').unwrap_or(line);
        line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains(" = ")
    };
    for start in 0..lines.len() {
        // A run of keys without anything between shares the comment above it.
        if is_key(lines[start]) && (start == 0 || !is_key(lines[start - 1])) {
            let above = lines[..start].last().copied().unwrap_or_default();
            assert!(
                above.starts_with("# "),
                "default.toml:{}: {}: no comment above",
                start + 1,
                lines[start]
            );
        }
    }
}

#[test]
fn the_examples_of_optional_keys_are_what_absence_means() {
    let read = |text: &str| {
        let tree = raw::parse(&Document::Default, text).unwrap();
        Section::root(&tree, &Notes::default(), |root| {
            read(root, &Flags::default())
        })
    };
    let full = read(&default_with_examples());
    let least = read(
        r#"
        [[rate_limit]]
        name = "per-subject"
        key = ["tenant", "subject"]
        quota = 600
        per_s = 60
        [auth]
        mode = "off"
        [[auth.issuers]]
        issuer = "https://idp.example.com"
        audiences = ["skillgate"]
        jwks_file = "keys.json"
        algorithms = ["RS256", "ES256", "EdDSA"]
        "#,
    );
    let (full_issuer, least_issuer) = (&full.auth.issuers[0], &least.auth.issuers[0]);
    assert_eq!(
        format!("{:?}", full_issuer.claims),
        format!("{:?}", least_issuer.claims)
    );
    assert_eq!(full_issuer.leeway_s, least_issuer.leeway_s);
    assert_eq!(full_issuer.algorithms, least_issuer.algorithms);
    assert_eq!(full.rate_limit[0].methods, least.rate_limit[0].methods);
    assert_eq!(least.rate_limit[0].burst, 600, "absent burst is the quota");
}

// === files by name ===

/// Each file of `tests/fixtures/config/<folder>` with its name and text.
fn fixtures(folder: &str) -> Vec<(PathBuf, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/config")
        .join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.retain(|path| path.extension().is_some_and(|e| e == "toml"));
    assert!(!files.is_empty());
    files
        .into_iter()
        .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
        .collect()
}

#[test]
fn valid_files_are_accepted_and_what_is_shown_can_be_read_again() {
    for (path, text) in fixtures("valid") {
        let config = load(&text).unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
        let shown = config.show(false);
        let again = load(&shown)
            .unwrap_or_else(|errors| panic!("{}: shown: {errors}\n{shown}", path.display()));
        assert_eq!(again.show(false), shown, "{}", path.display());
        let origins = config.show(true);
        assert_eq!(
            load(&origins).unwrap().show(false),
            shown,
            "{}: comments change nothing",
            path.display()
        );
    }
}

/// The answers are beside the files, in `*.expected`. To write them anew, look at the difference and commit it:
/// `UPDATE_EXPECTED=1 cargo test -p skillgate --lib config`.
#[test]
fn invalid_files_are_refused_with_the_expected_answers() {
    for (path, text) in fixtures("invalid") {
        let answer = answer(load(&text)) + "\n";
        let expected = path.with_extension("expected");
        if std::env::var_os("UPDATE_EXPECTED").is_some() {
            std::fs::write(&expected, &answer).unwrap();
        }
        assert_eq!(
            answer,
            std::fs::read_to_string(&expected).unwrap(),
            "{}",
            path.display()
        );
    }
}

// === sources ===

#[test]
fn flags_win_over_everything() {
    let env = [("SKILLGATE_SERVER__LISTEN", "127.0.0.1:2")];
    let file = [("./skillgate.toml", "server.listen = \"127.0.0.1:1\"")];
    let load = |listen: Option<&str>, insecure_no_auth| {
        let flags = Flags {
            config: None,
            listen: listen.map(str::to_owned),
            insecure_no_auth,
        };
        Config::load(&world(&env, &file, &[]), &flags)
    };
    assert_eq!(load(None, false).unwrap().server.listen.port(), 2);
    assert_eq!(
        load(Some("localhost:3"), false).unwrap().server.listen,
        "127.0.0.1:3".parse().unwrap()
    );
    assert_eq!(
        answer(load(Some("here"), false)),
        "--listen: server.listen: \"here\" does not fit here, expected an address and a port, \
         like \"127.0.0.1:8080\" or \"[::1]:8080\""
    );
    assert!(answer(load(Some("0.0.0.0:3"), false)).starts_with(
        "--listen: server.listen: 0.0.0.0:3 can be reached by others while auth.mode = \"off\" asks nobody who they are"
    ));
    for open in ["[::]:3", "192.0.2.1:3", "[::ffff:192.0.2.1]:3"] {
        assert_ne!(answer(load(Some(open), false)), "accepted", "{open}");
        assert!(
            load(Some(open), true).unwrap().server.insecure_no_auth,
            "{open}"
        );
    }
    for closed in ["[::1]:3", "127.9.9.9:3", "[::ffff:127.0.0.1]:3"] {
        assert_eq!(answer(load(Some(closed), false)), "accepted", "{closed}");
    }
}

// === plugins ===

#[test]
fn a_plugin_that_is_named_anew_inherits_nothing() {
    let unknown = "[plugins.storage]\npath = \"/opt/store.so\"\n";
    let vendor = load(&format!("{unknown}allow_unsigned = true"))
        .unwrap()
        .plugins
        .storage;
    assert_eq!(vendor.source, PluginSource::Path("/opt/store.so".into()));
    assert_eq!(
        vendor.config,
        serde_json::json!({}),
        "the bundled plugin's section is not the vendor's"
    );
    assert_eq!(
        vendor.isolation,
        PluginIsolation::Process,
        "others' code has a process of its own"
    );
    let near = format!("{unknown}allow_unsigned = true\nisolation = \"gateway\"");
    assert_eq!(
        load(&near).unwrap().plugins.storage.isolation,
        PluginIsolation::Gateway
    );
    let refused = load(unknown).unwrap_err().to_string();
    assert!(
        refused.contains("plugins.storage.path: nothing says which file this has to be"),
        "{refused}"
    );

    let same = load("[plugins.storage]\nname = \"storage-fs\"")
        .unwrap()
        .plugins
        .storage;
    assert_eq!(
        same.config,
        serde_json::json!({"root": ".skillgate/store"}),
        "the same plugin keeps its section"
    );

    let pin = "ab".repeat(32);
    let file = format!(
        "[plugins.storage]\npath = \"/opt/store.so\"\nsha256 = \"{}\"\n",
        pin.to_uppercase()
    );
    assert_eq!(
        load(&file).unwrap().plugins.storage.sha256.as_deref(),
        Some(pin.as_str())
    );
    let sources = world(
        &[("SKILLGATE_PLUGINS__STORAGE__NAME", "storage-fs")],
        &[("./skillgate.toml", &file)],
        &[],
    );
    let back = Config::load(&sources, &Flags::default())
        .unwrap()
        .plugins
        .storage;
    assert_eq!(
        (back.source, back.sha256, back.isolation),
        (
            PluginSource::Name("storage-fs".into()),
            None,
            PluginIsolation::Gateway
        ),
        "a pin belongs to its file"
    );
}

#[test]
fn secrets_of_plugins_are_masked() {
    let config = load(
        r#"
        [plugins.storage]
        path = "/opt/store.so"
        allow_unsigned = true
        [plugins.storage.config]
        url = "postgres://store:hunter1@db/skills"
        plain = "https://db.example.com/a@b"
        Api-Key = "hunter2"
        db = { password = "hunter3", pool = 4 }
        access_tokens = ["hunter4"]
        client_secret = { value = "hunter5" }
        dsn = "host=db user=store Password = hunter6"
        endpoints = ["https://db.example.com/?v=1&api_key=hunter7"]
        user_pwd = "hunter8"
        pass = "hunter9"
        db_pass = "hunter10"
        basicAuth = "store:hunter11"
        authorization = "hunter12"
        oauth = { grant = "hunter13" }
        bearer = "hunter14"
        DSN = "hunter15"
        private = "hunter16"
        database = "store:hunter17@tcp(db:3306)/skills"
        spaced = "store:hunter 18@tcp(db:3306)/skills"
        second = "https://one, https://store:hunter19@two"
        parts = "host=db;PGPASS = hunter20"
        headers = ["X-Api-Key: hunter21", "Proxy: Bearer hunter22"]
        order = "key, then size"
        author = "Ada"
        authors = ["Ada", "Grace"]
        authority = "ca.example.com"
        bypass_hosts = ["db"]
        passive = true
        pass_through = true
        service = "https://auth:8080/tokens"
        image = "store/skills:1.2@sha256:0123"
        remote = "git@example.com:skills.git"
        level = "mode=fast"
        "#,
    )
    .unwrap();
    for shown in [
        config.show(false),
        config.show(true),
        config.show_json().to_string(),
        format!("{config:?}"),
    ] {
        assert!(!shown.contains("hunter"), "{shown}");
    }
    let shown = config.show(false);
    assert!(
        shown.contains("plain = \"https://db.example.com/a@b\"") && shown.contains("pool = 4"),
        "{shown}"
    );
    for line in [
        "Api-Key = \"***\"",
        "dsn = \"***\"",
        "endpoints = [\"***\"]",
        "pass = \"***\"",
        "private = \"***\"",
        "database = \"***\"",
        "headers = [\"***\", \"***\"]",
        // And no more than that.
        "order = \"key, then size\"",
        "author = \"Ada\"",
        "authors = [\"Ada\", \"Grace\"]",
        "authority = \"ca.example.com\"",
        "bypass_hosts = [\"db\"]",
        "passive = true",
        "pass_through = true",
        "service = \"https://auth:8080/tokens\"",
        "image = \"store/skills:1.2@sha256:0123\"",
        "remote = \"git@example.com:skills.git\"",
        "level = \"mode=fast\"",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert_eq!(
        config.plugins.storage.config["db"]["password"], "hunter3",
        "the plugin itself gets it"
    );
}

/// By their names many of its keys could be secrets: `auth`, `keys`, `key_file`.
#[test]
fn nothing_of_the_gateways_own_is_masked() {
    for text in [DEFAULT_TOML, &default_with_examples()] {
        let tree = raw::parse(&Document::Default, text).unwrap();
        let notes = Notes::default();
        Section::root(&tree, &notes, |root| read(root, &Flags::default()));
        let known = notes.known.into_inner();
        let shown = show::Effective::new(tree, &known).to_toml(false);
        assert!(shown.contains("\n[auth]\nmode = \"off\"\n"), "{shown}");
        assert!(!shown.contains("***"), "{shown}");
    }
}

/// The answer goes to the log, and to `/readyz?verbose` after a reload that was refused.
#[test]
fn what_stands_for_a_plugins_section_is_not_quoted() {
    for (value, kind) in [
        ("\"store:hunter@tcp(db)/skills\"", "a string"),
        ("[\"hunter\"]", "a list"),
        ("31337", "an integer"),
    ] {
        let refused = answer(load(&format!("[plugins.storage]\nconfig = {value}\n")));
        assert_eq!(
            refused,
            format!(
                "./skillgate.toml:2:10: plugins.storage.config: {kind} does not fit here, expected a table"
            )
        );
    }
    let refused = answer(load("[plugins.storage.config]\npassword = hunter\n"));
    assert!(!refused.contains("hunter"), "{refused}");
}
