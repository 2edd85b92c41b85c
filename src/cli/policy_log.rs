//! `skillgate policy explain` and `simulate`: what the audit log says of decisions, asked again.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::failure::Failure;
use super::policy::{BundleArgs, load, print_grants, print_opinion, print_reasons};
use super::{ConfigFile, Exit, Output, OutputFormat, plain, print_json};
use crate::audit::{LogFile, check, find};
use crate::policy::inspect::{Flip, Guard, Opinion, Replay, Search, skills};

/// Changes that a replay lists; the rest is counted.
const FLIPS_LISTED_MAX: usize = 1000;

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// `dec_...` or `run_...`
    id: String,
    /// The audit log [default: audit.path]
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    #[command(flatten)]
    bundle: BundleArgs,
}

#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    /// The candidate: a directory of Rego, or an OPA bundle (.tar.gz)
    #[arg(long, value_name = "PATH")]
    against: PathBuf,
    /// The audit log [default: audit.path]
    audit_file: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    format: OutputFormat,
}

/// The files of a log, oldest first, and whether anybody has changed it.
struct LogFiles {
    files: Vec<LogFile>,
    broken: bool,
}

fn files(path: &Path) -> Result<LogFiles, Failure> {
    let cannot = |error| Failure::new(Exit::Runtime, format!("{}: {error}", path.display()));
    // The same are read afterwards, whatever a gateway renames meanwhile.
    let logs = find(path).map_err(cannot)?;
    let report = check(&logs).map_err(cannot)?;
    Ok(LogFiles {
        files: logs.into_iter().flatten().collect(),
        broken: !report.ok,
    })
}

fn each_line(log: &LogFiles, mut take: impl FnMut(&str)) -> Result<(), Failure> {
    for file in &log.files {
        let path = file.path();
        let cannot = |error| Failure::new(Exit::Runtime, format!("{}: {error}", path.display()));
        // Who reads it counts the empty one as one that cannot be read.
        file.each_line(|line| take(line.unwrap_or_default()))
            .map_err(cannot)?;
    }
    Ok(())
}

const BROKEN: &str = "note: the hash chain of this log is broken, so its records may not be what the gateway wrote; see `skillgate audit verify`";

const LATE: &str = "  note: the log hung while this was written, so the call was refused, whatever was decided; a record behind it says so (`late`)";

pub(super) fn explain(args: &ExplainArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (path, config) = args.bundle.resolve()?;
    let log = files(args.audit.as_ref().unwrap_or(&config.audit.path))?;
    let mut search = Search::new(&args.id);
    // A run's record names its decision, which was written before it.
    for _ in 0..2 {
        each_line(&log, |line| search.add(line))?;
    }
    let Some(record) = search.found() else {
        let failure = Failure::new(
            Exit::Findings,
            format!("no decision {} in the log", args.id),
        );
        return Err(failure.hint("--audit FILE names another log"));
    };
    let candidate = load(&path, &config)?;
    let again = record
        .get("input")
        .map(|input| (candidate.opinion(input), candidate.guards(input)));
    let recorded = &record["bundles"]["policy"];
    let same = recorded["sha256"] == candidate.sha256();
    match args.bundle.format.output {
        Output::Json => print_json(
            out,
            &json!({
                "record": record, "chain_ok": !log.broken, "late": search.is_late(), "same_bundle": same,
                "now": again.as_ref().map(|(opinion, _)| opinion),
                "guards": again.as_ref().map(|(_, guards)| guards),
            }),
        )?,
        Output::Text => {
            if log.broken {
                writeln!(out, "{BROKEN}")?;
            }
            print_record(record, out)?;
            if search.is_late() {
                writeln!(out, "{LATE}")?;
            }
            let revision = plain(candidate.revision());
            let which = if same {
                "the same bundle"
            } else {
                "another bundle than the one that decided"
            };
            writeln!(
                out,
                "{}, revision {revision}, {which}:",
                plain(&path.display().to_string())
            )?;
            match again {
                None => writeln!(
                    out,
                    "  cannot be asked: the record has no input (the decision's log.level is \"none\", or it was too large)"
                )?,
                Some((opinion, guards)) => {
                    print_again(record, &opinion, &guards, out)?;
                    let reasons = opinion.reasons.iter();
                    // One may be given for each of several hosts.
                    let codes: BTreeSet<_> = reasons.filter_map(|it| it["code"].as_str()).collect();
                    for code in codes {
                        for place in candidate.places(code) {
                            writeln!(out, "  {} is said by {}", plain(code), plain(&place))?;
                        }
                    }
                }
            }
        }
    }
    Ok(Exit::Fine)
}

