//! The kit's own process: it never runs anything of the plugin. One case after the other, each with a watchdog.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use skillgate_plugin_host::{Isolation, inspect};

use crate::cases::{CASES, Case, Needs};
use crate::watchdog::{END_LIMIT, End, ORDERS, Orders, Waited, wait_for, watch};
use crate::{CaseReport, Job, KitError, Outcome, Report, Settings, Status, Verdict, words};

/// What is demanded when a case's process has ended without a verdict, and what to do.
const RULES: &str = "rules 3 to 5";
const ENDED_DEMANDS: &str = "every call returns, every op that was accepted is completed, nothing unwinds out of a plugin, and it never ends the process that it is in";
const ENDED_ADVICE: &str = "`skillgate plugin check --only NAME` does this case alone; its last words, or a debugger at the call that is named, show the place";
/// What is demanded when there is no instance, and what to do.
pub(crate) const CREATE_DEMANDS: &str = "create() makes an instance from a configuration that fits it, on a host that has what it needs, and returns";
pub(crate) const CREATE_ADVICE: &str = "do what its message says: give the configuration with --config FILE, and the host what is said to be missing (a privilege, a device, a service), or run the kit where that is";
/// What is demanded when a case has changed the directory that it was in, and what to do.
const RULE_FILES: &str = "rule 5";
const FILES_DEMANDS: &str = "a plugin keeps its files out of the working directory";
const FILES_ADVICE: &str = "use paths below state_dir or those of your configuration, and refuse one that is not absolute; an empty text is none";
/// Of why there is no instance so much is told with every case that needs one.
const REASON_CHARS_MAX: usize = 300;
/// Largest verdict that is read.
const VERDICT_BYTES_MAX: u64 = 1 << 20;
/// Most that a case may take longer for a plugin whose answers come from far away.
const ANSWERS_MAX: Duration = Duration::from_secs(600);
/// Environment variable of every child that no sandbox may show to its runs.
pub(crate) const CANARY: &str = "SKILLGATE_CHECK_CANARY";

/// What every child has from the environment of whoever runs the kit: what the gateway has, too.
const FROM_HERE: [&str; 3] = ["PATH", "HOME", "TMPDIR"];
/// And what looks at a plugin's accesses with it, and how.
pub(crate) const SANITIZERS: [&str; 3] = ["LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS"];

/// Names of the files in a case's directory.
pub(crate) const JOB: &str = "job.json";
pub(crate) const VERDICT: &str = "verdict.json";
pub(crate) const STEPS: &str = "steps";
pub(crate) const WRITTEN: [&str; 2] = ["stdout", "stderr"];
/// Where a case is: what a plugin writes to a path that is not whole is not among the files of whoever runs the kit.
const HERE: &str = "here";
/// The one thing that is there, for a plugin that clears a directory whose path it was not given.
const SENTINEL: &str = "skills";

