//! `skillgate token`: keys and tokens for development, so that a gateway with `auth.mode = "jwt"` can be tried without an
//! identity provider. No part of a gateway in production.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::{ConfigFile, Exit, Output, OutputFormat, plain, print_json};
use crate::auth::{self, Clock, DevelopmentKey, MintError};

/// Longest life of a minted token, in seconds: they are for trying things.
const TTL_S_MAX: u64 = 2_678_400;
/// Largest file of a private key, in bytes.
const KEY_FILE_BYTES_MAX: u64 = 64 * 1024;

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Make a private key and print the JWKS to configure
    Keygen(KeygenArgs),
    /// Sign an access token with a private key and print it
    Mint(MintArgs),
}

#[derive(Debug, Args)]
pub(super) struct KeygenArgs {
    /// Where the private key goes (PEM, readable by you alone); must not exist yet
    #[arg(value_name = "KEY")]
    key: PathBuf,
    /// What it will sign with
    #[arg(long, value_enum, default_value_t)]
    algorithm: KeyAlgorithm,
    /// Write the public half here instead of printing it: the file for auth.issuers.jwks_file; must not exist yet
    #[arg(long, value_name = "FILE")]
    jwks: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum KeyAlgorithm {
    /// ECDSA on P-256
    #[default]
    #[value(name = "ES256")]
    Es256,
    /// ECDSA on P-384
    #[value(name = "ES384")]
    Es384,
    /// Ed25519
    #[value(name = "EdDSA")]
    EdDsa,
}

impl KeyAlgorithm {
    fn name(self) -> &'static str {
        match self {
            KeyAlgorithm::Es256 => "ES256",
            KeyAlgorithm::Es384 => "ES384",
            KeyAlgorithm::EdDsa => "EdDSA",
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct MintArgs {
    /// The private key: PEM (PKCS #8), as keygen writes it
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The caller (sub)
    #[arg(long, value_name = "ID", value_parser = auth::check_subject)]
    subject: String,
    /// The caller's tenant (tenant)
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// A role (roles); may be there several times
    #[arg(long = "role", value_name = "NAME")]
    roles: Vec<String>,
    /// A group (groups); may be there several times
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,
    /// A scope (scope); may be there several times
    #[arg(long = "scope", value_name = "NAME")]
    scopes: Vec<String>,
    /// Seconds until it expires
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=TTL_S_MAX))]
    ttl: u64,
    /// Any other claim, its value as JSON or else as text; may be there several times
    #[arg(long = "claim", value_name = "NAME=VALUE")]
    claims: Vec<String>,
    /// Who issues it (iss) [default: the one of the configuration, where there is one]
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// Whom it is for (aud) [default: the first audience of that issuer in the configuration]
    #[arg(long, value_name = "NAME")]
    audience: Option<String>,
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(command: &TokenCommand, out: &mut dyn Write) -> Result<Exit, Failure> {
    match command {
        TokenCommand::Keygen(args) => keygen(args, out),
        TokenCommand::Mint(args) => mint(args, out),
    }
}

// === keygen ===

fn keygen(args: &KeygenArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let key = DevelopmentKey::generate(args.algorithm.name()).map_err(runtime)?;
    write_new(&args.key, 0o600, &key.to_pem())?;
    let jwks = key.jwks();
    // The key without its public half is of no use, and would be in the way of a second try.
    let take_back = |_: &Failure| {
        let _nothing_left_to_say = std::fs::remove_file(&args.key);
    };
    match &args.jwks {
        None => print_json(out, &jwks)
            .and_then(|()| Ok(out.flush()?))
            .inspect_err(take_back)?,
        Some(path) => {
            let text = serde_json::to_string_pretty(&jwks).map_err(io::Error::from)?;
            write_new(path, 0o644, &(text + "\n")).inspect_err(take_back)?;
            let shown = |path: &Path| plain(&path.display().to_string());
            writeln!(out, "{}: the private key, for token mint", shown(&args.key))?;
            writeln!(out, "{}: the public one, for jwks_file", shown(path))?;
        }
    }
    Ok(Exit::Fine)
}

/// Writes a file that must not be there: a key that is overwritten is gone, and a link could lead anywhere.
fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|mut file| {
            // The mode of the call goes through the umask, which can only take away; this one counts.
            file.set_permissions(std::fs::Permissions::from_mode(mode))
                .and_then(|()| file.write_all(text.as_bytes()))
                .and_then(|()| file.sync_all())
                // It was made here, and half of it would be in the way of a second try.
                .inspect_err(|_| drop(std::fs::remove_file(path)))
        });
    written.map_err(|error| {
        let failure = Failure::new(
            Exit::Runtime,
            format!("cannot write {}: {error}", path.display()),
        );
        if error.kind() == io::ErrorKind::AlreadyExists {
            failure.hint("nothing is overwritten; name another file, or remove this one")
        } else {
            failure
        }
    })
}

// === mint ===

