//! Deliberately wrong servers, the toy of `toy/server.py`, wrong in one way each; and right ones that are not as ours is
//! (`toy/ways.rs`).

mod ways;

use std::path::Path;
use std::process::Command;

use crate::gateway::Server;
use crate::own::Hosts;
use crate::run::Target;
pub(crate) use ways::{WAYS, Way};

/// One way to be wrong and the rows that must notice.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) rows: &'static [&'static str],
    /// Shown to this case alone, which has to notice by itself. Absent: whichever of the rows' cases does.
    pub(crate) case: Option<&'static str>,
    /// Shown to the cases that need isolation, and only to them.
    pub(crate) sandbox: bool,
    /// Shown to the cases of skillgate's own promises too.
    pub(crate) product: bool,
}

const fn fault(name: &'static str, what: &'static str, rows: &'static [&'static str]) -> Fault {
    Fault {
        name,
        what,
        rows,
        case: None,
        sandbox: false,
        product: false,
    }
}

/// One that this case of the row must notice.
const fn seen_by(
    case: &'static str,
    name: &'static str,
    what: &'static str,
    rows: &'static [&'static str],
) -> Fault {
    Fault {
        case: Some(case),
        ..fault(name, what, rows)
    }
}

/// One place of an ordinary container that is open, shown to the case that looks there.
const fn hole(
    case: &'static str,
    name: &'static str,
    what: &'static str,
    rows: &'static [&'static str],
) -> Fault {
    Fault {
        sandbox: true,
        ..seen_by(case, name, what, rows)
    }
}

