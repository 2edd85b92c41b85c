//! `skillgate policy`: for those who write the rules, and for those who ask why.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::failure::Failure;
use super::{ConfigFile, Exit, Output, OutputFormat, plain, policy_log, print_json};
use crate::config::Config;
use crate::json;
use crate::policy::BundleError;
use crate::policy::inspect::{self, Candidate, Case, Coverage, Opinion, TestOutcome};

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Try a bundle as the gateway does before it takes one (exit code 1 if it would be refused)
    ///
    /// With policy.keys in the configuration it must be signed by one of them. Its metadata.sequence is compared with what
    /// was enforced last where the gateway has kept that: in its plugins.state_dir, on its own host.
    Check(CheckArgs),
    /// Run the tests of a bundle: every rule `test_...` (exit code 1 if one fails)
    Test(TestArgs),
    /// Ask a bundle about an input document (exit code 1 if there is no valid decision)
    Eval(EvalArgs),
    /// Say which rule decided, and why, for a recorded decision or the run that it allowed
    Explain(policy_log::ExplainArgs),
    /// Replay recorded decisions against a candidate and print what would change (exit code 1 if anything would)
    Simulate(policy_log::SimulateArgs),
    /// Try a bundle from standard input; for the gateway itself
    #[command(hide = true)]
    Trial,
}

/// Which bundle.
#[derive(Debug, Args)]
pub(super) struct BundleArgs {
    /// A directory of Rego, or an OPA bundle (.tar.gz) [default: policy.path]
    path: Option<PathBuf>,
    #[command(flatten)]
    pub(super) config: ConfigFile,
    #[command(flatten)]
    pub(super) format: OutputFormat,
}

impl BundleArgs {
    pub(super) fn resolve(&self) -> Result<(PathBuf, Config), Failure> {
        let config = self.config.load_for_command()?;
        let path = self
            .path
            .clone()
            .unwrap_or_else(|| config.policy.path.clone());
        Ok((path, config))
    }
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    bundle: BundleArgs,
    /// Do not look at the signature: for a bundle that is not signed yet
    #[arg(long)]
    unsigned: bool,
}

#[derive(Debug, Args)]
pub(super) struct TestArgs {
    #[command(flatten)]
    bundle: BundleArgs,
    /// Say which lines of the rules the tests did not reach
    #[arg(long)]
    coverage: bool,
    /// Name the tests that passed, too
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Debug, Args)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    bundle: BundleArgs,
    /// An input document; or a record or golden decision with one in `input`
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
}

pub(super) fn run(command: &PolicyCommand, out: &mut dyn Write) -> Result<Exit, Failure> {
    match command {
        PolicyCommand::Check(args) => check(args, out),
        PolicyCommand::Test(args) => test(args, out),
        PolicyCommand::Eval(args) => eval(args, out),
        PolicyCommand::Explain(args) => policy_log::explain(args, out),
        PolicyCommand::Simulate(args) => policy_log::simulate(args, out),
        PolicyCommand::Trial => {
            crate::policy::child::serve(out)?;
            Ok(Exit::Fine)
        }
    }
}

/// A bundle that cannot be used is a finding about the bundle.
pub(super) fn unusable(error: &BundleError) -> Failure {
    Failure::new(Exit::Findings, error.to_string())
}

fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

pub(super) fn load(path: &Path, config: &Config) -> Result<Candidate, Failure> {
    Candidate::load(path, config).map_err(|error| unusable(&error))
}

/// What was not done is said, so that nobody takes it for done.
const UNSIGNED: &str = "note: the signature was not looked at (--unsigned): the gateway takes this bundle only when a key of policy.keys has signed it";