fn mint(args: &MintArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let key = DevelopmentKey::from_pem(&read_key(&args.key)?).map_err(|error| {
        Failure::new(Exit::Usage, format!("{}: {error}", args.key.display()))
            .hint("`skillgate token keygen KEY` makes one")
    })?;
    let (issuer, audience) = names(args)?;
    let claims = claims(args, &issuer, &audience, Clock::system().now().unix_s)?;
    let token = key.token(&claims).map_err(runtime)?;
    match args.format.output {
        Output::Text => writeln!(out, "{token}")?,
        Output::Json => print_json(
            out,
            &json!({ "token": token, "claims": claims, "kid": key.kid(), "jwks": key.jwks() }),
        )?,
    }
    Ok(Exit::Fine)
}

/// `iss` and `aud`: as the command line says, else as the configuration does.
fn names(args: &MintArgs) -> Result<(String, String), Failure> {
    if let (Some(issuer), Some(audience)) = (&args.issuer, &args.audience) {
        return Ok((issuer.clone(), audience.clone()));
    }
    let config = args.file.load_for_command()?;
    let issuers = &config.auth.issuers;
    let found = match (&args.issuer, issuers.as_slice()) {
        (Some(name), all) => all.iter().find(|issuer| issuer.issuer == *name),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    let missing = |option: &str| {
        Failure::new(
            Exit::Usage,
            format!(
                "--{option} is missing, and the configuration does not say it: it has {} issuers",
                issuers.len()
            ),
        )
    };
    let issuer = args
        .issuer
        .clone()
        .or_else(|| Some(found?.issuer.clone()))
        .ok_or_else(|| missing("issuer"))?;
    let audience = args
        .audience
        .clone()
        .or_else(|| found?.audiences.first().cloned())
        .ok_or_else(|| missing("audience"))?;
    Ok((issuer, audience))
}

fn claims(
    args: &MintArgs,
    issuer: &str,
    audience: &str,
    now_s: u64,
) -> Result<Map<String, Value>, Failure> {
    let mut claims = Map::new();
    let mut set = |name: &str, value: Value| claims.insert(name.to_owned(), value);
    set("iss", issuer.into());
    set("aud", audience.into());
    set("sub", args.subject.as_str().into());
    // RFC 9068 section 2.2 wants all of these.
    set("client_id", "skillgate-token-mint".into());
    set("iat", now_s.into());
    set("exp", now_s.saturating_add(args.ttl).into());
    set("jti", hex::encode(rand::random::<[u8; 12]>()).into());
    if let Some(tenant) = &args.tenant {
        set("tenant", tenant.as_str().into());
    }
    for (name, words) in [("roles", &args.roles), ("groups", &args.groups)] {
        if !words.is_empty() {
            set(name, json!(words));
        }
    }
    if !args.scopes.is_empty() {
        set("scope", args.scopes.join(" ").into());
    }
    for claim in &args.claims {
        let (name, value) = claim
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| {
                Failure::new(Exit::Usage, format!("--claim {claim:?} is not NAME=VALUE"))
            })?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        set(name, value);
    }
    Ok(claims)
}

fn read_key(path: &Path) -> Result<String, Failure> {
    let read = || {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error: io::Error| {
        Failure::new(
            Exit::Runtime,
            format!("cannot read {}: {error}", path.display()),
        )
    })
}

