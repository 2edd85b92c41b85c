//! What the sandbox says of a run, checked again and put into the words of the protocol.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::RunResult;

use super::OUTPUT_BYTES_MAX;
use super::services::Services;
use crate::json::{self, Refused};

/// Longest `summary`, in bytes: the 1000 characters that `runtime.summary` keeps, whatever these are.
const SUMMARY_BYTES_MAX: usize = 4096;

/// Longest `error.message`, in bytes.
const ERROR_BYTES_MAX: usize = 16 * 1024;

/// Longest `error.type`, in bytes.
const ERROR_TYPE_BYTES_MAX: usize = 128;

/// `error.type` of a value that the protocol cannot carry (REQUIREMENTS R6).
const NOT_SERIALIZABLE: &str = "OutputNotSerializable";

/// Instead of an output that its secrets' names make too large.
const WITHHELD: &str = r#""[the output is withheld: with its secrets' values replaced by their names it is over the limit]""#;

/// The result of a run (specification, "Runs"; contract, section 5).
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(super) status: &'static str,
    pub(super) run_id: String,
    summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Box<RawValue>>,
    pub(super) output_blobs: Vec<String>,
    logs_preview: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    logs_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<Failure>,
    pub(super) usage: Usage,
}

/// Why a run failed, in its own words.
#[derive(Debug, Serialize)]
pub(super) struct Failure {
    pub(super) r#type: String,
    message: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Usage {
    pub(super) wall_ms: u64,
    /// Not known of a run that its sandbox gave no result of, or could not count: then the answer does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_ms: Option<u64>,
    /// As `cpu_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peak_memory_bytes: Option<u64>,
}

pub(super) fn failure(kind: &str, message: String) -> RunResult {
    RunResult {
        error_type: kind.to_owned(),
        error_message: message,
        ..RunResult::default()
    }
}

/// `ended`: what the sandbox says of the run, or what the gateway says of one that the sandbox gave no result of.
pub(super) fn answer(
    run_id: String,
    label: &str,
    ended: Result<RunResult, RunResult>,
    services: &Services,
    wall_ms: u64,
) -> Answer {
    let is_counted = ended.is_ok();
    let mut result = ended.unwrap_or_else(|lost| lost);
    let (logs_preview, logs_truncated) = services.logs();
    // Before anything is read from them, cut or logged.
    for text in [
        &mut result.summary,
        &mut result.error_type,
        &mut result.error_message,
    ] {
        if let Cow::Owned(plain) = services.redacted(text) {
            *text = plain;
        }
    }
    // The ids are those that the gateway handed out itself, in their order, whatever the sandbox says.
    let output_blobs = services.created();
    let mut output = None;
    if result.completed && !result.output_spilled {
        match output_of(&result.output_json) {
            Ok(value) => output = value.map(|value| without_secrets(value, services)),
            Err(mut refused) => {
                // It may quote a member's name.
                if let Cow::Owned(plain) = services.redacted(&refused.error_message) {
                    refused.error_message = plain;
                }
                tracing::warn!(
                    run_id,
                    reason = refused.error_message,
                    "an output does not fit"
                );
                let (cpu_us, peak_memory_bytes) = (result.cpu_us, result.peak_memory_bytes);
                result = RunResult {
                    cpu_us,
                    peak_memory_bytes,
                    ..*refused
                };
            }
        }
    }
    let spilled = result.completed && result.output_spilled;
    let error = (!result.completed).then(|| Failure {
        r#type: cut(
            if result.error_type.is_empty() {
                abi::RUN_SANDBOX_ERROR
            } else {
                &result.error_type
            },
            ERROR_TYPE_BYTES_MAX,
        ),
        message: cut(&result.error_message, ERROR_BYTES_MAX),
    });
    let mut summary = if !result.summary.is_empty() {
        result.summary
    } else if let Some(said) = output.as_deref().and_then(said_summary) {
        said
    } else if let Some(error) = &error {
        last_line(error)
    } else {
        format!("{label} completed in {wall_ms} ms")
    };
    summary = cut(&summary, SUMMARY_BYTES_MAX);
    if spilled && let Some(id) = output_blobs.last() {
        summary = format!(
            "{summary} (the output is over {OUTPUT_BYTES_MAX} bytes: it is stored as {id})"
        );
    }
    Answer {
        status: if error.is_none() {
            "completed"
        } else {
            "failed"
        },
        run_id,
        summary,
        output,
        output_blobs,
        logs_preview,
        logs_truncated,
        error,
        usage: Usage::new(
            wall_ms,
            is_counted.then_some((result.cpu_us, result.peak_memory_bytes)),
        ),
    }
}

impl Usage {
    /// `counted`: the microseconds and the bytes that the sandbox says. No run uses nothing: a 0 is what it does not know.
    fn new(wall_ms: u64, counted: Option<(u64, u64)>) -> Self {
        let (cpu_us, peak_memory_bytes) = counted.unwrap_or_default();
        let known = |n: u64| (n != 0).then_some(n);
        Usage {
            wall_ms,
            cpu_ms: known(cpu_us).map(|us| us / 1000),
            peak_memory_bytes: known(peak_memory_bytes),
        }
    }
}

