//! Where a configuration comes from: the one place that reads files and the process's environment for settings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use zeroize::Zeroizing;

use super::problem::{ConfigErrors, Origin, Problem};
use super::raw::{self, Document, Table, Value};

/// What every variable of ours starts with.
const PREFIX: &str = "SKILLGATE_";
/// What the variables that hold secrets start with.
pub const SECRET_PREFIX: &str = "SKILLGATE_SECRET_";
/// A larger configuration file is a mistake.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What lies above the defaults, lowest first, and where it comes from.
pub(super) struct Layers {
    pub(super) tables: Vec<Table>,
    /// Where a file was looked for, up to the one that was read.
    pub(super) looked_for: Vec<PathBuf>,
    /// The file that was read.
    pub(super) file: Option<PathBuf>,
}

/// The configuration file that counts, with its text, and where it was looked for.
struct Found {
    looked_for: Vec<PathBuf>,
    file: Option<(PathBuf, String)>,
}

/// Reads a file as text.
pub(super) type ReadFile = Box<dyn Fn(&Path) -> io::Result<String> + Send + Sync>;

/// The outside world, as far as the configuration looks at it. Tests make their own.
pub struct Sources {
    /// The environment's variables that start with `SKILLGATE_`, secrets (`SKILLGATE_SECRET_*`) excepted.
    pub env: BTreeMap<String, OsString>,
    /// The values of `SKILLGATE_SECRET_<NAME>`, by name.
    pub secrets: SecretVariables,
    /// Reads a configuration file.
    pub read: ReadFile,
    /// Whether there is a directory of this name. What is found by default stays for as long as these do: while the gateway
    /// serves, the operator's rules do not give way to the bundled ones because their directory is away.
    pub is_dir: Box<dyn Fn(&Path) -> bool + Send + Sync>,
    /// The running program, links followed; absent where the system does not tell.
    pub exe: Option<PathBuf>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("env", &self.env)
            .field("exe", &self.exe)
            .finish_non_exhaustive()
    }
}

/// Secrets as the environment has them. Overwritten at their end; only the names can be seen.
#[derive(Clone, Default)]
pub struct SecretVariables(Arc<BTreeMap<String, Zeroizing<Vec<u8>>>>);

impl SecretVariables {
    /// By name, without the prefix.
    pub fn new(variables: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let kept = variables
            .into_iter()
            .map(|(name, value)| (name, Zeroizing::new(value)));
        SecretVariables(Arc::new(kept.collect()))
    }

    /// Each with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
    }
}

impl fmt::Debug for SecretVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// What the command line says about the configuration.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--config FILE`
    pub config: Option<PathBuf>,
    /// `--listen ADDRESS`
    pub listen: Option<String>,
    /// `--insecure-no-auth`
    pub insecure_no_auth: bool,
}

impl Sources {
    /// The process's own.
    pub fn of_process() -> Self {
        Sources::with(std::env::vars_os())
    }

    /// The process's own, with these variables in the place of its environment.
    pub(super) fn with(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        let variables = variables.into_iter().filter_map(named);
        let ours: BTreeMap<String, OsString> = variables
            .filter(|(name, _)| name.starts_with(PREFIX))
            .collect();
        let services = Services::of(&ours);
        let is_secret = |(name, _): &(String, OsString)| name.starts_with(SECRET_PREFIX);
        let (secrets, env): (BTreeMap<_, _>, _) = ours.into_iter().partition(is_secret);
        let secret = |(name, value): (String, OsString)| {
            let secret = name
                .strip_prefix(SECRET_PREFIX)
                .filter(|_| !services.tell(&name))?;
            Some((secret.to_owned(), value.into_encoded_bytes()))
        };
        Sources {
            env,
            secrets: SecretVariables::new(secrets.into_iter().filter_map(secret)),
            read: Box::new(file_reader()),
            is_dir: Box::new(once_for_each(Path::is_dir)),
            exe: std::env::current_exe().ok(),
        }
    }

