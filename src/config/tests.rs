//! What a configuration may say, and what is answered to one that may not be.

use super::*;

use std::collections::BTreeMap;
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

fn load_env(env: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
    Config::load(&world(env, &[], &["skills", "policies"]), &Flags::default())
}

#[test]
fn the_defaults_are_the_documented_ones() {
    let config = load_env(&[]).unwrap();
    println!("{}", config.show(true));
    assert_eq!(config.server.listen, "127.0.0.1:8080".parse().unwrap());
}