fn runtime(error: MintError) -> Failure {
    Failure::new(Exit::Runtime, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    fn skillgate(args: &[&str]) -> (Exit, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let args = ["skillgate", "token"].iter().chain(args).map(Into::into);
        let exit = super::super::run(args, &mut out, &mut err);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (exit, text(out), text(err))
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn keys_are_written_for_their_owner_alone_and_never_over_something() {
        let dir = tempfile::tempdir().unwrap();
        let (key, jwks) = (dir.path().join("dev.pem"), dir.path().join("jwks.json"));
        let (key_text, jwks_text) = (key.to_str().unwrap(), jwks.to_str().unwrap());
        let (exit, out, err) = skillgate(&[
            "keygen",
            key_text,
            "--algorithm",
            "EdDSA",
            "--jwks",
            jwks_text,
        ]);
        assert_eq!((exit, err.as_str()), (Exit::Fine, ""), "{out}");
        assert!(out.contains("for jwks_file") && !out.contains("PRIVATE"));
        assert_eq!((mode(&key), mode(&jwks)), (0o600, 0o644));
        let private = std::fs::read_to_string(&key).unwrap();
        let public = std::fs::read_to_string(&jwks).unwrap();
        assert!(private.starts_with("-----BEGIN PRIVATE KEY-----\n"));
        assert!(public.contains("\"EdDSA\"") && !public.contains("\"d\""));

        let (exit, out, err) = skillgate(&["keygen", key_text]);
        assert_eq!((exit, out.as_str()), (Exit::Runtime, ""));
        assert!(err.contains("nothing is overwritten"), "{err}");
        assert_eq!(std::fs::read_to_string(&key).unwrap(), private);
        // A link that waits where the key is to go is not followed.
        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(
            skillgate(&["keygen", link.to_str().unwrap()]).0,
            Exit::Runtime
        );
        assert!(!target.exists());
        // Without its public half a key is of no use: it does not stay.
        let other = dir.path().join("other.pem");
        let (exit, ..) = skillgate(&["keygen", other.to_str().unwrap(), "--jwks", jwks_text]);
        assert!(exit == Exit::Runtime && !other.exists());

        // Nor where nobody could be told that half.
        let third = dir.path().join("third.pem");
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let args = ["skillgate", "token", "keygen", third.to_str().unwrap()].map(Into::into);
        let exit = super::super::run(args, &mut full, &mut Vec::new());
        assert!(exit != Exit::Fine && !third.exists());

        let (exit, out, _) = skillgate(&["keygen", third.to_str().unwrap()]);
        let jwks: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (exit, &jwks["keys"][0]["alg"]),
            (Exit::Fine, &json!("ES256"))
        );
    }

    #[test]
    fn tokens_say_what_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (key, jwks, config) = (path("dev.pem"), path("jwks.json"), path("gate.toml"));
        skillgate(&["keygen", &key, "--jwks", &jwks]);
        std::fs::write(
            &config,
            format!(
                "[auth]\nmode = \"jwt\"\n[[auth.issuers]]\nissuer = \"http://localhost/dev\"\n\
                 audiences = [\"skillgate\"]\nalgorithms = [\"ES256\"]\njwks_file = {jwks:?}\n"
            ),
        )
        .unwrap();
        let claims = |args: &[&str]| {
            let mut all = vec!["mint", "--key", &key, "--subject", "alice"];
            all.extend(args);
            let (exit, out, err) = skillgate(&all);
            assert_eq!((exit, err.as_str()), (Exit::Fine, ""), "{args:?}");
            let parts: Vec<&str> = out.trim_end().split('.').collect();
            let read = |part| -> Value {
                serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
            };
            assert_eq!(read(parts[0])["typ"], "at+jwt");
            read(parts[1])
        };
        let from_config = claims(&["--config", &config]);
        assert_eq!(from_config["iss"], "http://localhost/dev");
        assert_eq!(from_config["aud"], "skillgate");
        let times =
            |claims: &Value| claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap();
        assert_eq!(times(&from_config), 3600);
        let full = claims(&[
            "--issuer",
            "https://a",
            "--audience",
            "b",
            "--tenant",
            "acme",
            "--role",
            "author",
            "--role",
            "admin",
            "--scope",
            "x",
            "--scope",
            "y",
            "--group",
            "g",
            "--ttl",
            "60",
            "--claim",
            "amr=[\"mfa\"]",
            "--claim",
            "email=alice@example.com",
            "--claim",
            "exp=5",
        ]);
        assert_eq!(full["exp"], 5, "what is written out wins");
        for (name, value) in [
            ("iss", json!("https://a")),
            ("aud", json!("b")),
            ("tenant", json!("acme")),
            ("sub", json!("alice")),
            ("roles", json!(["author", "admin"])),
            ("groups", json!(["g"])),
            ("scope", json!("x y")),
            ("amr", json!(["mfa"])),
            ("email", json!("alice@example.com")),
        ] {
            assert_eq!(full[name], value, "{name}");
        }

        let wrong = |args: &[&str], expected: &str| {
            let (exit, out, err) = skillgate(args);
            assert_eq!(out, "");
            assert!(
                exit != Exit::Fine && err.contains(expected),
                "{args:?}: {err}"
            );
        };
        let empty = path("empty.toml");
        std::fs::write(&empty, "").unwrap();
        wrong(
            &["mint", "--key", &key, "--subject", "a", "--config", &empty],
            "--issuer is missing",
        );
        wrong(
            &[
                "mint",
                "--key",
                &jwks,
                "--subject",
                "a",
                "--issuer",
                "b",
                "--audience",
                "c",
            ],
            "not a PEM private key",
        );
        wrong(
            &[
                "mint",
                "--key",
                &path("none"),
                "--subject",
                "a",
                "--issuer",
                "b",
                "--audience",
                "c",
            ],
            "cannot read",
        );
        wrong(
            &["mint", "--key", &key, "--subject", "a", "--ttl", "0"],
            "--ttl",
        );
        for subject in ["", " a", "caf\u{e9}"] {
            wrong(
                &["mint", "--key", &key, "--subject", subject],
                "1 to 255 printable ASCII characters",
            );
        }
        wrong(
            &[
                "mint",
                "--key",
                &key,
                "--subject",
                "a",
                "--issuer",
                "b",
                "--audience",
                "c",
                "--claim",
                "x",
            ],
            "is not NAME=VALUE",
        );
        // And a check of the configuration reads the keys.
        std::fs::write(&jwks, "{}").unwrap();
        let args = ["skillgate", "config", "check", "--config", &config].map(Into::into);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        assert_eq!(
            super::super::run(args, &mut out, &mut err),
            Exit::Configuration
        );
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains(":7:13: auth.issuers[0].jwks_file: "), "{out}");
    }
}