/// Every row of `rows.txt` is broken by at least one of them.
pub(crate) const FAULTS: &[Fault] = &[
    fault("media-type", "answers JSON as text/html", &["T1"]),
    seen_by(
        "transport.post",
        "media-type-like",
        "answers JSON as application/json-seq",
        &["T1"],
    ),
    fault("all-errors-alike", "every error is -32603", &["T2", "T3"]),
    fault("http-500", "a result is an HTTP 500", &["T2", "T5"]),
    fault(
        "unknown-skill-runs",
        "an unknown skill is a failed run",
        &["T3"],
    ),
    fault(
        "failure-is-error",
        "an exception in a run is a JSON-RPC error",
        &["T4", "E3"],
    ),
    fault("ids-are-text", "ids come back as strings", &["T5"]),
    fault("jsonrpc-missing", "answers without jsonrpc", &["T5"]),
    fault(
        "both-result-and-error",
        "a result with error: null beside it",
        &["T5"],
    ),
    fault("notifications-answered", "answers notifications", &["T5"]),
    Fault {
        product: true,
        ..seen_by(
            "notifications.done",
            "notifications-dropped",
            "does nothing of what a notification says",
            &["T5"],
        )
    },
    fault("empty-batch", "answers [] with []", &["T5"]),
    fault("batch-cut", "answers only the first of a batch", &["T5"]),
    seen_by(
        "batch.mixed",
        "batch-ids-mixed",
        "in a batch a result has the id of another",
        &["T5"],
    ),
    seen_by(
        "batch.junk",
        "batch-bare",
        "answers in a batch are without jsonrpc",
        &["T5"],
    ),
    seen_by(
        "batch.full",
        "batch-both",
        "answers in a batch have result: null beside the error",
        &["T5"],
    ),
    seen_by(
        "batch.same-ids",
        "batch-none",
        "an answer in a batch says nothing but its id",
        &["T5"],
    ),
    fault("parse-error-code", "broken JSON is -32600", &["T5"]),
    fault(
        "skills-are-methods",
        "a skill can be called like a tool",
        &["L1"],
    ),
    fault("cursor-ignored", "every page is the first", &["D1"]),
    seen_by(
        "list.default-limit",
        "small-pages",
        "a page has twenty where no limit is said",
        &["D1"],
    ),
    seen_by(
        "list.default-limit",
        "large-pages",
        "a page has a hundred where no limit is said",
        &["D1"],
    ),
    fault("unsorted", "lists backwards", &["D2"]),
    fault("versions-as-text", "1.9.0 is above 1.10.0", &["D2", "R4"]),
    fault(
        "semantic-search",
        "the filter searches descriptions",
        &["D3"],
    ),
    fault(
        "namespace-is-a-prefix",
        "the filter matches half a segment",
        &["R12"],
    ),
    fault("no-front-matter", "describes without front matter", &["D4"]),
    fault("path-escape", "reads ../", &["D5"]),
    fault("file-trimmed", "trims the files that it shows", &["R3"]),
    fault(
        "guide-stripped",
        "the guide comes without its front matter",
        &["D6", "R3"],
    ),
    fault(
        "guide-rewritten",
        "the guide is in its own words",
        &["D6", "D7"],
    ),
    fault("args-lost", "args do not reach the skill", &["E1", "E14"]),
    fault(
        "export-ignored",
        "calls main whatever the manifest says",
        &["E14"],
    ),
    fault(
        "entrypoint-ignored",
        "calls main whatever the request says",
        &["E2", "E15"],
    ),
    seen_by(
        "code.module",
        "code-is-no-module",
        "code is executed, not imported",
        &["E15"],
    ),
    Fault {
        product: true,
        ..seen_by(
            "code.async",
            "async-not-awaited",
            "an async entrypoint is not awaited",
            &["E15"],
        )
    },
    seen_by(
        "code.no-args#1",
        "code-args-none",
        "code is called with nothing where no args are given",
        &["E2", "E15", "R2"],
    ),
    seen_by(
        "codes.wrong-types#18",
        "code-args-any",
        "run_code takes a list for args",
        &["T2"],
    ),
    seen_by(
        "codes.unknown-things#8",
        "version-guessed",
        "a file of a version that is not there is the latest's",
        &["T3"],
    ),
    seen_by(
        "list.descriptions",
        "descriptions-cut",
        "a listing cuts descriptions",
        &["D1"],
    ),
    seen_by(
        "list.pages#2",
        "summary-unpaged",
        "with the detail summary a page has everything",
        &["D1"],
    ),
    seen_by(
        "read.large",
        "files-cut",
        "a file ends after 64 KiB",
        &["D5", "R3"],
    ),
    seen_by(
        "execute.deep",
        "entrypoint-flat",
        "an entrypoint is looked for right under code/",
        &["E14", "K3"],
    ),
    seen_by(
        "execute.broken",
        "broken-is-error",
        "a skill that cannot be imported is a JSON-RPC error",
        &["T4"],
    ),
    seen_by(
        "execute.run-ids",
        "skill-run-ids",
        "all runs of a skill have one id",
        &["E3"],
    ),
    seen_by(
        "execute.same-as-code",
        "skill-stderr-lost",
        "a skill's stderr goes nowhere",
        &["E18"],
    ),
    seen_by(
        "execute.same-as-code",
        "skill-blobs-lost",
        "forgets the blobs that a skill makes",
        &["E17", "E3"],
    ),
    seen_by(
        "logs.cut-of-failures",
        "failures-uncut",
        "returns all logs of a failed run",
        &["E5"],
    ),
    seen_by(
        "inside.input-large",
        "input-blobs-cut",
        "an input blob ends after 64 KiB",
        &["E11"],
    ),
    seen_by(
        "inside.own-blobs",
        "own-blobs-closed",
        "a run cannot read what it wrote",
        &["E17"],
    ),
    seen_by(
        "sandbox.fresh-skill",
        "skill-workspace-stays",
        "runs of skills share a workspace",
        &["E7", "E10", "E19"],
    ),
    seen_by(
        "inside.input-blobs-all",
        "first-blob-only",
        "of several input blobs only the first can be read",
        &["E11"],
    ),
    seen_by(
        "names.one-segment",
        "no-namespace",
        "a name without a dot has no namespace",
        &["R12"],
    ),
    seen_by(
        "publish.optional#2",
        "summary-cut",
        "a manifest is whole only where nothing else is asked for",
        &["K4"],
    ),
    seen_by(
        "publish.front-matter-late",
        "front-matter-anywhere",
        "front matter may stand anywhere",
        &["K1", "D4"],
    ),
    seen_by(
        "publish.front-matter-line-ends",
        "front-matter-lf",
        "front matter has to end its lines as Unix does",
        &["K1", "D4"],
    ),
    fault("no-run-id", "a run without an id", &["E3"]),
    seen_by(
        "code.syntax#1",
        "unnamed-failures",
        "code that never began has no id and no summary",
        &["E3"],
    ),
    seen_by(
        "batch.runs",
        "batch-unnamed",
        "a run in a batch has no id",
        &["E3"],
    ),
    fault(
        "examples-fail",
        "an example of the texts is an internal error",
        &["K7"],
    ),
    fault(
        "examples-lost",
        "an example of the texts is there, it says, and is not",
        &["K7"],
    ),
    seen_by(
        "publish.front-matter",
        "front-matter-by-lines",
        "reads front matter line by line",
        &["D4", "K1"],
    ),
    fault("big-output-inline", "returns any output inline", &["E4"]),
    fault(
        "big-output-lost",
        "drops an output that is too large",
        &["R5"],
    ),
    fault("logs-uncut", "returns all logs", &["E5"]),
    seen_by(
        "logs.cut#6",
        "logs-cut-apart",
        "cuts stdout and stderr each by itself",
        &["E5"],
    ),
    fault("no-timeout", "never minds timeout_ms", &["E6"]),
    seen_by(
        "time.logs",
        "timeout-silent",
        "a run that was ended has no logs",
        &["E5", "E6"],
    ),
    fault(
        "workspace-stays",
        "runs share a workspace",
        &["E7", "E10", "E19"],
    ),
    fault("blobs-not-mounted", "input blobs cannot be read", &["E11"]),
    fault("secrets-leak", "every run gets a secret", &["E12", "R8"]),
    fault(
        "no-imports",
        "mounted skills cannot be imported",
        &["E16", "K9"],
    ),
    fault("blobs-lost", "forgets the blobs that a run makes", &["E17"]),
    seen_by(
        "inside.input-blobs",
        "input-blobs-listed",
        "output_blobs has the input blobs too",
        &["E17"],
    ),
    fault("blob-order", "output_blobs backwards", &["E17"]),
    fault("no-log", "log lines go nowhere", &["E17"]),
    fault("no-stderr", "stderr goes nowhere", &["E18"]),
    fault("blob-ids-count", "blob ids are numbered", &["P1"]),
    fault(
        "size-in-characters",
        "size_bytes counts characters",
        &["P1"],
    ),
    Fault {
        product: true,
        ..seen_by(
            "blob.bad-kinds#8",
            "long-kinds",
            "takes a kind of any length",
            &["P1"],
        )
    },
    Fault {
        product: true,
        ..seen_by(
            "blob.unknown#11",
            "ids-echoed",
            "says an id of any length again",
            &["P2", "T3"],
        )
    },
    fault("never-truncated", "truncated is always false", &["P2"]),
    seen_by(
        "blob.characters#3",
        "cut-untold",
        "a sample that ends before its last character is not truncated",
        &["P2", "R11"],
    ),
    fault("no-tail", "sample_tail is the head", &["P2"]),
    fault(
        "full-is-a-sample",
        "full stops after 2000 bytes and says nothing",
        &["P3"],
    ),
    fault(
        "binary-as-text",
        "binary content with replacement characters",
        &["P4", "R11"],
    ),
    fault(
        "cuts-characters",
        "a sample cuts characters in two",
        &["R11"],
    ),
    fault("run-blobs-die", "a run's blobs die with it", &["P5"]),
    fault(
        "resources-lost",
        "a skill loses its resources",
        &["K1", "K7"],
    ),
    fault("manifest-unchecked", "takes any manifest", &["K2", "K3"]),
    fault(
        "manifest-cut",
        "returns only the required members of a manifest",
        &["K4"],
    ),
    fault(
        "one-version-only",
        "a new version replaces the old one",
        &["K5"],
    ),
    fault(
        "instructions-run",
        "an instruction skill can be executed",
        &["K6"],
    ),
    fault(
        "skill-path-escape",
        "a new skill's files may be anywhere",
        &["K7"],
    ),
    fault(
        "skill-not-kept",
        "says that a skill is stored and forgets it",
        &["K7"],
    ),
    fault("strict-names", "refuses - and _ in names", &["R1", "K8"]),
    fault("hyphens-stay", "a skill with - cannot be imported", &["R1"]),
    fault(
        "null-refused",
        "refuses null for optional parameters",
        &["R2"],
    ),
    fault(
        "latest-is-newest",
        "latest is the one published last",
        &["R4"],
    ),
    seen_by(
        "publish.seen-at-once",
        "latest-remembered",
        "latest stays what it was when it was first asked for",
        &["K7", "R4"],
    ),
    seen_by(
        "publish.seen-at-once",
        "missing-remembered",
        "a skill that was once asked for in vain stays missing",
        &["K7"],
    ),
    fault("nan-is-null", "turns NaN into null", &["R6"]),
    fault("dull-summary", "every summary is \"done\"", &["R7"]),
    fault("versions-change", "a version can be overwritten", &["R9"]),
    fault(
        "again-refused",
        "the same content again is refused",
        &["R9"],
    ),
    fault("no-pinned-mounts", "name@version is no name", &["R10"]),
    seen_by(
        "immutable.other#5",
        "refused-and-kept",
        "refuses other content and keeps its new files",
        &["R9", "K7"],
    ),
    seen_by(
        "publish.as-written",
        "lists-sorted",
        "sorts a manifest's tags",
        &["K4"],
    ),
    seen_by(
        "publish.as-written",
        "false-is-nothing",
        "a default that is false or zero gets lost",
        &["K4"],
    ),
    seen_by(
        "code.imported",
        "code-is-a-script",
        "code runs as __main__",
        &["E15"],
    ),
    seen_by(
        "execute.imported",
        "skill-is-a-script",
        "an entrypoint runs as __main__",
        &["E14"],
    ),
    seen_by(
        "logs.descriptors",
        "python-streams-only",
        "captures what Python's own streams are given",
        &["E18"],
    ),
    seen_by(
        "inside.failed-blobs",
        "failed-blobs-die",
        "names a failed run's blobs and forgets them",
        &["E17", "P5"],
    ),
    seen_by(
        "inside.line-ends",
        "line-ends",
        "the helpers make every line end a line feed",
        &["E11", "E17"],
    ),
    seen_by(
        "bytes.skill-md#2",
        "skill-md-line-ends",
        "makes SKILL.md's line ends line feeds",
        &["R3", "D5"],
    ),
    seen_by(
        "granted.secret",
        "no-secrets",
        "no run gets a secret that it is granted",
        &["E12"],
    ),
    seen_by(
        "granted.secret",
        "secrets-named",
        "a skill gets what it names, granted or not",
        &["E12"],
    ),
    seen_by(
        "granted.secret",
        "secrets-unnamed",
        "a skill gets what it is granted, named or not",
        &["E12"],
    ),
    seen_by(
        "granted.not-to-code",
        "mounted-secrets",
        "code gets the secrets of what it mounts",
        &["R8", "E12"],
    ),
    seen_by(
        "granted.host",
        "no-network",
        "no run reaches a host that it is granted",
        &["E13"],
    ),
    seen_by(
        "granted.refusal#1",
        "refusal-is-a-run",
        "who may not run a skill gets a failed run",
        &["T2"],
    ),
    seen_by(
        "granted.orphan",
        "orphans-stay",
        "what a run started goes on after it",
        &["E19"],
    ),
    seen_by(
        "granted.late",
        "late-stay",
        "a run that is too late is answered and goes on",
        &["E6"],
    ),
    seen_by(
        "publish.minimal#1",
        "optional-required",
        "refuses a manifest without tags",
        &["K2", "K4", "K8"],
    ),
    Fault {
        sandbox: true,
        ..seen_by(
            "granted.no-other-host",
            "any-host",
            "runs reach any host",
            &["E13"],
        )
    },
    hole(
        "granted.not-more-to-code",
        "any-host",
        "code reaches any host",
        &["R8", "E13"],
    ),
    hole("sandbox.user", "hole-root", "runs are root", &["E8"]),
    hole(
        "sandbox.become-root",
        "hole-become-root",
        "runs may become root",
        &["E8"],
    ),
    hole(
        "sandbox.processes",
        "hole-processes",
        "runs may signal others",
        &["E8"],
    ),
    hole(
        "sandbox.host-files",
        "hole-files",
        "runs read the host's files",
        &["E10"],
    ),
    hole(
        "sandbox.writes",
        "hole-writes",
        "runs write where they like",
        &["E10"],
    ),
    hole(
        "sandbox.own-skill",
        "hole-skill",
        "a skill can change itself",
        &["E9"],
    ),
    hole(
        "sandbox.side-by-side",
        "hole-neighbours",
        "two runs share a directory",
        &["E7"],
    ),
    hole(
        "sandbox.environment",
        "hole-environment",
        "a secret of the server is in the environment",
        &["E12"],
    ),
    Fault {
        sandbox: true,
        ..seen_by(
            "granted.orphan-with-a-session",
            "sessions-stay",
            "a session of its own keeps a process",
            &["E19"],
        )
    },
    Fault {
        sandbox: true,
        ..fault(
            "no-sandbox",
            "runs see and change the machine as root",
            &["E7", "E8", "E9", "E10", "E12", "E13", "E19"],
        )
    },
    Fault {
        product: true,
        ..fault("none", "has no /tools and no /system-prompt", &["L2", "L3"])
    },
];

/// Starts the toy with a fault; its state is below `data`.
pub(crate) fn start(here: &Path, data: &Path, fault: &str) -> Result<Server, String> {
    let mut command = Command::new("python3");
    command
        .arg("-B")
        .arg(here.join("toy/server.py"))
        .arg(here.join("texts/guide.md"));
    command.arg(data).arg(fault);
    Server::start(command, data.join(format!("{fault}.log")), Hosts::start()?)
}

/// What may be asked of the toy.
pub(crate) fn target(server: &Server) -> Target {
    Target {
        endpoint: server.endpoint.clone(),
        hosts: Some(server.hosts.clone()),
        ..Target::default()
    }
}
