//! The job frame: what the guest is to do. Made for one run, sent through its channel, wiped. Beside it what the run need
//! not compile itself.

use serde::Serialize;
use serde_json::value::RawValue;
use skillgate_plugin_sdk::model::{Error, RunRequest};
use skillgate_plugin_sdk::{RunServices, Secret, abi};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::channel::JOB_BYTES_MAX;
use crate::codes::{self, Code};
use crate::isolate::ENVIRONMENT;

/// What programs look at to find a proxy, in both cases that are in use: curl takes `http_proxy` in lower case alone.
const PROXY: [&str; 6] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// The run's gate: [`crate::isolate::GATE_PORT`].
const PROXY_URL: &str = "http://127.0.0.1:3128";
const RUN_ID: &str = "SKILLGATE_RUN_ID";

/// What a job's text begins with room for.
const TEXT_BYTES: usize = 4096;

#[derive(Serialize)]
struct Job<'a> {
    run_id: &'a str,
    timeout_ms: u64,
    /// When that is over, by CLOCK_MONOTONIC, in nanoseconds: it has begun before the job is read.
    deadline_ns: u64,
    code: Option<&'a str>,
    skill: Option<&'a str>,
    function: &'a str,
    args: &'a RawValue,
    skills: Vec<Skill<'a>>,
    blobs: &'a [String],
    env: BTreeMap<&'a str, &'a str>,
    secrets: BTreeMap<&'a str, &'a str>,
    output_bytes: u64,
    /// How many it divides its work by, should the machine have more.
    processors: u32,
    /// The skill is to be compiled and not to be run.
    compile: bool,
    /// Of the code frame.
    compiled: codes::Index<'a>,
}

#[derive(Serialize)]
struct Skill<'a> {
    name: &'a str,
    version: &'a str,
    entrypoint: &'a str,
    function: &'a str,
}

/// Bytes that may hold a secret: overwritten when they are let go.
pub(crate) struct Wiped(pub(crate) Vec<u8>);

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.fill(0);
        // Without this the compiler may leave the line above out.
        std::hint::black_box(&self.0);
    }
}

/// A text that grows and leaves no copy of itself behind, as a vector does where it lay before.
struct Growing(Wiped);

impl io::Write for Growing {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let text = &self.0.0;
        let needed = text.len() + data.len();
        if needed > text.capacity() {
            let mut larger = Vec::with_capacity(needed.max(2 * text.capacity()));
            larger.extend_from_slice(text);
            self.0 = Wiped(larger);
        }
        self.0.0.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What there is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work<'a> {
    /// The request, with code that its skills have.
    Run(&'a [Arc<Code>]),
    /// To compile its skill.
    Compile,
}

/// The payloads of a run's first frames.
pub(crate) struct Frames {
    pub(crate) job: Wiped,
    /// Empty: there is none.
    pub(crate) code: Vec<u8>,
}

/// Checks the request and writes what is sent.
pub(crate) fn frames(
    request: &RunRequest,
    blobs: &[String],
    services: &dyn RunServices,
    work: Work<'_>,
    deadline_ns: u64,
    processors: u32,
) -> Result<Frames, Error> {
    let args: &RawValue = serde_json::from_slice(&request.args_json)
        .map_err(|e| invalid(format!("the arguments are not JSON: {e}")))?;
    if !args.get().trim_start().starts_with('{') {
        return Err(invalid("the arguments are not a JSON object".into()));
    }
    let run_id = request.run_id.as_str();
    let mut env: BTreeMap<_, _> = of_every_run().chain([(RUN_ID, run_id)]).collect();
    if request.network == abi::NET_GATE {
        env.extend(PROXY.iter().map(|name| (*name, PROXY_URL)));
        // What runs inside, beside the code that asks for it: there is no way to it through the gate.
        env.extend(
            NO_PROXY
                .iter()
                .map(|name| (*name, "localhost,127.0.0.1,::1")),
        );
    }
    for (name, value) in &request.env {
        check_variable(name, value)?;
        if env.insert(name, value).is_some() {
            return Err(invalid(format!(
                "the environment variable {name} is the sandbox's own, or comes twice"
            )));
        }
    }
    let values = request
        .secrets
        .iter()
        .map(|name| secret(name, services))
        .collect::<Result<Vec<_>, _>>()?;
    let mut secrets = BTreeMap::new();
    for (name, value) in request.secrets.iter().zip(&values) {
        let value = std::str::from_utf8(value).map_err(|_| {
            invalid(format!(
                "the secret {name} is not UTF-8 and cannot be an environment variable"
            ))
        })?;
        check_variable(name, value)?;
        if env.contains_key(name.as_str()) || secrets.insert(name.as_str(), value).is_some() {
            return Err(invalid(format!(
                "the secret {name} has the name of another variable"
            )));
        }
    }
    let skill = (!request.skill.is_empty()).then_some(request.skill.as_str());
    let (compiled, code_bytes) = match work {
        Work::Run(codes) => codes::together(codes),
        Work::Compile => Default::default(),
    };
    let job = Job {
        run_id,
        timeout_ms: request.limits.wall_ms,
        deadline_ns,
        // A run of a skill has no code; code may be empty, which defines nothing to call.
        code: skill.is_none().then_some(request.code.as_str()),
        skill,
        function: &request.function,
        args,
        skills: request
            .skills
            .iter()
            .map(|s| Skill {
                name: &s.name,
                version: &s.version,
                entrypoint: &s.entrypoint,
                function: &s.function,
            })
            .collect(),
        blobs,
        env,
        secrets,
        output_bytes: request.limits.output_bytes,
        processors,
        compile: matches!(work, Work::Compile),
        compiled,
    };
    let large = request.args_json.len() + request.code.len();
    let mut text = Growing(Wiped(Vec::with_capacity(TEXT_BYTES + large)));
    serde_json::to_writer(&mut text, &job).map_err(|e| invalid(e.to_string()))?;
    let text = text.0;
    if text.0.len() >= JOB_BYTES_MAX {
        return Err(Error::new(abi::E_OUT_OF_RANGE, format!("code, arguments and environment together are {} bytes, where {JOB_BYTES_MAX} are possible", text.0.len())).not_executed());
    }
    Ok(Frames {
        job: text,
        code: code_bytes,
    })
}

fn secret(name: &str, services: &dyn RunServices) -> Result<Secret, Error> {
    services.secret(name).map_err(Error::not_executed)
}

/// Name and value of what an interpreter has been started with: its environment becomes that of the job.
fn of_every_run<'a>() -> impl Iterator<Item = (&'a str, &'a str)> {
    ENVIRONMENT.iter().filter_map(|both| both.split_once('='))
}