    /// The layers above the defaults.
    pub(super) fn layers(&self, flags: &Flags) -> Result<Layers, ConfigErrors> {
        let mut problems = Vec::new();
        let mut layers = Vec::new();
        let Found { looked_for, file } = self.file(flags)?;
        if let Some((path, text)) = &file {
            match raw::parse(&Document::File(path.to_string_lossy().into()), text) {
                Ok(table) => layers.push(table),
                Err(wrong) => problems.extend(wrong),
            }
        }
        layers.push(self.environment(&mut problems));
        let server = |key: &str| ["server".to_owned(), key.to_owned()];
        if let Some(listen) = &flags.listen {
            layers.push(raw::option(
                "--listen",
                &server("listen"),
                Value::String(listen.clone()),
            ));
        }
        if problems.is_empty() {
            Ok(Layers {
                tables: layers,
                looked_for,
                file: file.map(|(path, _)| path),
            })
        } else {
            Err(ConfigErrors::new(problems))
        }
    }

    /// A file that was named must be there.
    fn file(&self, flags: &Flags) -> Result<Found, ConfigErrors> {
        let variable = self
            .env
            .get("SKILLGATE_CONFIG")
            .filter(|path| !path.is_empty())
            .map(PathBuf::from);
        let named = match (&flags.config, variable) {
            (Some(path), _) => Some((path.clone(), "--config")),
            (None, Some(path)) => Some((path, "SKILLGATE_CONFIG")),
            (None, None) => None,
        };
        let wrong = |path: &Path, error: io::Error, how: &str| {
            ConfigErrors::whole(format!(
                "cannot read the configuration file {}{how}: {error}",
                path.display()
            ))
        };
        if let Some((path, by)) = named {
            let text =
                (self.read)(&path).map_err(|e| wrong(&path, e, &format!(", named by {by}")))?;
            return Ok(Found {
                looked_for: vec![path.clone()],
                file: Some((path, text)),
            });
        }
        let mut looked_for = Vec::new();
        for path in ["./skillgate.toml", "/etc/skillgate/skillgate.toml"].map(PathBuf::from) {
            looked_for.push(path.clone());
            match (self.read)(&path) {
                Ok(text) => {
                    return Ok(Found {
                        looked_for,
                        file: Some((path, text)),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // There, but unreadable: going on with the defaults would not be what its author wants.
                Err(error) => return Err(wrong(&path, error, "")),
            }
        }
        Ok(Found {
            looked_for,
            file: None,
        })
    }

    /// The variables as one layer.
    fn environment(&self, problems: &mut Vec<Problem>) -> Table {
        let mut layer = Table::new();
        let services = Services::of(&self.env);
        for (name, value) in &self.env {
            if name == "SKILLGATE_CONFIG" || name.starts_with(SECRET_PREFIX) || services.tell(name)
            {
                continue;
            }
            let Some(rest) = name.strip_prefix(PREFIX) else {
                continue;
            };
            let mut refuse = |message: &str| {
                let origin = Origin::Environment {
                    variable: name.as_str().into(),
                };
                problems.push(Problem {
                    origin: Some(origin),
                    key: String::new(),
                    message: message.to_owned(),
                });
            };
            let Some(text) = value.to_str() else {
                refuse("not valid UTF-8");
                continue;
            };
            let path: Vec<String> = rest.split("__").map(str::to_lowercase).collect();
            // The one key that is in no section.
            if path.len() < 2 && rest != "RATE_LIMIT" || path.len() > raw::LEVELS_MAX {
                refuse(
                    "no setting has this name, expected SKILLGATE_<SECTION>__<KEY>, like SKILLGATE_SERVER__LISTEN",
                );
                continue;
            }
            raw::overlay(&mut layer, raw::variable(name, &path, text));
        }
        layer
    }

    /// A bundled directory (`skills`, `policies`): in the current directory, or where an installation has it
    /// (`<prefix>/share/skillgate/<name>` beside `<prefix>/bin`), or in the source tree whose `target/<profile>` the
    /// program is in. Absent when there is none.
    pub fn bundled_dir(&self, name: &str) -> Option<PathBuf> {
        let beside = |up: &str| Some(self.exe.as_ref()?.parent()?.join(up).join(name));
        let candidates = [
            Some(PathBuf::from(name)),
            beside("../share/skillgate"),
            beside("../.."),
        ];
        candidates
            .into_iter()
            .flatten()
            .find(|path| (self.is_dir)(path))
    }
}

/// Gives the same answer to the same question as before.
fn once_for_each(
    ask: impl Fn(&Path) -> bool + Send + Sync,
) -> impl Fn(&Path) -> bool + Send + Sync {
    let answers = Mutex::new(BTreeMap::new());
    move |path| {
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers
            .entry(path.to_owned())
            .or_insert_with_key(|path: &PathBuf| ask(path))
    }
}

/// Kubernetes tells every container where the services beside it are, by variables that begin with the service's name: those of
/// `skillgate`, `skillgate-admin` or `skillgate-secret-store` look like ours. They are not meant for us: refusing them would
/// keep the gateway from starting there, and a port is no secret.
struct Services(Vec<String>);

impl Services {
    /// Those that are told of, the gateway's own among them: by their host and their port, which no service is without. One of
    /// them alone may be a secret's name, or be meant as a setting, which nobody must take for one.
    fn of(variables: &BTreeMap<String, OsString>) -> Self {
        let told = |name: &String| {
            let service = name.strip_suffix("SERVICE_HOST")?;
            let is_told = service.ends_with('_')
                && !service.contains("__")
                && variables.contains_key(&format!("{service}SERVICE_PORT"));
            is_told.then(|| service.to_owned())
        };
        Services(variables.keys().filter_map(told).collect())
    }

    /// Whether a variable of this name is about one of them.
    fn tell(&self, name: &str) -> bool {
        let of = |service: &String| name.strip_prefix(service.as_str());
        self.0.iter().filter_map(of).any(is_of_service)
    }
}

/// Whether a service's variable ends like this: `SERVICE_HOST`, `SERVICE_PORT`, `SERVICE_PORT_<name>`, `PORT`,
/// `PORT_<n>_<protocol>` or `PORT_<n>_<protocol>_<what>`.
fn is_of_service(end: &str) -> bool {
    let of_port = |rest: &str| {
        let Some((port, rest)) = rest.strip_prefix('_').and_then(|rest| rest.split_once('_'))
        else {
            return rest.is_empty();
        };
        let protocol = rest.split('_').next().unwrap_or_default();
        port.parse::<u16>().is_ok() && ["TCP", "UDP", "SCTP"].contains(&protocol)
    };
    let of_named_port = |rest: &str| rest.is_empty() || rest.starts_with('_');
    !end.contains("__")
        && (end == "SERVICE_HOST"
            || end.strip_prefix("SERVICE_PORT").is_some_and(of_named_port)
            || end.strip_prefix("PORT").is_some_and(of_port))
}

/// Reads files as long as it lives, and remembers what a pipe has said (`--config <(...)`, `/dev/stdin`): it says it once, and
/// nothing after that, which would be a configuration too, of defaults alone.
fn file_reader() -> impl Fn(&Path) -> io::Result<String> {
    let said: Mutex<BTreeMap<PathBuf, String>> = Mutex::default();
    move |path| {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = said.get(path) {
            return Ok(text.clone());
        }
        let file = std::fs::File::open(path)?;
        let is_file = file.metadata()?.is_file();
        let text = read_text(file)?;
        if !is_file {
            said.insert(path.to_owned(), text.clone());
        }
        Ok(text)
    }
}

/// The text of a configuration file, which has a limit and is UTF-8. A directory reads as an error by itself.
fn read_text(file: std::fs::File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!(
            "larger than {MAX_FILE_BYTES} bytes"
        )));
    }
    String::from_utf8(bytes).map_err(|e| {
        io::Error::other(format!(
            "not valid UTF-8 at byte {}",
            e.utf8_error().valid_up_to()
        ))
    })
}
