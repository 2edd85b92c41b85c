//! `skillgate plugin new`: a small plugin that builds, loads and runs. Everything that it needs of this project is written
//! beside it, as this program has it: the header for C, the SDK's sources for Rust.

mod sources;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::failure::Failure;
use super::{Exit, new_files, plain};
use sources::{
    C_SANDBOX, C_STORAGE, HEADER, LICENSE, RUST_SANDBOX, RUST_STORAGE, RUST_STORAGE_TESTS, SDK,
};

/// Longest name, in bytes: it becomes that of files, and part of the plugin's id, of which a plugin's file says 43.
const NAME_BYTES_MAX: usize = 30;
/// What comes before the name in the id of a plugin that has not been told its own.
const EXAMPLE_VENDOR: &str = "com.example";

#[derive(Debug, Args)]
pub(super) struct NewArgs {
    /// The plugin's name: lower case letters, digits and `-`, beginning with a letter
    #[arg(value_parser = name)]
    name: String,
    /// What it is for
    #[arg(long, value_enum)]
    kind: Kind,
    /// What it is written in
    #[arg(long, value_enum)]
    language: Language,
    /// The directory that the plugin's own directory is made in
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Keeps skills and blobs
    Storage,
    /// Runs code
    Sandbox,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Language {
    /// Rust 1.63 or newer, for a store 1.68, with cargo
    Rust,
    /// C99, with make
    C,
}

fn name(text: &str) -> Result<String, String> {
    let begins = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if begins && text.bytes().all(inside) && text.len() <= NAME_BYTES_MAX {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "expected lower case letters, digits and -, beginning with a letter, at most {NAME_BYTES_MAX}"
        ))
    }
}

/// The file that the build makes, in the plugin's directory.
fn built(args: &NewArgs) -> String {
    match args.language {
        Language::C => format!("{}.so", args.name),
        Language::Rust => format!("target/release/lib{}.so", args.name.replace('-', "_")),
    }
}

const MAKEFILE: &str = r#"# -pthread: for plugins with locks or threads. -s would strip what a bug report needs.
CFLAGS = -std=c99 -Wall -Wextra -Wpedantic -O2 -g

{name}.so: plugin.c skillgate_plugin.h
	$(CC) $(CFLAGS) -fPIC -shared -pthread -o $@ plugin.c

# Every access is checked:
# LD_PRELOAD="$(cc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 skillgate plugin check checked.so
# And what an instance, or a call, does not free (contract/answers is left out: there the host keeps a table for ever, which is no leak of yours):
# LD_PRELOAD="$(cc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=1 skillgate plugin check --only contract --skip contract/answers checked.so
checked.so: plugin.c skillgate_plugin.h
	$(CC) $(CFLAGS) -fsanitize=address,undefined -fPIC -shared -pthread -o $@ plugin.c

clean:
	rm -f {name}.so checked.so

.PHONY: clean
"#;

const C_HEAD: &str = r#"/*
 * {name}: a skillgate plugin ({kind}).
 *
 *     make
 *     skillgate plugin inspect {name}.so
 *
 * What each function has to do, and what it may rely on, is in
 * skillgate_plugin.h, at the function.
 */
"#;

const CARGO_TOML: &str = r#"[package]
name = "{name}"
version = "0.1.0"
edition = "2021"
rust-version = "{rust_version}"
publish = false

[lib]
crate-type = ["cdylib"]

[dependencies]
# The sources are here, as the gateway that wrote this has them: the contract only grows, so later gateways load the plugin.
skillgate-plugin-sdk = { path = "skillgate/sdk" }
{dependencies}
[profile.release]
# Not "abort": a panic would take down who loads the plugin.
panic = "unwind"
strip = "debuginfo"

[workspace]
"#;

/// What the SDK needs.
const RUST_VERSION: &str = "1.63";
/// What the newest `semver` needs, which cargo takes whatever the compiler is.
const STORAGE_RUST_VERSION: &str = "1.68";

const STORAGE_DEPENDENCIES: &str = r#"# Its newest release is what needs Rust 1.68 (rust-version above). The SDK needs 1.63.
semver = "1"
sha2 = { version = "0.10", default-features = false }
"#;

const CRATE_TOML: &str = r#"[package]
name = "skillgate-plugin-{crate}"
version = "{version}"
edition = "2021"
rust-version = "{rust_version}"
license = "Apache-2.0"
publish = false
{dependencies}"#;

const SDK_DEPENDENCIES: &str = r#"
[features]
# Sends the plugin's `tracing` events to the host's log. Needs a newer compiler: tracing-core's.
tracing = ["dep:tracing-core"]

[dependencies]
skillgate-plugin-abi = { path = "../abi" }
tracing-core = { version = "0.1", default-features = false, features = ["std"], optional = true }
"#;

const README: &str = r#"# {name}

A skillgate plugin ({kind}).

    {build}
    skillgate plugin inspect {built}     # what the file is, without running it
    skillgate plugin check {built}       # does it keep to the contract?

{begin}

In the gateway's configuration:

```toml
[plugins.{kind}]
path = {path_in_toml}
allow_unsigned = true        # while you work on it; later sha256 or minisign_key
```

A plugin that is named by its path gets a process of its own: its crash costs its own calls an error. Reload with SIGHUP after
a build, and the new one takes over while the old one ends what it has begun.

Change the id (`{id}`) and the vendor before anybody else loads it: the id is what logs, signatures and operators know it by.

{of_skillgate}
"#;

/// Where to go on with a store.
const BEGIN_STORAGE: &str =
    "It passes, and forgets everything when it ends, as its `caps` says: begin there.";