/// The output's text, or the failure that it makes of the run.
fn output_of(json: &[u8]) -> Result<Option<Box<RawValue>>, Box<RunResult>> {
    let broken = |what: &str| {
        let message = format!("the sandbox returned {what}");
        Box::new(failure(abi::RUN_SANDBOX_ERROR, message))
    };
    if json.is_empty() {
        return Ok(None);
    }
    if json.len() > OUTPUT_BYTES_MAX {
        let bytes = json.len();
        return Err(broken(&format!(
            "{bytes} bytes of output, over the limit of {OUTPUT_BYTES_MAX}"
        )));
    }
    let text = std::str::from_utf8(json).map_err(|_| broken("an output that is not UTF-8"))?;
    json::walk(text).map_err(|refused| match refused {
        Refused::Syntax(_) => broken("an output that is not JSON"),
        Refused::Content(why) => Box::new(failure(
            NOT_SERIALIZABLE,
            format!("the output cannot be sent as JSON that every reader reads alike: {why}"),
        )),
    })?;
    let value = RawValue::from_string(text.to_owned());
    value
        .map(Some)
        .map_err(|_| broken("an output that is not JSON"))
}

/// The output, each secret in it replaced. What is too large with that is not sent at all.
fn without_secrets(output: Box<RawValue>, services: &Services) -> Box<RawValue> {
    let Some(mut plain) = services.redacted_json(output.get()) else {
        return output;
    };
    if plain.len() > OUTPUT_BYTES_MAX {
        WITHHELD.clone_into(&mut plain);
    }
    // A text that is no JSON would be a mistake of ours: then nothing is sent.
    RawValue::from_string(plain).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// REQUIREMENTS R7: a top-level string `summary` of a returned object.
fn said_summary(output: &RawValue) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Said {
        summary: String,
    }
    // serde would also take an array for a struct.
    let object = output.get().starts_with('{').then_some(output.get())?;
    serde_json::from_str::<Said>(object)
        .ok()
        .map(|said| said.summary)
        .filter(|summary| !summary.is_empty())
}