fn check(args: &CheckArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (path, config) = args.bundle.resolve()?;
    let outcome = inspect::check(&path, &config, args.unsigned);
    let needs_signature = !config.policy.keys.is_empty();
    match (args.bundle.format.output, outcome) {
        (Output::Text, Ok(report)) => {
            writeln!(
                out,
                "{}: fine: revision {}, {} files of rules, {} tests, {} golden decisions",
                plain(&path.display().to_string()),
                plain(&report.revision),
                report.modules,
                report.tests,
                report.goldens
            )?;
            for warning in &report.warnings {
                writeln!(out, "warning: {}", plain(warning))?;
            }
            if needs_signature && args.unsigned {
                writeln!(out, "{UNSIGNED}")?;
            }
            Ok(Exit::Fine)
        }
        (Output::Text, Err(error)) => {
            writeln!(out, "{}", plain_lines(&error.to_string()))?;
            Ok(Exit::Findings)
        }
        (Output::Json, Ok(report)) => {
            let signature = match (needs_signature, args.unsigned) {
                (false, _) => "not_needed",
                (true, true) => "not_looked_at",
                // Else it had not passed.
                (true, false) => "good",
            };
            print_json(
                out,
                &json!({ "ok": true, "path": path, "report": report, "signature": signature, "problems": [] }),
            )?;
            Ok(Exit::Fine)
        }
        (Output::Json, Err(error)) => {
            let text = error.to_string();
            let problems: Vec<&str> = text.lines().collect();
            print_json(
                out,
                &json!({ "ok": false, "path": path, "problems": problems }),
            )?;
            Ok(Exit::Findings)
        }
    }
}

// === test ===

fn test(args: &TestArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (path, _) = args.bundle.resolve()?;
    let (cases, coverage) =
        inspect::test(&path, args.coverage).map_err(|error| unusable(&error))?;
    let ran = cases
        .iter()
        .filter(|case| case.outcome != TestOutcome::Skipped);
    let passed = ran
        .clone()
        .filter(|case| case.outcome == TestOutcome::Passed)
        .count();
    let total = ran.count();
    match args.bundle.format.output {
        Output::Json => {
            let tests: Vec<Value> = cases.iter().map(as_json).collect();
            let coverage: Vec<Value> = coverage.iter().map(coverage_json).collect();
            print_json(
                out,
                &json!({ "ok": passed == total, "passed": passed, "total": total, "tests": tests, "coverage": coverage }),
            )?;
        }
        Output::Text => {
            let mut said = false;
            for case in &cases {
                if args.verbose
                    || matches!(case.outcome, TestOutcome::Failed | TestOutcome::Error(_))
                {
                    print_case(case, out)?;
                    said = true;
                }
            }
            if said {
                writeln!(out, "{}", "-".repeat(80))?;
            }
            writeln!(out, "PASS: {passed}/{total}")?;
            if passed < total {
                writeln!(out, "FAIL: {}/{total}", total - passed)?;
            }
            coverage
                .iter()
                .try_for_each(|file| print_coverage(file, out))?;
        }
    }
    Ok(if passed == total {
        Exit::Fine
    } else {
        Exit::Findings
    })
}

/// `policies/tests/a_test.rego:12: data.a.test_b: FAIL (1.2ms)`: a place that editors open, then what `opa test` says.
fn print_case(case: &Case, out: &mut dyn Write) -> Result<(), Failure> {
    let word = match &case.outcome {
        TestOutcome::Passed => "PASS",
        TestOutcome::Failed => "FAIL",
        TestOutcome::Error(_) => "ERROR",
        TestOutcome::Skipped => "SKIPPED",
    };
    let place = plain(&case.file);
    writeln!(
        out,
        "{place}:{}: {}.{}: {word} ({:.1}ms)",
        case.line,
        plain(&case.package),
        plain(&case.name),
        case.took.as_secs_f64() * 1e3
    )?;
    if let TestOutcome::Error(why) = &case.outcome {
        for line in why.lines() {
            writeln!(out, "  {}", plain(line))?;
        }
    }
    Ok(())
}

fn as_json(case: &Case) -> Value {
    let (outcome, error) = match &case.outcome {
        TestOutcome::Passed => ("pass", None),
        TestOutcome::Failed => ("fail", None),
        TestOutcome::Error(why) => ("error", Some(why)),
        TestOutcome::Skipped => ("skipped", None),
    };
    json!({
        "package": case.package, "name": case.name, "file": case.file, "line": case.line,
        "outcome": outcome, "error": error, "took_us": case.took.as_micros() as u64,
    })
}