/// Where to go on with a sandbox.
const BEGIN_SANDBOX: &str = "It passes, and runs a language of its own, `echo`: a program gives back its arguments, and the
program `wait` waits until it is cancelled. The gateway's runs are in `python`, which it refuses, so a gateway with this
plugin answers `language_unsupported` to every run, and the check skips what it asks from inside a run. Begin with `run`.";

pub(super) fn run(args: &NewArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let dir = write_plugin(args)?;
    let shown = plain(&dir.display().to_string());
    let word = |path: &Path| plain(&new_files::in_shell(&path.display().to_string()));
    writeln!(out, "{shown}")?;
    match args.language {
        Language::C => writeln!(out, "build it:    make -C {}", word(&dir))?,
        Language::Rust => writeln!(
            out,
            "build it:    cargo build --release --manifest-path {}",
            word(&dir.join("Cargo.toml"))
        )?,
    }
    let file = word(&dir.join(built(args)));
    writeln!(out, "check it:    skillgate plugin check {file}")?;
    writeln!(
        out,
        "use it:      {shown}/README.md says what goes into the configuration"
    )?;
    Ok(Exit::Fine)
}

/// Every file, by its path in the plugin's directory.
fn files(args: &NewArgs, dir: &Path) -> Vec<(String, String)> {
    let id = format!("{EXAMPLE_VENDOR}.{}", args.name);
    let kind = match args.kind {
        Kind::Storage => "storage",
        Kind::Sandbox => "sandbox",
    };
    let build = match args.language {
        Language::C => "make",
        Language::Rust => "cargo build --release",
    };
    let begin = match args.kind {
        Kind::Storage => BEGIN_STORAGE,
        Kind::Sandbox => BEGIN_SANDBOX,
    };
    let of_skillgate = match args.language {
        Language::C => {
            "`skillgate_plugin.h` is skillgate's, under the Apache License 2.0 (`LICENSE`)."
        }
        Language::Rust => {
            "What is in `skillgate/` is skillgate's, under the Apache License 2.0 (`skillgate/LICENSE`)."
        }
    };
    // One that is yet to be made has no canonical form.
    let above = fs::canonicalize(&args.dir).or_else(|_| std::path::absolute(&args.dir));
    let absolute = above.map_or_else(|_| dir.to_owned(), |above| above.join(&args.name));
    // A text of JSON is one of TOML, too.
    let path = absolute.join(built(args)).display().to_string();
    let path = serde_json::Value::from(path).to_string();
    let fill = |text: &str| {
        text.replace("{name}", &args.name)
            .replace("{id}", &id)
            .replace("{kind}", kind)
            .replace("{vendor}", "Example")
            .replace("{build}", build)
            .replace("{built}", &built(args))
            .replace("{begin}", begin)
            .replace("{of_skillgate}", of_skillgate)
            .replace("{path_in_toml}", &path)
    };
    let mut files = vec![("README.md".to_owned(), fill(README))];
    let mut add = |path: &str, text: String| files.push((path.to_owned(), text));
    match args.language {
        Language::C => {
            let (example, example_id) = match args.kind {
                Kind::Storage => (C_STORAGE, "org.skillgate.example-store"),
                Kind::Sandbox => (C_SANDBOX, "org.skillgate.example-c"),
            };
            // The example without what it says of itself at the top.
            let code = example.split_once("*/\n").map_or(example, |(_, code)| code);
            let code = code
                .replace(example_id, &id)
                .replace("SKG_LIT(\"skillgate\")", "SKG_LIT(\"Example\")")
                .replace("SKG_LIT(\"Apache-2.0\")", "SKG_LIT(\"\")");
            add("plugin.c", fill(C_HEAD) + &code);
            add("Makefile", fill(MAKEFILE));
            add("skillgate_plugin.h", HEADER.to_owned());
            add("LICENSE", LICENSE.to_owned());
        }
        Language::Rust => {
            let (code, dependencies, rust_version) = match args.kind {
                Kind::Storage => (RUST_STORAGE, STORAGE_DEPENDENCIES, STORAGE_RUST_VERSION),
                Kind::Sandbox => (RUST_SANDBOX, "", RUST_VERSION),
            };
            add("src/lib.rs", fill(code));
            if args.kind == Kind::Storage {
                add("src/tests.rs", fill(RUST_STORAGE_TESTS));
            }
            let manifest = CARGO_TOML
                .replace("{dependencies}", dependencies)
                .replace("{rust_version}", rust_version);
            add("Cargo.toml", fill(&manifest));
            add(".gitignore", "/target\n".to_owned());
            for (name, dependencies) in [("abi", ""), ("sdk", SDK_DEPENDENCIES)] {
                let text = CRATE_TOML
                    .replace("{crate}", name)
                    .replace("{version}", env!("CARGO_PKG_VERSION"))
                    .replace("{rust_version}", RUST_VERSION)
                    .replace("{dependencies}", dependencies);
                add(&format!("skillgate/{name}/Cargo.toml"), text);
            }
            add("skillgate/LICENSE", LICENSE.to_owned());
            for (path, text) in SDK {
                add(&format!("skillgate/{path}"), (*text).to_owned());
            }
        }
    }
    files
}

/// Writes all files of the plugin into a directory that was not there before.
fn write_plugin(args: &NewArgs) -> Result<PathBuf, Failure> {
    let dir = args.dir.join(&args.name);
    let files = files(args, &dir);
    new_files::write(&dir, files)?;
    Ok(dir)
}
