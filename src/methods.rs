//! The table of methods: what there is, what it takes, what it answers, who does it.
//!
//! `/rpc`, `GET /tools`, `/openrpc.json` and `rpc.discover` are all made from [`TABLE`]. A method has two halves with
//! the policy between them: `prepare` reads the parameters and finds the skills and blobs that they name; what it
//! gives back can act only with a [`Permit`]. Knows no HTTP and no envelope.

pub(crate) mod blob_transfer;
mod content;
mod create_blob;
mod create_skill;
mod describe_skill;
mod discover;
mod execute_skill;
mod list_skills;
mod load_guide;
mod read_blob;
mod read_skill_file;
mod run_code;
mod shape;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use serde::de::{self, DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::value::RawValue;
use tower::{Layer, Service, ServiceExt};

use crate::blobs::{self, Blobs};
use crate::catalog::{self, Catalog, Skill};
use crate::json::{cut, without_place};
use crate::limit::Limited;
use crate::policy::{Decidable, Denied, Facts, Permit, Permitted};
use crate::rpc::{Call, NoSpace, Params, Space, aside, json_bytes, to_raw};
use crate::runs::{self, Runs};
use crate::telemetry::trace::Trace;
use content::{Content, Encoding, decode};
use shape::{First, Object, Whole, elsewhere, in_words_of_json, meaning};

pub(crate) use discover::openrpc;
pub(crate) use list_skills::listing;

/// Blobs that one run may be given.
const INPUT_BLOBS_MAX: usize = 64;
/// Of a caller's own word so many characters are told back to him.
const TOLD_CHARS_MAX: usize = 512;
/// Skills that one run may mount.
const MOUNT_SKILLS_MAX: usize = 32;

/// Names of a call's arguments, at the top level: each is in what the policy is asked and in the record of it.
const ARG_NAMES_MAX: usize = 1000;
/// Bytes of all of them together.
const ARG_NAMES_BYTES_MAX: usize = 32 << 10;

/// Appendix A of the specification, for whoever connects a model (REQUIREMENTS L3), and what the tools' descriptions, which are
/// the specification's too, leave out of this runtime.
pub(crate) const SYSTEM_PROMPT: &str =
    "You are connected to a Skills Runtime using the Skills Protocol.

If you have not yet read the Skills Protocol Guide,
you MUST call the `load_skills_protocol_guide` tool before using
any other Skills Protocol tools.

After reading the guide, follow its workflow:
discover → inspect → run or write code → use blobs for large data.

In this runtime:
- `run_code` takes one Python module that defines `def main(args)`: `args` is the call's `args`, and what it returns (JSON, up to
  4 KiB) is `output`. Printed lines are in `logs_preview`. Files and variables do not stay after the run; blobs do.
- It can import the standard library, `runtime`, and the skills in `mount_skills` (`name` or `name@version`), as in
  `from skills.csv.stats import profile`, with `_` for `-`. Nothing can be installed. There is no network, but for what the policy
  grants a skill.
- A blob from before can be read in a run only if its id is in `input_blobs`, also when it is in `args`. After
  `from runtime import blobs`: `blobs.read_text(id)`, `blobs.open(id, \"r\")`, `blobs.write_text(text, kind=\"text/csv\")`, `blobs.write_json(value)`; what is
  written is in `output_blobs`.
- A larger output is stored, as the last of `output_blobs`: look at it with `read_blob`, or give it to another run.
- The time limit is `timeout_ms` in `execute_skill` and `limits.timeout_ms` in `run_code`, in milliseconds.
";