/// Runs the cases that apply. `Err` is about the kit; what is wrong with the plugin is in the report. `tell` hears of
/// each case when it has ended; its error ends the check.
pub fn check(
    settings: &Settings,
    mut tell: impl FnMut(&CaseReport) -> std::io::Result<()>,
) -> Result<Report, KitError> {
    serde_json::from_str::<serde_json::Value>(&settings.config_json)
        .map_err(KitError::Configuration)?;
    for name in settings.only.iter().chain(&settings.skip) {
        if !CASES
            .iter()
            .any(|case| case.name.starts_with(name.as_str()))
        {
            return Err(KitError::NoSuchCase(name.clone()));
        }
    }
    let isolation = match settings.isolation {
        Isolation::Gateway => "gateway",
        Isolation::Process => "process",
    };
    let file = settings.plugin.display().to_string();
    let mut report = Report::new(file, isolation, settings.full);
    report.sha256 = sha256(&settings.plugin);
    let mut loads = true;
    // Why nothing can be seen of an instance.
    let mut none_made: Option<String> = None;
    // Where that case is left out, as asked, each of the others says for itself how it is.
    let is_asked = |case: &Case| case.name == MADE && named(case, &settings.skip);
    let mut is_made = CASES.iter().any(is_asked);
    // It touches what it must not, and the cases that look for that say what it is.
    let mut faults = false;
    for case in CASES {
        let about = &report.plugin;
        let applies = match case.needs {
            Needs::File => true,
            Needs::Plugin => loads,
            Needs::Storage => loads && about.storage,
            Needs::Sandbox => loads && about.sandbox,
        };
        // Without the case that loads it nobody knows what it offers.
        let wanted = case.name == LOADS || settings.only.is_empty() || named(case, &settings.only);
        if !applies || !wanted {
            continue;
        }
        let done = if case.name != LOADS && named(case, &settings.skip) {
            skipped(case, "left out, as asked")
        } else if case.full_only && !settings.full {
            skipped(case, "only with --full")
        } else if let Some(why) = none_made.as_ref().filter(|_| !(case.by_fault && faults)) {
            skipped(case, why)
        } else {
            let (mut done, verdict) = run(case, settings)?;
            let failed = done.status == Status::Failed;
            match case.name {
                LOADS => {
                    loads = !failed;
                    report.plugin = verdict.about.unwrap_or_default();
                }
                // One that was made, and broke something later, is there for the others.
                MADE if failed && verdict.at_create => {
                    faults = verdict.faulted;
                    none_made = Some(no_instance(&done));
                }
                MADE => is_made = true,
                // Without the case that makes one nobody knows yet whether it is this case's own matter.
                _ if case.by_fault && verdict.faulted => {}
                _ if failed && verdict.at_create && !is_made => {
                    let made = made_at_all(settings)?;
                    is_made = made.is_none();
                    if let Some(made) = made {
                        none_made = Some(no_instance(&made));
                        done.function.clone_from(&made.function);
                        (done.demands, done.advice) = (made.demands, made.advice);
                        tell(&made).map_err(KitError::Report)?;
                        report.add(made);
                    }
                }
                _ => {}
            }
            done
        };
        tell(&done).map_err(KitError::Report)?;
        report.add(done);
    }
    // Each case has read it anew.
    let now = sha256(&settings.plugin);
    if now != report.sha256 {
        return Err(KitError::Changed {
            file: settings.plugin.clone(),
            before: report.sha256,
            now,
        });
    }
    Ok(report)
}

/// Of a file, which is read and not run; empty: it is no plugin.
fn sha256(plugin: &Path) -> String {
    inspect(plugin).map_or_else(|_| String::new(), |found| found.sha256)
}

/// The case that loads the plugin; without it nothing else makes sense.
const LOADS: &str = "file/loads";

/// The case that makes an instance; without one nothing can be said of the calls.
const MADE: &str = "contract/instance";
/// How the steps begin in which an instance is made.
pub(crate) const CREATE: &str = "create ";

/// Makes an instance, and nothing else; `None`: that works.
fn made_at_all(settings: &Settings) -> Result<Option<CaseReport>, KitError> {
    let Some(case) = CASES.iter().find(|case| case.name == MADE) else {
        return Ok(None);
    };
    let (done, verdict) = run(case, settings)?;
    Ok((done.status == Status::Failed && verdict.at_create).then_some(done))
}

/// Why cases are left out that need an instance.
fn no_instance(made: &CaseReport) -> String {
    let cut: String = made.seen.chars().take(REASON_CHARS_MAX).collect();
    format!("it needs an instance, and {MADE} has none: {cut}")
}

fn named(case: &Case, names: &[String]) -> bool {
    names
        .iter()
        .any(|name| case.name.starts_with(name.as_str()))
}

fn skipped(case: &Case, why: &str) -> CaseReport {
    CaseReport {
        name: case.name,
        status: Status::Skipped,
        took_ms: 0,
        seen: why.to_owned(),
        function: String::new(),
        demands: case.demands,
        advice: case.advice,
        figures: Vec::new(),
        stderr: String::new(),
    }
}