fn print_record(record: &Value, out: &mut dyn Write) -> Result<(), Failure> {
    let text = |value: &Value| plain(value.as_str().unwrap_or("?"));
    let (input, result) = (&record["input"], &record["result"]);
    let shadow = match record["labels"]["mode"] == "shadow" {
        true => ", in shadow: it did not count",
        false => "",
    };
    let outcome = if result["allow"] == true {
        "allowed"
    } else {
        "denied"
    };
    writeln!(out, "{}: {outcome}{shadow}", text(&record["decision_id"]))?;
    writeln!(
        out,
        "  at {} by revision {}",
        text(&record["timestamp"]),
        text(&record["bundles"]["policy"]["revision"])
    )?;
    let skills: Vec<String> = (skills(input).iter()).map(|skill| plain(skill)).collect();
    writeln!(
        out,
        "  {} by {} of tenant {}{}{}",
        text(&input["request"]["method"]),
        text(&record["requested_by"]),
        text(&input["subject"]["tenant"]),
        if skills.is_empty() { "" } else { ": " },
        skills.join(", ")
    )?;
    for skill in input["skills"].as_array().into_iter().flatten() {
        // Of one that could not be read it is not known.
        if let Some(digest) = skill["digest"].as_str() {
            writeln!(out, "  {} is {}", text(&skill["name"]), plain(digest))?;
        }
    }
    print_reasons(result["reasons"].as_array().map_or(&[], Vec::as_slice), out)?;
    if result["allow"] == true {
        print_grants(
            &result["granted"]["network"],
            &result["granted"]["secrets"],
            out,
        )?;
    }
    if let Some(clamped) = result.get("clamped") {
        writeln!(
            out,
            "  left out, since no manifest declares it: {}",
            plain(&clamped.to_string())
        )?;
    }
    Ok(())
}

fn print_again(
    record: &Value,
    opinion: &Opinion,
    guards: &[Guard],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let erased = record["erased"].as_array().map_or(0, Vec::len);
    if erased > 0 {
        writeln!(
            out,
            "  note: {} of the input {} erased from the record, so this may differ",
            plain(&record["erased"].to_string()),
            if erased == 1 { "was" } else { "were" }
        )?;
    }
    write!(out, "  the same input is ")?;
    print_opinion(opinion, out)?;
    let mut rows = Vec::new();
    for guard in guards {
        let holds = match guard.holds {
            Some(true) => "holds",
            Some(false) => "FAILS",
            None => "ERROR",
        };
        rows.push(vec![
            format!("  {holds}"),
            plain(&guard.rule),
            match &guard.error {
                // It names its place.
                Some(error) => plain(error),
                None => format!("{}:{}", plain(&guard.file), guard.line),
            },
        ]);
    }
    Ok(super::print_table(out, &rows)?)
}

pub(super) fn simulate(args: &SimulateArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let config = args.config.load_for_command()?;
    let log = files(args.audit_file.as_ref().unwrap_or(&config.audit.path))?;
    let candidate = load(&args.against, &config)?;
    let mut replay = Replay::default();
    each_line(&log, |line| {
        replay.add(&candidate, line, FLIPS_LISTED_MAX);
    })?;
    let changes =
        replay.would_be_denied + replay.would_be_allowed + replay.other_grants + replay.other_terms;
    match args.format.output {
        Output::Json => print_json(
            out,
            &json!({ "revision": candidate.revision(), "chain_ok": !log.broken, "replay": replay }),
        )?,
        Output::Text => {
            if log.broken {
                writeln!(out, "{BROKEN}")?;
            }
            for flip in &replay.flips {
                print_flip(flip, out)?;
            }
            writeln!(
                out,
                "{} decisions replayed against revision {}: {} would be denied, {} would be allowed, {} would get other grants, {} other limits or obligations",
                replay.replayed,
                plain(candidate.revision()),
                replay.would_be_denied,
                replay.would_be_allowed,
                replay.other_grants,
                replay.other_terms
            )?;
            for (count, what) in [
                (
                    replay.unreadable,
                    "lines of the log could not be read and were left out",
                ),
                (
                    replay.without_input,
                    "have no input in their record and were left out",
                ),
                (
                    replay.erased,
                    "had something erased, so the candidate saw less than the gateway",
                ),
                (
                    replay.unread,
                    "were about a skill that could not be read, so by its name alone, and no such call went on",
                ),
                (
                    replay.without_decision,
                    "have not the whole decision in their record (log.level full): what they may show and their obligations were not compared",
                ),
                (
                    changes - replay.flips.len() as u64,
                    "of the changes are not listed",
                ),
            ] {
                if count > 0 {
                    writeln!(out, "note: {count} {what}")?;
                }
            }
        }
    }
    Ok(if changes == 0 {
        Exit::Fine
    } else {
        Exit::Findings
    })
}

fn print_flip(flip: &Flip, out: &mut dyn Write) -> Result<(), Failure> {
    let same = |name: &str| flip.was[name] == flip.would_be[name];
    let is_of_terms = ["allow", "network", "secrets", "limits"]
        .into_iter()
        .all(same);
    let side = |side: &Value| {
        let list = |name: &str| -> String {
            let items = side[name].as_array().into_iter().flatten();
            items
                .filter_map(Value::as_str)
                .map(plain)
                .collect::<Vec<_>>()
                .join(", ")
        };
        match side["allow"] == true {
            true if same("network") && same("secrets") && !same("limits") => {
                format!("allowed within {}", plain(&side["limits"].to_string()))
            }
            true => format!("allowed [{}] [{}]", list("network"), list("secrets")),
            false => format!("denied ({})", list("codes")),
        }
    };
    writeln!(
        out,
        "{} {} {}{}{}: {} -> {}{}",
        plain(&flip.decision_id),
        plain(&flip.method),
        plain(&flip.subject),
        if flip.skills.is_empty() { "" } else { " " },
        plain(&flip.skills.join(", ")),
        side(&flip.was),
        side(&flip.would_be),
        if is_of_terms {
            ", with other obligations or other skills shown"
        } else {
            ""
        }
    )?;
    Ok(())
}