/// What can go wrong with a call; `rescue` says what the caller is told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not in the table.
    #[error("no such method")]
    UnknownMethod {
        /// As asked for, cut.
        method: String,
    },
    /// Parameters that do not fit.
    #[error("{message}")]
    Params {
        /// JSON pointer into `params`.
        pointer: String,
        /// What was wrong and what is expected.
        message: String,
    },
    /// An answer that would not fit.
    #[error("{message}")]
    TooLarge {
        /// What, and what to do.
        message: String,
    },
    /// The policy says no.
    #[error(transparent)]
    Denied(Denied),
    /// A rate limit of calls.
    #[error(transparent)]
    Limited(#[from] Limited),
    /// Skills.
    #[error(transparent)]
    Catalog(#[from] catalog::Error),
    /// Blobs.
    #[error(transparent)]
    Blobs(#[from] blobs::Error),
    /// Runs.
    #[error(transparent)]
    Runs(#[from] runs::Error),
    /// A large answer, and no room for it.
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
    /// An answer of ours that is no JSON.
    #[error("an answer could not be serialized")]
    Serialize(#[source] Arc<serde_json::Error>),
}

impl Error {
    fn params(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Error::Params {
            pointer: pointer.into(),
            message: message.into(),
        }
    }
}

impl From<Denied> for Error {
    /// A skill that the caller must not know of is answered exactly like one that is not there (contract, section 2).
    fn from(denied: Denied) -> Self {
        match denied.hidden {
            Some(name) => Error::Catalog(catalog::Error::SkillNotFound {
                name: crate::json::short(&name),
            }),
            None => Error::Denied(denied),
        }
    }
}

/// What the methods work with.
#[derive(Debug, Clone)]
pub(crate) struct Rooms {
    /// Which skills there are.
    pub catalog: Catalog,
    /// Large data.
    pub blobs: Blobs,
    /// Sandboxes.
    pub runs: Runs,
    /// What an answer may hold: `server.max_body_bytes`.
    pub answer_bytes_max: u64,
}

/// What a method does once it is allowed.
type Act<R> = Box<dyn FnOnce(Permit) -> BoxFuture<'static, Result<R, Error>> + Send>;

/// A call whose parameters have been read: it knows what it is about and waits for its permit.
pub(crate) struct Prepared<R = Box<RawValue>> {
    facts: Facts,
    act: Act<R>,
}

impl<R> Prepared<R> {
    /// The same, as a part of this trace.
    #[must_use]
    pub(crate) fn traced(mut self, trace: Trace) -> Self {
        self.facts.trace = Some(trace);
        self
    }

    fn new<F>(facts: Facts, act: impl FnOnce(Permit) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<R, Error>> + Send + 'static,
    {
        Prepared {
            facts,
            act: Box::new(|permit| Box::pin(act(permit))),
        }
    }
}

impl Prepared {
    /// A method that answers a value of ours.
    fn json<T, F>(facts: Facts, act: impl FnOnce(Permit) -> F + Send + 'static) -> Self
    where
        T: Serialize,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        Prepared::new(facts, |permit| {
            let work = act(permit);
            async move { to_raw(&work.await?).map_err(Error::Serialize) }
        })
    }

    /// The same for one that gives what is stored and changes nothing: an answer of more than `bytes_max` bytes is refused
    /// with `instead`, what to do then, and one of more than a few bytes has its place before it is made.
    fn reading<T, F>(
        facts: Facts,
        space: Space,
        bytes_max: u64,
        instead: &'static str,
        act: impl FnOnce(Permit) -> F + Send + 'static,
    ) -> Self
    where
        T: Serialize + Send,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        Prepared::new(facts, move |permit| {
            let work = act(permit);
            async move { bounded(work.await?, &space, bytes_max, instead).await }
        })
    }
}

/// An answer of at most so many bytes; see [`Prepared::reading`].
async fn bounded(
    answer: impl Serialize + Send,
    space: &Space,
    bytes_max: u64,
    instead: &'static str,
) -> Result<Box<RawValue>, Error> {
    let Some(bytes) = aside(space.large_bytes(), || json_bytes(&answer, bytes_max)) else {
        let message = format!(
            "as JSON this has over {bytes_max} bytes, and an answer holds no more (server.max_body_bytes): {instead}"
        );
        return Err(Error::TooLarge { message });
    };
    space.enter(bytes).await?;
    aside(bytes as usize, || to_raw(&answer)).map_err(Error::Serialize)
}

impl<R> fmt::Debug for Prepared<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared")
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

impl<R> Decidable for Prepared<R> {
    fn facts(&self) -> &Facts {
        &self.facts
    }
}

/// One method.
#[derive(Debug)]
pub(crate) struct Method {
    /// On the wire.
    pub name: &'static str,
    /// One of the eight that a model sees (REQUIREMENTS L1).
    pub tool: bool,
    /// The specification's sentence.
    pub description: &'static str,
    /// JSON Schema of the parameters: the specification's, as text.
    pub params: &'static str,
    /// JSON Schema of the result.
    pub result: &'static str,
    prepare: Prepare,
}

impl Method {
    /// The parameters' schema as a value.
    pub(crate) fn params_schema(&self) -> serde_json::Value {
        discover::schema(self.params)
    }

    /// The result's schema as a value.
    pub(crate) fn result_schema(&self) -> serde_json::Value {
        discover::schema(self.result)
    }
}

type Prepare = fn(Arc<Rooms>, Call) -> BoxFuture<'static, Result<Prepared, Error>>;

/// Every method, in the specification's order.
pub(crate) static TABLE: [Method; 10] = [
    list_skills::METHOD,
    describe_skill::METHOD,
    read_skill_file::METHOD,
    execute_skill::METHOD,
    run_code::METHOD,
    create_blob::METHOD,
    read_blob::METHOD,
    load_guide::METHOD,
    create_skill::METHOD,
    discover::METHOD,
];

/// The names in [`TABLE`].
pub(crate) fn names() -> [&'static str; 10] {
    TABLE.each_ref().map(|method| method.name)
}

/// Makes [`Resolve`].
#[derive(Debug, Clone)]
pub(crate) struct ResolveLayer(pub Rooms);

impl<S> Layer<S> for ResolveLayer {
    type Service = Resolve<S>;
    fn layer(&self, inner: S) -> Resolve<S> {
        Resolve {
            rooms: Arc::new(self.0.clone()),
            inner,
        }
    }
}

/// Finds the method, reads its parameters and what they name.
#[derive(Debug, Clone)]
pub(crate) struct Resolve<S> {
    rooms: Arc<Rooms>,
    inner: S,
}

impl<S> Service<Call> for Resolve<S>
where
    S: Service<Prepared, Response = Box<RawValue>, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Box<RawValue>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Box<RawValue>, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let (rooms, inner) = (self.rooms.clone(), self.inner.clone());
        Box::pin(async move {
            let Some(method) = TABLE.iter().find(|method| method.name == call.method) else {
                return Err(Error::UnknownMethod {
                    method: crate::json::short(&call.method),
                });
            };
            let trace = call.trace;
            let prepared = (method.prepare)(rooms, call).await?;
            inner.oneshot(prepared.traced(trace)).await
        })
    }
}

/// The end of the stack: does what was permitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Perform;

impl<R> Service<Permitted<Prepared<R>>> for Perform {
    type Response = R;
    type Error = Error;
    type Future = BoxFuture<'static, Result<R, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, permitted: Permitted<Prepared<R>>) -> Self::Future {
        let (prepared, permit) = permitted.into_parts();
        (prepared.act)(permit)
    }
}

// === what several methods need ===

/// Reads a method's parameters; the pointer of the error says where they do not fit, and its message what `schema`, the
/// method's, says of what is missing or of another type.
fn read_params<T: DeserializeOwned>(params: &Params, schema: &str) -> Result<T, Error> {
    let mut reader = serde_json::Deserializer::from_str(params.as_str());
    let read = aside(params.as_str().len(), || {
        serde_path_to_error::deserialize(&mut reader)
    });
    read.map_err(|error| {
        let pointer = error
            .path()
            .iter()
            .fold(String::new(), |pointer, segment| match segment {
                serde_path_to_error::Segment::Map { key } => {
                    let key = cut(key, TOLD_CHARS_MAX);
                    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
                }
                serde_path_to_error::Segment::Seq { index } => format!("{pointer}/{index}"),
                _ => pointer,
            });
        // The place in the text says nothing to a caller whose JSON library made it.
        let message = error.into_inner().to_string();
        let message = &*cut(without_place(&message), TOLD_CHARS_MAX);
        // REQUIREMENTS R2: null is absent, also where something must not be.
        match pointer.rsplit_once('/') {
            Some((above, name)) if message.starts_with("invalid type: null") => {
                let meaning = meaning(schema, &pointer);
                let message = format!("missing field `{name}` (it is null){meaning}");
                Error::params(above, message)
            }
            // An unknown one is named already.
            Some(_) if !message.starts_with("unknown field") => {
                let message = format!("{}: {}", named(&pointer), in_words_of_json(message));
                let meaning = meaning(schema, &pointer);
                Error::params(pointer, message + &meaning)
            }
            _ => {
                let missing = message.strip_prefix("missing field `");
                let name = missing.and_then(|rest| rest.strip_suffix('`'));
                let more = match name {
                    Some(name) => meaning(schema, &format!("{pointer}/{name}")),
                    None => elsewhere(schema, &pointer),
                };
                Error::params(pointer, message.to_owned() + &more)
            }
        }
    })
}

/// As a message names a parameter: `limits/timeout_ms`.
fn named(pointer: &str) -> &str {
    pointer.trim_start_matches('/')
}

/// An error that must not be told before the decision: which version, which files, which blobs are there would tell a
/// caller that the skill is there at all.
type Late = Option<Error>;

/// The skill, to decide about; where its version is missing, the latest one, and where it cannot be read, one in its place:
/// both are about the same name.
async fn find(
    rooms: &Rooms,
    tenant: &str,
    name: &str,
    version: Option<&str>,
) -> Result<(Arc<Skill>, Late), Error> {
    let mut late = None;
    let found = match rooms.catalog.get(tenant, name, version).await {
        Err(error @ catalog::Error::VersionNotFound { .. }) => {
            late = Some(error.into());
            rooms.catalog.get(tenant, name, None).await
        }
        found => found,
    };
    match found {
        Ok(skill) => Ok((skill, late)),
        Err(error @ (catalog::Error::SkillNotFound { .. } | catalog::Error::Invalid { .. })) => {
            Err(error.into())
        }
        Err(error) => {
            let Some(skill) = rooms.catalog.stand_in(name) else {
                return Err(error.into());
            };
            Ok((skill, late.or(Some(error.into()))))
        }
    }
}

/// Keeps an error for after the decision, unless there is one already.
fn later<T: Default>(late: &mut Late, outcome: Result<T, Error>) -> T {
    outcome.unwrap_or_else(|error| {
        late.get_or_insert(error);
        T::default()
    })
}

/// The member names of `args`, in their order; their values stay out of decisions and records. A rule must see all of them
/// or none, so what has too many is refused.
fn keys(args: &RawValue) -> Result<serde_json::Value, Error> {
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = BTreeSet<String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let (mut names, mut bytes) = (BTreeSet::new(), 0);
            while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                bytes += name.len();
                names.insert(name);
                if names.len() > ARG_NAMES_MAX || bytes > ARG_NAMES_BYTES_MAX {
                    return Err(de::Error::custom("too many"));
                }
            }
            Ok(names)
        }
    }
    // It was walked when the call came in: there is nothing else that can be wrong with it.
    let mut reader = serde_json::Deserializer::from_str(args.get());
    match aside(args.get().len(), || reader.deserialize_map(Names)) {
        Ok(names) => Ok(names.into_iter().collect()),
        Err(_) => Err(Error::params(
            "/args",
            format!(
                "args has more than {ARG_NAMES_MAX} names or {ARG_NAMES_BYTES_MAX} bytes of them, and the policy is asked about each: \
                 put them one level down, as in {{\"items\": {{...}}}}"
            ),
        )),
    }
}

