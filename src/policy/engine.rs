//! The rules, compiled: one immutable set, asked by any number of requests at once.
//!
//! A decision is made on regorus's virtual machine, in a machine of its own, within a number of instructions. The
//! interpreter decides again where a second opinion is wanted: the machine swallows errors of built-in functions and
//! takes the last of two conflicting values, the interpreter fails on both.

use std::fmt;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::vm::VmError;
use regorus::rvm::{Program, RegoVM};
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{CompiledPolicy, Engine, Value};

use super::bundle::Bundle;
use super::decision::ENTRY;
use super::memo;

/// The last resort when a machine stands still; the number of instructions is what bounds a decision. Wide, because a
/// busy host may take a thread away for long.
pub(super) const WALL_MAX: Duration = Duration::from_secs(2);
/// Steps between two looks at the clock.
const CLOCK_EVERY: NonZeroU32 = NonZeroU32::new(4096).expect("not zero");
/// Compiled patterns that regorus keeps. Its own default of 128 makes a policy with more of them 12 times slower.
const PATTERNS_MAX: usize = 65_536;

/// Why there is no decision. Each of them is a denial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The entry is undefined for this input.
    Undefined,
    /// The decision is not what the contract says.
    Malformed(String),
    /// The evaluation failed.
    Error(String),
    /// It took more instructions, or more time, than it may.
    Limit,
    /// The engine panicked.
    Panic,
    /// The two engines do not agree.
    EngineMismatch(String),
    /// There is no policy, or what was decided could not be recorded.
    Unavailable(String),
}

impl Fault {
    /// Stable: part of the contract.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Fault::Undefined => "policy.undefined",
            Fault::Malformed(_) => "policy.malformed",
            Fault::Error(_) => "policy.error",
            Fault::Limit => "policy.limit",
            Fault::Panic => "policy.panic",
            Fault::EngineMismatch(_) => "policy.engine_mismatch",
            Fault::Unavailable(_) => "policy.unavailable",
        }
    }

    /// For whoever asked: what happened and what to do, nothing of the policy's inside.
    pub(super) fn message(&self) -> &'static str {
        match self {
            Fault::Undefined | Fault::Malformed(_) | Fault::Error(_) | Fault::Panic => {
                "the policy gave no valid decision on this call, so it is refused; repeating it will not help: tell the operator the decision_id"
            }
            Fault::Limit => {
                "the policy could not decide this call within its limit, so it is refused; ask for less at once, or tell the operator the decision_id"
            }
            Fault::EngineMismatch(_) => {
                "two evaluations of the policy disagree on this call, so it is refused; tell the operator the decision_id"
            }
            Fault::Unavailable(_) => {
                "no decision can be made or recorded now, so the call is refused; try again later"
            }
        }
    }

    /// Whether the same call may get another answer later without anybody changing the policy.
    pub(super) fn is_retryable(&self) -> bool {
        matches!(self, Fault::Limit | Fault::Unavailable(_))
    }
}

impl fmt::Display for Fault {
    /// For the operator.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Undefined => write!(f, "{ENTRY} is undefined for this input"),
            Fault::Malformed(why) => write!(f, "the decision is malformed: {why}"),
            Fault::Error(why) => write!(f, "the evaluation failed: {why}"),
            Fault::Limit => write!(
                f,
                "the evaluation took more than policy.instruction_budget, or longer than {} s",
                WALL_MAX.as_secs()
            ),
            Fault::Panic => f.write_str("the engine panicked"),
            Fault::EngineMismatch(why) => {
                write!(f, "virtual machine and interpreter disagree: {why}")
            }
            Fault::Unavailable(why) => f.write_str(why),
        }
    }
}

/// Why a bundle could not be compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CompileError(pub(super) String);

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A compiled bundle. Cheap to share, never changed.
pub(super) struct PolicySet {
    pub(super) revision: String,
    /// sha256 over everything that was loaded.
    pub(super) digest: String,
    /// `metadata.sequence` of the manifest.
    pub(super) sequence: Option<u64>,
    /// Whether a rule may see which call it is asked about.
    pub(super) may_see_id: bool,
    program: Arc<Program>,
    compiled: CompiledPolicy,
    data: Value,
    interpreter: Engine,
}