fn run(case: &'static Case, settings: &Settings) -> Result<(CaseReport, Verdict), KitError> {
    let scratch = tempfile::Builder::new()
        .prefix("skillgate-check-")
        .tempdir()
        .map_err(KitError::os("make a directory"))?;
    let dir = &std::path::absolute(scratch.path()).map_err(KitError::os("find a directory"))?;
    let job = Job {
        case: case.name.to_owned(),
        plugin: std::path::absolute(&settings.plugin).map_err(KitError::os("find the plugin"))?,
        config_json: settings.config_json.clone(),
        own_process: settings.isolation == Isolation::Process,
        full: settings.full,
        program: whole(&settings.program)?,
        host_args: settings.host_args.clone(),
    };
    let limit = settings
        .limit_max
        .map_or(case.limit, |max| max.min(case.limit));
    let orders = Orders {
        program: job.program.clone(),
        case_args: settings.case_args.clone(),
        limit_ms: ms(limit),
        answers_ms_max: ms(settings.limit_max.map_or(ANSWERS_MAX, |max| {
            max.saturating_sub(limit).min(ANSWERS_MAX)
        })),
    };
    write(dir, JOB, &job)?;
    write(dir, ORDERS, &orders)?;
    std::fs::create_dir_all(dir.join(HERE).join(SENTINEL))
        .map_err(KitError::os("make a directory"))?;

    let began = Instant::now();
    let watchdog = attend(start(dir, settings, &orders)?, settings, &orders)?;
    let end = End::read(dir, watchdog)?;
    let took_ms = ms(began.elapsed());
    let verdict = verdict(case, dir, &end)?;
    let mut report = skipped(case, "");
    report.took_ms = took_ms;
    report.figures.clone_from(&verdict.figures);
    report.stderr.clone_from(&verdict.stderr);
    match &verdict.outcome {
        Outcome::Passed => {
            report.status = Status::Passed;
            let here = names(&dir.join(HERE)).map_err(KitError::os("look where a case was"))?;
            if here != [SENTINEL] {
                report.status = Status::Failed;
                RULE_FILES.clone_into(&mut report.function);
                report.demands = FILES_DEMANDS;
                report.advice = FILES_ADVICE;
                report.seen = format!(
                    "the working directory had {SENTINEL:?} in it, and now {}",
                    here.join(", ")
                );
            }
        }
        Outcome::Skipped(why) => report.seen.clone_from(why),
        Outcome::Ended(seen) => {
            report.status = Status::Failed;
            RULES.clone_into(&mut report.function);
            report.demands = ENDED_DEMANDS;
            report.advice = ENDED_ADVICE;
            report.seen.clone_from(seen);
        }
        Outcome::Failed { function, seen } => {
            report.status = Status::Failed;
            report.function.clone_from(function);
            report.seen.clone_from(seen);
        }
    }
    // What a plugin has left there may be anything; a directory that stays is no reason to fail.
    drop(scratch.close());
    Ok((report, verdict))
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The names in a directory, in order.
fn names(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn write(dir: &Path, what: &'static str, words: &impl serde::Serialize) -> Result<(), KitError> {
    let words = serde_json::to_vec(words).map_err(|error| KitError::Words { what, error })?;
    std::fs::write(dir.join(what), words).map_err(KitError::os("write a case's orders"))
}

/// A program's path as it is from every directory; a bare name is looked for in `PATH`, and stays.
fn whole(program: &Path) -> Result<PathBuf, KitError> {
    if program.components().count() < 2 {
        return Ok(program.to_owned());
    }
    std::path::absolute(program).map_err(KitError::os("find the program"))
}

/// Starts a case's watchdog, which starts the case.
fn start(dir: &Path, settings: &Settings, orders: &Orders) -> Result<Child, KitError> {
    let written = |name: &str| File::create(dir.join(name));
    let [out, err] = WRITTEN;
    let out = written(out).map_err(KitError::os("make a file"))?;
    let err = written(err).map_err(KitError::os("make a file"))?;
    let mut command = Command::new(&orders.program);
    command
        .args(&settings.case_args)
        .arg(dir.join(ORDERS))
        .current_dir(dir.join(HERE))
        .env_clear()
        .env(CANARY, "nobody else may see this")
        // It sees by this pipe that the kit is gone.
        .stdin(Stdio::piped())
        .stdout(out)
        .stderr(err)
        // A signal from the terminal is the kit's.
        .process_group(0);
    for name in FROM_HERE.into_iter().chain(SANITIZERS) {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
        .spawn()
        .map_err(KitError::os(format!("start {}", orders.program.display())))
}

/// Waits for a case's watchdog; `None`: it hangs. When the check is stopped, nothing of the case is left.
fn attend(
    mut watchdog: Child,
    settings: &Settings,
    orders: &Orders,
) -> Result<Option<ExitStatus>, KitError> {
    let wrong = || KitError::os("wait for a watchdog");
    let stop = settings.stop.as_ref().map(AsFd::as_fd);
    let waited = wait_for(Pid::from_child(&watchdog), || orders.limit(), stop).map_err(wrong())?;
    let limit = if waited == Waited::Over {
        drop(watchdog.stdin.take());
        END_LIMIT
    } else {
        Duration::ZERO
    };
    let (last, status) = watch(watchdog, || limit, None).map_err(wrong())?;
    match waited {
        Waited::Over => Err(KitError::Stopped),
        _ => Ok((last == Waited::Ended).then_some(status)),
    }
}

/// What a case's child has found; without its verdict: how it ended and what it was doing.
fn verdict(case: &Case, dir: &Path, end: &End) -> Result<Verdict, KitError> {
    if *end == End::Code(0)
        && let Ok(file) = File::open(dir.join(VERDICT))
    {
        return serde_json::from_reader(file.take(VERDICT_BYTES_MAX)).map_err(|error| {
            KitError::Words {
                what: VERDICT,
                error,
            }
        });
    }
    let stderr = words::written(&dir.join(WRITTEN[1]));
    let finding = words::finding(&stderr);
    let how = match (end, &finding) {
        (End::Hung(limit_ms), _) => format!(
            "it hangs: no end within {} s, so it was killed",
            limit_ms / 1000
        ),
        (End::Signal(signal), _) => {
            format!("the process was ended by {}", signal_name(*signal))
        }
        // It ends the process itself, in the middle or, for what has leaked, at its end.
        (End::Code(code), Some((sanitizer, _))) => {
            format!("{sanitizer} has ended the process, with code {code}")
        }
        (End::Code(code), None) => {
            format!("the process has ended with code {code} in the middle: somebody called exit()")
        }
    };
    let step = std::fs::read(dir.join(STEPS)).unwrap_or_default();
    let step = String::from_utf8_lossy(&step);
    let step = step.lines().next_back().unwrap_or("the start");
    let mut seen = format!("{how}; it was at: {step}");
    match &finding {
        Some((_, found)) => seen.push_str(&format!("; it says: {found}")),
        None if stderr.trim().is_empty() => {}
        None => seen.push_str(&format!("; its last words: {}", words::last(&stderr))),
    }
    // Memory that faults is what some cases judge by: then it is their own demand that was not met.
    let outcome = match end {
        End::Signal(SIGBUS | SIGSEGV) if case.by_fault => Outcome::Failed {
            function: case.function.to_owned(),
            seen,
        },
        _ => Outcome::Ended(seen),
    };
    Ok(Verdict {
        outcome,
        stderr,
        at_create: step.starts_with(CREATE),
        faulted: matches!(end, End::Signal(SIGBUS | SIGSEGV)),
        ..Verdict::default()
    })
}

const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;

fn signal_name(signal: i32) -> String {
    let name = match signal {
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        SIGBUS => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        SIGSEGV => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        31 => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    format!("{name} (signal {signal})")
}