/// Names that an interpreter or the dynamic loader would act on are not for a request to set.
fn check_variable(name: &str, value: &str) -> Result<(), Error> {
    let first = name
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !first || name.len() > 255 || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(invalid(format!(
            "{name:?} is not a name of an environment variable"
        )));
    }
    if ["LD_", "PYTHON", "GLIBC_", "MALLOC_"]
        .iter()
        .any(|p| name.starts_with(p))
        || PROXY
            .iter()
            .chain(&NO_PROXY)
            .any(|proxy| proxy.eq_ignore_ascii_case(name))
        || of_every_run().any(|(own, _)| own == name)
        || name == RUN_ID
    {
        return Err(invalid(format!(
            "the environment variable {name} cannot be set from outside"
        )));
    }
    if value.contains('\0') {
        return Err(invalid(format!(
            "the environment variable {name} contains a NUL byte"
        )));
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(abi::E_INVALID_ARGUMENT, message).not_executed()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write as _;

    use super::*;
    use crate::isolate::GATE_PORT;

    #[test]
    fn a_run_is_told_what_it_is_started_with_and_where_its_gate_is() {
        let own: Vec<_> = of_every_run().collect();
        let expected = [
            ("HOME", "/workspace"),
            ("PATH", "/usr/bin"),
            ("LANG", "C.UTF-8"),
            ("TMPDIR", "/tmp"),
        ];
        assert_eq!(own, expected);
        for name in ["HOME", "PATH", "LANG", "TMPDIR", "SKILLGATE_RUN_ID"] {
            assert!(check_variable(name, "").is_err(), "{name}");
        }
        assert_eq!(PROXY_URL, format!("http://127.0.0.1:{GATE_PORT}"));
    }

    /// Who writes another sandbox has that page alone.
    #[test]
    fn the_page_of_the_guest_names_all_of_a_job() {
        let job = Job {
            run_id: "",
            timeout_ms: 0,
            deadline_ns: 0,
            code: None,
            skill: None,
            function: "",
            args: RawValue::NULL,
            skills: vec![Skill {
                name: "",
                version: "",
                entrypoint: "",
                function: "",
            }],
            blobs: &[],
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            output_bytes: 0,
            processors: 0,
            compile: false,
            compiled: codes::Index::default(),
        };
        let job = serde_json::to_value(&job).unwrap();
        let page = include_str!("../../guest/README.md");
        for member in job.as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{member}`")), "{member}");
        }
        for member in job["skills"][0].as_object().unwrap().keys() {
            assert!(page.contains(&format!("\"{member}\"")), "{member}");
        }
    }

    #[test]
    fn a_text_grows_by_being_made_anew() {
        let mut text = Growing(Wiped(Vec::with_capacity(4)));
        let mut rooms = BTreeSet::new();
        for n in 0..100 {
            text.write_all(&[n; 7]).unwrap();
            rooms.insert(text.0.0.capacity());
        }
        let expected: Vec<u8> = (0..100).flat_map(|n| [n; 7]).collect();
        assert_eq!(text.0.0, expected);
        assert!(rooms.len() < 10, "{rooms:?}");
    }
}