impl fmt::Debug for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicySet")
            .field("revision", &self.revision)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl PolicySet {
    /// Parses and compiles everything but the tests. Compiling for the virtual machine finds what parsing does not:
    /// unknown functions, unsafe variables.
    pub(super) fn compile(bundle: &Bundle) -> Result<Self, CompileError> {
        catch_unwind(AssertUnwindSafe(|| Self::compile_unguarded(bundle)))
            .unwrap_or_else(|_| Err(CompileError("the compiler panicked".into())))
    }

    fn compile_unguarded(bundle: &Bundle) -> Result<Self, CompileError> {
        regorus::cache::configure(regorus::cache::Config {
            regex: PATTERNS_MAX,
            glob: PATTERNS_MAX,
        });
        let mut engine = engine(bundle, false).map_err(CompileError)?;
        let compiled = engine
            .compile_with_entrypoint(&ENTRY.into())
            .map_err(|error| CompileError(error.to_string().trim().to_owned()))?;
        let program = Compiler::compile_from_policy(&compiled, &[ENTRY])
            .map_err(|error| CompileError(error.to_string()))?;
        let data = engine.get_data();
        let set = PolicySet {
            revision: bundle.revision().to_owned(),
            digest: bundle.digest().to_owned(),
            sequence: bundle.sequence(),
            may_see_id: memo::may_see_id(
                bundle.modules().iter().filter(|module| !module.is_test()),
            ),
            program,
            compiled,
            data,
            interpreter: engine,
        };
        // A rule and a datum of the same name are found when the two are put together.
        set.machine(1)
            .map_err(|error| CompileError(error.to_string()))?;
        Ok(set)
    }

    /// Names of the built-in functions that a decision can reach.
    pub(super) fn builtins(&self) -> impl Iterator<Item = &str> {
        self.program
            .builtin_info_table
            .iter()
            .map(|info| info.name.as_str())
    }

    fn machine(&self, instructions_max: u64) -> Result<RegoVM, VmError> {
        let mut machine = RegoVM::new_with_policy(self.compiled.clone());
        machine.load_program(self.program.clone());
        machine.set_max_instructions(usize::try_from(instructions_max).unwrap_or(usize::MAX));
        machine.set_strict_builtin_errors(true);
        machine.set_execution_timer_config(Some(timer()));
        machine.set_data(self.data.clone())?;
        Ok(machine)
    }

    /// Asks the virtual machine.
    pub(super) fn decide(&self, input: Value, instructions_max: u64) -> Result<Value, Fault> {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut machine = self.machine(instructions_max)?;
            machine.set_input(input);
            machine.execute_entry_point_by_index(0)
        }));
        match outcome {
            Ok(Ok(Value::Undefined)) => Err(Fault::Undefined),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(
                VmError::InstructionLimitExceeded { .. } | VmError::TimeLimitExceeded { .. },
            )) => Err(Fault::Limit),
            Ok(Err(error)) => Err(Fault::Error(error.to_string())),
            Err(_) => Err(Fault::Panic),
        }
    }

    /// Asks the interpreter: about five times slower, and strict where the virtual machine is not.
    pub(super) fn interpret(&self, input: Value) -> Result<Value, Fault> {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut engine = self.interpreter.clone();
            engine.set_input(input);
            engine.eval_rule(ENTRY.to_owned())
        }));
        match outcome {
            Ok(Ok(Value::Undefined)) => Err(Fault::Undefined),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                let text = error.to_string().trim().to_owned();
                if text.contains("time limit") {
                    Err(Fault::Limit)
                } else {
                    Err(Fault::Error(text))
                }
            }
            Err(_) => Err(Fault::Panic),
        }
    }
}

/// An interpreter with a bundle in it; the tests' files only on demand.
pub(super) fn engine(bundle: &Bundle, with_tests: bool) -> Result<Engine, String> {
    let mut engine = Engine::new();
    engine.set_strict_builtin_errors(true);
    engine.set_execution_timer_config(timer());
    for module in bundle.modules() {
        if with_tests || !module.is_test() {
            engine
                .add_policy(module.path.clone(), module.text.clone())
                .map_err(|error| error.to_string().trim().to_owned())?;
        }
    }
    for data in bundle.data() {
        engine
            .add_data(data.clone())
            .map_err(|error| format!("data.json: {}", error.to_string().trim()))?;
    }
    Ok(engine)
}

/// An error of the interpreter's, which comes with an excerpt of the rules, as `FILE:LINE:COLUMN: what`.
pub(super) fn on_one_line(error: &str) -> String {
    let place = error
        .lines()
        .find_map(|line| line.trim().strip_prefix("--> "));
    let what = error
        .lines()
        .find_map(|line| line.trim().strip_prefix("error: "));
    match (place, what) {
        (Some(place), Some(what)) => format!("{place}: {what}"),
        _ => error.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

fn timer() -> ExecutionTimerConfig {
    ExecutionTimerConfig {
        limit: WALL_MAX,
        check_interval: CLOCK_EVERY,
    }
}
