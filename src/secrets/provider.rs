//! Reads values: variables `SKILLGATE_SECRET_<NAME>`, or a directory with a file per name.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skillgate_skill::SecretName;
use zeroize::Zeroizing;

use super::{SECRETS_MAX, Secret, VALUE_BYTES_MAX, VALUE_BYTES_MIN};
use crate::config::{self, Config};

/// How often a directory is read again that was replaced while it was read.
const READS_MAX: usize = 3;
/// More problems are not listed.
const PROBLEMS_MAX: usize = 20;

/// Why secrets were not read: each problem with its file or variable, none with a value.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// At least one.
    pub problems: Vec<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("secrets: ")?;
        f.write_str(&self.problems.join("\nsecrets: "))
    }
}

impl std::error::Error for Refused {}

type Values = BTreeMap<SecretName, Secret>;

pub(super) fn read(config: &Config) -> Result<Values, Refused> {
    match &config.secrets {
        config::Secrets::Env => {
            let variables = config.secret_variables.iter();
            collect(variables.map(|(name, value)| {
                let place = format!("environment variable {}{name}", config::SECRET_PREFIX);
                let bytes = Zeroizing::new(value.to_vec());
                (place, name.to_owned(), Ok(bytes))
            }))
        }
        config::Secrets::Dir(dir) => {
            let mut reads = 1;
            loop {
                match read_dir(dir) {
                    // Kubernetes puts another directory in the place of `..data` and takes the old one away.
                    Err(error) if error.kind() == io::ErrorKind::NotFound && reads < READS_MAX => {
                        reads += 1;
                    }
                    Err(error) => {
                        let problem =
                            format!("secrets.dir: cannot read {}: {error}", dir.display());
                        return Err(Refused {
                            problems: vec![problem],
                        });
                    }
                    Ok(files) => return collect(files),
                }
            }
        }
    }
}

type Found = (String, String, io::Result<Zeroizing<Vec<u8>>>);

fn collect(found: impl IntoIterator<Item = Found>) -> Result<Values, Refused> {
    let (mut values, mut problems) = (Values::new(), Vec::new());
    for (place, name, bytes) in found {
        let value = SecretName::parse(&name)
            .map_err(|error| error.to_string())
            .and_then(|name| Ok((name, checked(bytes)?)));
        match value {
            Ok((name, value)) => drop(values.insert(name, value)),
            Err(why) => problems.push(format!("{place}: {why}")),
        }
    }
    if values.len() > SECRETS_MAX {
        problems.push(format!(
            "{} secrets, over the limit of {SECRETS_MAX}",
            values.len()
        ));
    }
    if problems.is_empty() {
        return Ok(values);
    }
    problems.truncate(PROBLEMS_MAX);
    Err(Refused { problems })
}

/// A value that can be an environment variable, and can be looked for. No error says anything of what it is.
fn checked(bytes: io::Result<Zeroizing<Vec<u8>>>) -> Result<Secret, String> {
    let mut bytes = bytes.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() < VALUE_BYTES_MIN {
        return Err(format!(
            "the value has fewer than {VALUE_BYTES_MIN} bytes; it could not be told from ordinary words in what a run says"
        ));
    }
    if bytes.len() > VALUE_BYTES_MAX {
        return Err(format!("the value has more than {VALUE_BYTES_MAX} bytes"));
    }
    if bytes.contains(&0) {
        return Err("the value has a NUL byte, which no environment variable can hold".into());
    }
    match String::from_utf8(std::mem::take(&mut *bytes)) {
        Ok(text) => Ok(Secret(Arc::new(Zeroizing::new(text)))),
        Err(error) => {
            drop(Zeroizing::new(error.into_bytes()));
            Err("the value is not UTF-8; keep it as base64 or hex".into())
        }
    }
}

/// Every file of a directory. As Kubernetes mounts a secret, the files are links through `..data` to a directory that is
/// replaced as a whole: it is looked up once, so that all values are of one version.
fn read_dir(dir: &Path) -> io::Result<Vec<Found>> {
    let data = dir.join("..data");
    let root = match fs::symlink_metadata(&data) {
        Ok(found) if found.is_symlink() => fs::canonicalize(&data)?,
        _ => dir.to_owned(),
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(&root)? {
        let name = entry?.file_name();
        // Kubernetes' own, and what editors leave.
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if files.len() >= 2 * SECRETS_MAX {
            return Err(io::Error::other(format!(
                "more than {} files",
                2 * SECRETS_MAX
            )));
        }
        let path = root.join(&name);
        let shown = dir.join(&name).display().to_string();
        let bytes = read_file(&path, &shown);
        if matches!(&bytes, Err(error) if error.kind() == io::ErrorKind::NotFound) && root != dir {
            return Err(io::ErrorKind::NotFound.into());
        }
        files.push((shown, name.to_string_lossy().into_owned(), bytes));
    }
    files.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(files)
}

fn read_file(path: &PathBuf, shown: &str) -> io::Result<Zeroizing<Vec<u8>>> {
    // Before it is opened: a pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let file = File::open(path)?;
    if file.metadata()?.mode() & 0o006 != 0 {
        tracing::warn!(
            file = shown,
            "every user of this host can read or write this secret: chmod o-rw"
        );
    }
    // With room for all that is read, so that no copy is left behind by growing; two bytes more for a line end.
    let mut bytes = Zeroizing::new(Vec::with_capacity(VALUE_BYTES_MAX + 3));
    file.take(VALUE_BYTES_MAX as u64 + 3)
        .read_to_end(&mut bytes)?;
    // One line end: what an editor or `echo` puts there.
    if bytes.ends_with(b"\n") {
        bytes.pop();
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
    }
    Ok(bytes)
}