fn last_line(error: &Failure) -> String {
    if let Some(line) = line_of_class(error) {
        return line;
    }
    let mut lines = error.message.lines().rev();
    let mut last = lines.by_ref().map(str::trim).find(|line| !line.is_empty());
    // Of a group, which is drawn with all that is in it: its own line stands before the first of these.
    if last.is_some_and(|line| line.starts_with("+----")) {
        let first = lines.find(|line| line.starts_with("  +-+----"));
        let own = first.and_then(|_| lines.next()).unwrap_or_default();
        let own = own.trim_start_matches([' ', '|']).trim_end();
        last = (!own.is_empty()).then_some(own);
    }
    let last = last.unwrap_or(&error.r#type);
    // A traceback names the class with its module: `urllib.error.URLError: no host`.
    let (class, said) = last.split_once(": ").unwrap_or((last, ""));
    match class.rsplit('.').next() {
        Some(name) if name == error.r#type && said.is_empty() => name.to_owned(),
        Some(name) if name == error.r#type => format!("{name}: {said}"),
        _ => format!("{}: {last}", error.r#type),
    }
}

/// The last line that begins with the class, as a traceback has it: behind it stand the other lines of the exception's text,
/// and its notes.
fn line_of_class(error: &Failure) -> Option<String> {
    let name = error.r#type.as_str();
    let mut below = "";
    for line in error.message.lines().rev() {
        let (class, said) = match line.split_once(':') {
            // A text that begins with an end of line.
            Some((class, said)) if said.trim().is_empty() => (class, below),
            Some((class, said)) => (class, said.trim()),
            None => (line.trim_end(), ""),
        };
        // With its module it is longer: `urllib.error.URLError: no host`.
        let module = class.strip_suffix(name);
        let is_it = module.is_some_and(|module| module.is_empty() || module.ends_with('.'));
        if is_it && !line.starts_with(char::is_whitespace) {
            return Some(match said {
                "" => name.to_owned(),
                said => format!("{name}: {said}"),
            });
        }
        if !line.trim().is_empty() {
            below = line.trim();
        }
    }
    None
}

/// At most `bytes_max` bytes, cut between characters, with a sign that something is missing.
fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes_max - '…'.len_utf8());
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::{Failure, OUTPUT_BYTES_MAX, Usage, cut, last_line, output_of, said_summary};

    #[test]
    fn what_a_sandbox_could_not_count_is_not_zero() {
        for (counted, expected) in [
            (
                Some((1500, 9)),
                r#"{"wall_ms":5,"cpu_ms":1,"peak_memory_bytes":9}"#,
            ),
            (
                Some((700, 9)),
                r#"{"wall_ms":5,"cpu_ms":0,"peak_memory_bytes":9}"#,
            ),
            (Some((700, 0)), r#"{"wall_ms":5,"cpu_ms":0}"#),
            (Some((0, 0)), r#"{"wall_ms":5}"#),
            (None, r#"{"wall_ms":5}"#),
        ] {
            let usage = Usage::new(5, counted);
            assert_eq!(serde_json::to_string(&usage).unwrap(), expected);
        }
    }

    #[test]
    fn outputs_are_checked_again() {
        let fits = format!("\"{}\"", "x".repeat(OUTPUT_BYTES_MAX - 2));
        assert!(output_of(fits.as_bytes()).is_ok());
        let over = format!("\"{}\"", "x".repeat(OUTPUT_BYTES_MAX - 1));
        assert!(
            output_of(over.as_bytes())
                .unwrap_err()
                .error_message
                .contains("4097 bytes")
        );
        for bad in [
            &b"{"[..],
            b"NaN",
            b"\xff",
            b"1 2",
            br#"{"a":1,"a":2}"#,
            br#""\ud800""#,
        ] {
            assert!(output_of(bad).is_err(), "{bad:?}");
        }
        assert!(matches!(output_of(b""), Ok(None)), "nothing was returned");
        let huge = output_of(format!("1{}", "0".repeat(400)).as_bytes());
        assert_eq!(huge.unwrap_err().error_type, "OutputNotSerializable");
    }

    #[test]
    fn summaries() {
        let raw = |text: &str| serde_json::value::RawValue::from_string(text.to_owned()).unwrap();
        assert_eq!(
            said_summary(&raw(r#"{"summary":"3 rows","n":3}"#)).as_deref(),
            Some("3 rows")
        );
        assert_eq!(said_summary(&raw(r#"{"summary":5}"#)), None);
        assert_eq!(said_summary(&raw(r#"["summary"]"#)), None);
        let failed = |kind: &str, message: &str| {
            last_line(&Failure {
                r#type: kind.into(),
                message: message.into(),
            })
        };
        assert_eq!(
            failed("ValueError", "Traceback\n  x\nValueError: bad row\n"),
            "ValueError: bad row"
        );
        let group = "\
  + Exception Group Traceback (most recent call last):
  |   File \"/tmp/run_code.py\", line 2, in main
  | ExceptionGroup: of 2 rows (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: row 1
    +---------------- 2 ----------------
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | ValueError: row 2
      +------------------------------------
";
        assert_eq!(
            failed("ExceptionGroup", group),
            "ExceptionGroup: of 2 rows (2 sub-exceptions)"
        );
        assert_eq!(failed("X", "+----------"), "X", "what is no such drawing");
        assert_eq!(
            failed("URLError", "urllib.error.URLError: <no: host>"),
            "URLError: <no: host>"
        );
        assert_eq!(
            failed("KeyboardInterrupt", "KeyboardInterrupt"),
            "KeyboardInterrupt"
        );
        assert_eq!(
            failed("Timeout", "the run was ended"),
            "Timeout: the run was ended"
        );
    }

    #[test]
    fn a_summary_is_the_line_with_the_class_and_not_what_follows_it() {
        let failed = |kind: &str, message: &str| {
            last_line(&Failure {
                r#type: kind.into(),
                message: message.into(),
            })
        };
        for (message, summary) in [
            (
                "Traceback...\nValueError: bad\nnote here",
                "ValueError: bad",
            ),
            ("Traceback...\nValueError\nnote here", "ValueError"),
            (
                "skills.a.b.ValueError: bad\r\nsecond\n\n",
                "ValueError: bad",
            ),
            // The one that left the code, and not its cause.
            (
                "ValueError: first\n\nThe above exception...\n\nTraceback\n  x\nValueError: second\nnote",
                "ValueError: second",
            ),
            // A text that begins with an end of line.
            ("ValueError: \n\n  rows:\n  1, 2", "ValueError: rows:"),
            // A line that only looks like it: indented, or of another class.
            (
                "ValueError: bad\n  ValueError: of what was read\n  app.ValueError: and more\nMyValueError: x",
                "ValueError: bad",
            ),
            (
                "nothing that has the class\n",
                "ValueError: nothing that has the class",
            ),
            ("", "ValueError"),
        ] {
            assert_eq!(failed("ValueError", message), summary, "{message:?}");
        }
        let is_full = "OSError: [Errno 28] No space left on device";
        assert_eq!(failed("DiskFull", is_full), format!("DiskFull: {is_full}"));
        // In a time that grows with the text alone.
        let hostile = "ValueErro: ".repeat(1_000_000) + &"\nx.ValueError x:".repeat(1_000_000);
        assert!(failed("ValueError", &hostile).starts_with("ValueError: "));
    }

    #[test]
    fn cuts_between_characters() {
        for max in 3..20 {
            let text = cut("aé漢🙂 und so weiter", max);
            assert!(text.len() <= max);
        }
        assert_eq!(cut("short", 5), "short");
    }
}