/// `args`: a JSON object's text, `{}` when absent.
fn object(raw: Option<Box<RawValue>>, pointer: &str) -> Result<Box<RawValue>, Error> {
    match raw {
        Some(raw) if raw.get().starts_with('{') => Ok(raw),
        Some(raw) => {
            // It is one to whoever has sent it.
            let text = raw.get().starts_with('"');
            let no_text = if text {
                ", and not a string with one in it"
            } else {
                ""
            };
            let message = format!("{} must be an object{no_text}", named(pointer));
            Err(Error::params(pointer, message))
        }
        None => {
            RawValue::from_string("{}".into()).map_err(|error| Error::Serialize(Arc::new(error)))
        }
    }
}

/// `timeout_ms`: at least 1; more than the maximum is cut to it.
fn timeout(ms: Option<Whole>, pointer: &str) -> Result<Option<u64>, Error> {
    let ms = ms.map(|Whole(ms)| ms);
    if ms == Some(0) {
        let message = format!("{} must be at least 1 (millisecond)", named(pointer));
        return Err(Error::params(pointer, message));
    }
    Ok(ms)
}

/// The input blobs of a run: all there, each named once.
async fn input_blobs(
    rooms: &Rooms,
    tenant: &str,
    ids: First<String, INPUT_BLOBS_MAX>,
) -> Result<Vec<skillgate_plugin_sdk::model::BlobStat>, Error> {
    let First(ids) = ids;
    if ids.len() > INPUT_BLOBS_MAX {
        return Err(Error::params(
            "/input_blobs",
            format!("a run takes at most {INPUT_BLOBS_MAX} blobs"),
        ));
    }
    let mut stats: Vec<skillgate_plugin_sdk::model::BlobStat> = Vec::with_capacity(ids.len());
    for id in ids {
        if stats.iter().all(|stat| stat.id != id) {
            stats.push(rooms.blobs.stat(tenant, &id).await?);
        }
    }
    Ok(stats)
}

/// Refuses skills that cannot be mounted side by side: their import names would hide each other.
fn mountable(skills: &[Arc<Skill>]) -> Result<(), Error> {
    for (index, skill) in skills.iter().enumerate() {
        for other in &skills[..index] {
            if skill.name() == other.name() {
                return Err(Error::params(
                    format!("/mount_skills/{index}"),
                    format!("{} is mounted twice", skill.name()),
                ));
            }
            if skill.import_name() == other.import_name() {
                return Err(Error::params(
                    format!("/mount_skills/{index}"),
                    format!(
                        "{} and {} have the same import name skills.{}; mount one of them",
                        other.name(),
                        skill.name(),
                        skill.import_name()
                    ),
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