fn print_coverage(file: &Coverage, out: &mut dyn Write) -> Result<(), Failure> {
    let lines: Vec<String> = file.not_covered.iter().map(ToString::to_string).collect();
    let all = file.covered.len() + file.not_covered.len();
    let missing = match lines.is_empty() {
        true => String::new(),
        false => format!(", not reached: {}", lines.join(", ")),
    };
    let reached = file.covered.len();
    Ok(writeln!(
        out,
        "{}: {reached} of {all} lines{missing}",
        plain(&file.file)
    )?)
}

fn coverage_json(file: &Coverage) -> Value {
    json!({ "file": file.file, "covered": file.covered, "not_covered": file.not_covered })
}

// === eval ===

fn eval(args: &EvalArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (path, config) = args.bundle.resolve()?;
    let candidate = load(&path, &config)?;
    let cannot = |why: String| {
        Failure::new(Exit::Usage, format!("{}: {why}", args.input.display()))
            .hint("policies/tests/decisions/*.json are examples of input documents")
    };
    let text = std::fs::read_to_string(&args.input).map_err(|error| cannot(error.to_string()))?;
    // Of a member that is there twice another evaluator may see the other one.
    json::walk(&text).map_err(|refused| cannot(refused.why()))?;
    if let Some(number) = json::rounded_integer(&text) {
        let number = json::short(number);
        return Err(cannot(format!(
            "the integer {number} is beyond 64 bits: the gateway puts no such question to its rules"
        )));
    }
    let mut input: Value =
        serde_json::from_str(&text).map_err(|error| cannot(error.to_string()))?;
    // A golden decision, or a line of the audit log.
    if input.get("request").is_none() && input.get("input").is_some() {
        input = input["input"].take();
    }
    if !input.is_object() {
        return Err(cannot("an input document is a JSON object".into()));
    }
    let opinion = candidate.opinion(&input);
    match args.bundle.format.output {
        Output::Json => print_json(out, &opinion)?,
        Output::Text => {
            print_opinion(&opinion, out)?;
            if let Some(decision) = &opinion.decision {
                print_json(out, decision)?;
            }
        }
    }
    Ok(match (opinion.decision, opinion.interpreter) {
        (Some(_), None) => Exit::Fine,
        _ => Exit::Findings,
    })
}

pub(super) fn print_opinion(opinion: &Opinion, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{}", if opinion.allow { "allowed" } else { "denied" })?;
    print_reasons(&opinion.reasons, out)?;
    if opinion.allow {
        print_grants(&json!(opinion.network), &json!(opinion.secrets), out)?;
    }
    if let Some(why) = &opinion.interpreter {
        let why = plain(why);
        writeln!(
            out,
            "  the interpreter, which gives the second opinion (policy.confirm), says: {why}"
        )?;
    }
    Ok(())
}

pub(super) fn print_reasons(reasons: &[Value], out: &mut dyn Write) -> Result<(), Failure> {
    for reason in reasons {
        let text = |name: &str| plain(reason[name].as_str().unwrap_or_default());
        writeln!(out, "  {}: {}", text("code"), text("message"))?;
    }
    Ok(())
}

pub(super) fn print_grants(
    network: &Value,
    secrets: &Value,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    for (what, list) in [("network", network), ("secret", secrets)] {
        let names: Vec<_> = list
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(plain)
            .collect();
        let names = if names.is_empty() {
            "none".into()
        } else {
            names.join(", ")
        };
        writeln!(out, "  granted {what}: {names}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::{Exit, run};

    #[test]
    fn an_input_is_an_object_that_every_evaluator_reads_alike() {
        let policies = concat!(env!("CARGO_MANIFEST_DIR"), "/policies");
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        for (text, why) in [
            (
                r#"{"request":{"method":"a","method":"b"}}"#,
                "\"method\" is there twice",
            ),
            (r#"{"input":[]}"#, "an input document is a JSON object"),
            ("[]", "an input document is a JSON object"),
            ("{", "EOF"),
        ] {
            std::fs::write(path, text).unwrap();
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let args = ["skillgate", "policy", "eval", policies, "--input", path];
            let exit = run(args.map(OsString::from), &mut out, &mut err);
            let err = String::from_utf8(err).unwrap();
            assert_eq!((exit, out.len()), (Exit::Usage, 0), "{text}: {err}");
            let said = err.lines().next().unwrap();
            assert!(said.contains(path) && said.contains(why), "{text}: {err}");
        }
    }
}
