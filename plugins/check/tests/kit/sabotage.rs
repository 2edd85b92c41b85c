//! Plugins that do one thing wrong: the kit names it, and the gateway's side survives it.

use std::time::Duration;

use skillgate_plugin_check::{Report, Settings, Status, case_names};

use crate::support::{
    changed_c, ended, is_root, not_enforced, probe, run, sabotaged, saboteur, settings, table,
    thrower,
};

/// Long enough for every case of the table on a busy machine; what hangs waits for it.
const LIMIT: Duration = Duration::from_secs(30);
/// For what hangs.
const SHORT: Duration = Duration::from_secs(3);

/// What is done wrong, the case that has to find it, and a part of what it has to have seen.
type Row = (&'static str, &'static str, &'static str);

#[rustfmt::skip]
pub(crate) const STORE: &[Row] = &[
    // The C contract.
    ("lies about the size of its table", "contract/struct-sizes", "a skg_storage says that it has"),
    ("lies about the size of an answer", "contract/struct-sizes", "a skg_health says that it has"),
    ("reads past the host's struct_size", "contract/older-host", "SIGSEGV"),
    ("reads past the struct_size of a request", "contract/older-host", "SIGSEGV"),
    ("reads what a newer host adds", "contract/newer-host", "SIGSEGV"),
    ("refuses a newer host", "contract/newer-host", "it makes no instance"),
    ("reads an empty text", "contract/empty-values", "SIGSEGV"),
    ("keeps a request", "contract/borrowed", "SIGSEGV (signal 11); it was at: skill_get, where nothing can be read any more"),
    ("has one instance without saying so", "contract/two-instances", "it makes no instance"),
    ("gives no result", "contract/answers", "its result is null"),
    ("gives a text that is not UTF-8", "contract/answers", "not UTF-8"),
    ("gives a huge text", "contract/answers", "more than the"),
    ("gives null with a length", "contract/answers", "null with length 5"),
    ("gives a descriptor beside data", "contract/answers", "skill_read was completed with a malformed answer: content.fd: descriptor "),
    ("gives a descriptor beside a reader", "contract/answers", "blob_open was completed with a malformed answer: opened.fd: descriptor "),
    ("is in a state that there is not", "contract/answers", "skg_health.state is 9"),
    ("says words where numbers are asked", "contract/answers", "skg_health.metrics_json is no flat"),
    ("reports layers in its own way", "contract/answers", "skg_health.report_json is no list of layers"),
    ("makes an instance and says 7", "contract/instance", "create returns 7, and a result is SKG_OK (0) or less than 0"),
    ("says 1 where it has accepted", "contract/answers", "blob_stat returns 1, and a result is SKG_OK (0) or less than 0"),
    // Operations.
    ("never completes", "operations/returns", "has returned without a completion"),
    ("completes twice", "operations/exactly-once", "was completed a second time"),
    ("completes twice at once", "operations/exactly-once", "was completed a second time"),
    ("completes again later", "operations/exactly-once", "was completed a second time"),
    ("completes an op that nobody gave", "operations/exactly-once", "which nobody gave"),
    ("asks no host", "operations/exactly-once", "op_cancelled was called with ctx null"),
    ("refuses what it has completed", "operations/exactly-once", "and completed all the same"),
    ("calls the host after destroy", "operations/after-destroy", "after destroy() had returned"),
    ("goes on after drain", "operations/drain", "instead of SKG_E_UNAVAILABLE"),
    ("ends what is open at drain", "operations/drain", "of a writer that was open ends with -14"),
    ("ends what is read at drain", "operations/drain", "blob_read of a reader that was open ends with -"),
    // Whatever ends the process, or does not.
    ("segfaults", "operations/exactly-once", "SIGSEGV (signal 11); it was at: health"),
    ("overflows its stack", "operations/exactly-once", "SIG"),
    ("aborts", "operations/exactly-once", "SIGABRT (signal 6); it was at: health"),
    ("panics across the boundary", "operations/exactly-once", "SIGABRT"),
    ("calls exit()", "operations/exactly-once", "somebody called exit()"),
    ("hangs", "operations/exactly-once", "it hangs: no end within 3 s, so it was killed; it was at: health"),
    // The process that it shares.
    ("changes a signal handler", "process/signals", "the handler of signal 11 is another"),
    ("changes the working directory", "process/working-directory", "and is \"/\""),
    ("writes to where it is", "process/umask", "and now saboteur-was-here, skills"),
    ("changes the umask", "process/umask", "0000"),
    ("changes the environment", "process/environment", "SABOTEUR"),
    ("changes the locale", "process/locale", "C.UTF-8"),
    ("changes a limit", "process/limits", "Max open files"),
    ("gives up privileges of the process", "process/identity", "NoNewPrivs"),
    ("leaks a descriptor", "process/descriptors", "/dev/null"),
    ("closes a descriptor of another", "process/descriptors", "closed or others: 0 (/dev/null)"),
    ("leaks a thread", "process/threads", "threads after the first destroyed instance"),
    ("leaves a process", "process/children", "processes are left after destroy: sleep"),
    ("writes to standard error", "process/streams", "it wrote to stderr: \"debug"),
    // What a store promises.
    ("loses what is published beside others", "storage/skills-published-at-once", "64 skills were published by 16 callers at once, each with SKG_OK, and "),
    ("publishes a version again", "storage/publish-twice", "the same version with other content succeeds"),
    ("publishes what it says it cannot", "storage/caps", "a skill for a store whose caps says that it is read-only succeeds"),
    ("publishes nothing, and says that it can", "storage/caps", "caps says SKG_ST_SKILLS_WRITE, and a skill is not taken"),
    ("says that it has skills, and lists none", "storage/caps", "caps says SKG_ST_SKILLS, and skill_list is NULL"),
    ("says what nobody knows", "storage/caps", "caps has 0x8000, which is no SKG_ST_* of the header"),
    ("lists in another order", "storage/order", "the order is"),
    ("gives the first page for ever", "storage/cursors", "the cursor does not go on"),
    ("promises more than there is", "storage/cursors", "there is said to be more, and the next page is empty"),
    ("says that a pre-release is the latest", "storage/latest", "is said to be 2.0.0-rc.1"),
    ("gives another tenant's skill", "storage/tenants", "another tenant's skill succeeds"),
    ("gives another tenant's blob", "storage/blob-tenants", "another tenant's blob succeeds"),
    ("shows what is being published in part", "storage/concurrent-publish", "a part of it"),
    ("takes the same at once for another", "storage/concurrent-publish", "with the same content at once one was refused"),
    ("gives the whole for a range", "storage/blob-ranges", "gives more of a blob than was asked for"),
    ("begins each range at the start", "storage/blob-ranges", "that are not these"),
    ("counts ranges in 64 bits and no further", "storage/blob-ranges", "18446744073709551615 bytes from 1 for"),
    ("takes more than max_bytes", "storage/blob-max-bytes", "a write beyond max_bytes succeeds"),
    ("keeps what is deleted", "storage/blob-delete", "succeeds"),
    ("keeps what has expired", "storage/blob-ttl", "a blob whose ttl_s has passed succeeds"),
    ("gives nothing before the end", "storage/blob-sizes", "gives nothing of a blob, and not its end"),
    ("writes 16 bytes whatever cap is", "storage/blob-buffers", "SIGSEGV (signal 11); it was at: blob_read with room for 1 bytes"),
    ("writes into the room after complete", "storage/blob-buffers", "SIGSEGV (signal 11); it was at: blob_read with room for 1 bytes"),
    ("keeps blob_write's data", "storage/blob-buffers", "SIGSEGV (signal 11); it was at: blob_commit; what was written cannot be read"),
    ("says more than it has read", "storage/blob-buffers", "blob_read ends with -103: n is 2, and cap is 1"),
    ("gives a wrong digest", "storage/blob-digests", "is said to be 0000"),
    ("fails when it is busy", "operations/many-in-flight", "health ends with -13"),
    ("aborts at a cancel of nothing", "operations/cancel-before", "it was at: cancel of ops"),
    ("hangs on what is cancelled already", "operations/cancel-before", "it hangs: no end within 3 s, so it was killed; it was at: a call that was cancelled before it began"),
    ("completes what is cancelled", "operations/cancel-after", "was completed a second time"),
    ("loses a file", "storage/publish-and-read", "and what was put has"),
    ("gives another manifest", "storage/publish-and-read", "manifest_json is not what was put"),
    ("lists without descriptions", "storage/publish-and-read", "in a list: put"),
    ("says that what is published is the operator's", "storage/publish-and-read", "SKG_SKILL_READ_ONLY"),
    ("gives an empty tar for a tree", "storage/publish-and-read", "its tar has [], and what was put has"),
    ("gives another tree", "storage/publish-and-read", "its tar has [(\"SKILL.md\", 10), (\"more.py\", 0)]"),
    ("gives a directory that others cannot enter", "storage/publish-and-read", "its directory cannot be read: code has the mode 0700, and is to be o+rx"),
    ("gives a file that others cannot read", "storage/publish-and-read", "its directory cannot be read: SKILL.md has the mode 0640, and is to be o+r"),
    ("accepts paths that escape", "storage/names", "a file with the path \"../escape\" is accepted"),
    ("loses the last byte of a long write", "storage/blob-sizes", "a blob of 4095 bytes is said to have 4094"),
    ("keeps what is given up", "storage/blob-abort", "writers that were given up there is no other"),
    ("keeps what is closed", "storage/blob-close", "readers that were closed there is no other"),
    ("writes into the blob that was begun last", "storage/blobs-at-once", "and blob_commit says BlobStat"),
    ("reads from the blob that was opened last", "storage/blobs-at-once", "gives 25000 bytes that are not its next ones"),
    ("writes on after a commit", "storage/blob-writer-ends", "blob_write of a writer that was committed ends with 0"),
    ("gives other bytes of what is deleted", "storage/blob-delete-while-open", "has ended before its size"),
    ("gives a descriptor that can be written", "storage/blob-descriptors", "can be written to"),
    ("gives a blob that others cannot read", "storage/blob-descriptors", "the blob's file has the mode 0600, and is to be o+r"),
    ("forgets at its end", "storage/durability", "and after kill -9 it is gone"),
    ("forgets at its end", "storage/blob-durability", "a blob was completed with SKG_OK, and after kill -9: "),
    ("publishes nothing, and forgets blobs at its end", "storage/blob-durability", "a blob was completed with SKG_OK, and after kill -9: "),
    ("keeps what is deleted", "storage/blob-durability", "after kill -9 a deleted blob succeeds"),
];

#[rustfmt::skip]
pub(crate) const SANDBOX: &[Row] = &[
    ("gives a status that there is not", "contract/answers", "status"),
    ("walks by sizeof: skills", "contract/newer-host", "SIGSEGV (signal 11); it was at: run"),
    ("walks by sizeof: mounts", "contract/newer-host", "SIGSEGV (signal 11); it was at: run"),
    ("walks by sizeof: rules", "contract/newer-host", "SIGSEGV (signal 11); it was at: run"),
    ("keeps the list of secrets", "contract/borrowed", "SIGSEGV (signal 11); it was at: run, where nothing can be read any more"),
    ("reads a secret into nothing", "operations/exactly-once", "secret_read was called with buf null and cap 64"),
    ("ignores cancel", "operations/cancel-during", "a run that was cancelled goes on 10 s later, and nothing but its wall_ms would end it"),
    ("waits for none of its children", "process/zombies", "processes that have ended are still there as zombies, 5 s later, and fill the process table: true, true"),
    ("waits in cancel until the run has ended", "operations/cancel-during", "it never blocks, and returns after "),
    ("is drained at once", "operations/drain", "while a run is in flight"),
    ("takes every language for its own", "sandbox/languages", "ends with a result"),
    ("loses the arguments", "sandbox/answers", "the output is"),
    ("stores no blobs of runs", "sandbox/blobs", "a run that reads and writes blobs fails"),
    ("leaves out blobs that are descriptors", "sandbox/blobs", "No such file or directory"),
    ("gives all output as it is", "sandbox/large-output", "more than the 4096 that are allowed"),
    ("mounts no skills", "sandbox/skills", "a skill that is called, mounted from a directory (SKG_SRC_FD): the run failed"),
    ("leaves out what is in a tar", "sandbox/skills", "a skill that is called, mounted from a tar (SKG_SRC_TAR): the run failed"),
    ("hides failures", "sandbox/failures", "completed = true"),
    ("has its code as pid 1", "sandbox/failures", "Where the code is pid 1 of its namespace of processes"),
    ("swallows the output of runs", "sandbox/output", "line 0 of the output is missing"),
    ("keeps secrets from runs", "sandbox/secrets", "does not find the secret"),
    ("shows secrets on a command line", "sandbox/secrets", "its secret is on the command line of process"),
    ("gives every run the first one's code", "sandbox/many", "at once gives"),
    ("does not limit time", "sandbox/limit-wall", "it hangs"),
    ("does not limit processor time", "sandbox/limit-cpu", "has computed for 4 s"),
    ("does not limit processor time, but all time", "sandbox/limit-cpu", "not for its processor time"),
    ("does not limit memory", "sandbox/limit-memory", "a run has filled 384 MiB"),
    ("does not limit processes", "sandbox/limit-pids", "a run has made 100 processes"),
    ("does not limit files", "sandbox/limit-disk", "a run has written"),
    ("ends every run as SandboxError", "sandbox/limit-cpu", "not for its processor time"),
    ("ends every run as SandboxError", "sandbox/limit-memory", "a run that keeps within its limits ends with \"SandboxError\""),
    ("ends every run as OutOfMemory", "sandbox/limit-memory", "a run that keeps within its limits ends with \"OutOfMemory\""),
    ("ends large runs as SandboxError", "sandbox/limit-memory", "beyond memory_bytes ends with \"SandboxError\""),
    ("ends every run as TooManyProcesses", "sandbox/limit-pids", "a run that keeps within its limits ends with"),
    ("ends large runs as SandboxError", "sandbox/limit-pids", "beyond max_pids ends with \"SandboxError\""),
    ("gives nothing of large runs", "sandbox/limit-pids", "says \"\" instead of how many"),
    ("ends every run as DiskFull", "sandbox/limit-disk", "a run that keeps within its limits ends with"),
    ("ends large runs as SandboxError", "sandbox/limit-disk", "beyond disk_bytes ends with \"SandboxError\""),
    ("gives nothing of large runs", "sandbox/limit-disk", "says \"\" instead of how many"),
    ("has no place for files", "sandbox/limit-disk", "has written 0 bytes"),
    ("runs code on the host", "sandbox/isolation", "a run has read the host's file"),
    ("shows the command lines of the host", "sandbox/isolation", "[[\"77\",\"kit --of-the-host\"]]"),
    ("runs code on the host", "sandbox/runs-apart", "finds the files of the run before it"),
    ("has the interpreter of the last run", "sandbox/runs-apart", "has left in the interpreter: [\"a module (json)\""),
    ("has the interpreter of another tenant", "sandbox/runs-apart", "has left in the interpreter: ["),
    ("runs code on the host", "sandbox/egress-none", "has reached the host: tcp 127.0.0.1"),
    ("runs code on the host", "sandbox/egress-gate", "the run failed"),
    ("leaves a way out beside the gate", "sandbox/egress-gate", "a run with mode SKG_NET_GATE could open: metadata service"),
    ("runs code on the host", "sandbox/mounts", "the run failed"),
    ("runs code on the host", "sandbox/leftovers", "processes of a run go on"),
    ("leaves a file of each run", "sandbox/files-left", "6 files or directories are there that were not before: state_dir/run-"),
    ("counts processor time in milliseconds", "sandbox/measured", "a run that has computed for 300 ms by its own clock has cpu_us "),
    ("counts processor time in nanoseconds", "sandbox/measured", "a run that has computed for 300 ms has cpu_us "),
    ("counts memory in pages", "sandbox/measured", "has peak_memory_bytes "),
    ("counts the host's memory", "sandbox/measured", "peak_memory_bytes is 18446744073709551615, and this machine has "),
    ("runs code on the host", "sandbox/killed", "go on in the next one"),
];

/// Ways that the bundled sandbox does not take, and which are right all the same: to say that a limit was reached, and to
/// hand over what it listens on.
const RIGHT_TOO: &[(&str, &str)] = &[
    ("ends large runs as OutOfMemory", "sandbox/limit-memory"),
    ("ends large runs as MemoryError", "sandbox/limit-memory"),
    ("ends large runs as TooManyProcesses", "sandbox/limit-pids"),
    ("ends large runs as DiskFull", "sandbox/limit-disk"),
    (
        "gives a listener that does not block",
        "sandbox/egress-gate",
    ),
];

/// Only the superuser has this to give away.
#[rustfmt::skip]
const AS_ROOT: &[Row] = &[("runs code on the host", "sandbox/nonroot", "ids [0, 0, 0]")];

/// Plugins in C, compiled as said: what is wrong with them is in the file.
#[rustfmt::skip]
pub(crate) const IN_C: &[Row] = &[
    ("-DVERSION=\"one\"", "file/identity", "which is not SemVer"),
    ("-DANY_FACTORY", "contract/unknown-ids", "get_factory gives something for"),
    // It says that it has made an instance, and gives none.
    ("-DFLAGS=0", "contract/bad-configuration", "instance: is null"),
    ("-DNOTE_MAJOR=9 -DENTRY_MAJOR=9", "file/inspected", "built for major 9 of the plugin contract"),
    ("-DENTRY_MAJOR=9", "file/loads", "built for major 9 of the plugin contract"),
    ("-DMIN_HOST=7", "file/inspected", "needs a host with minor 7"),
    ("-DMAGIC=0x12345678u", "file/loads", "magic is 0x12345678"),
    ("-DENTRY_ID=\"org.skillgate.other\"", "file/loads", "its note says"),
    ("-DNO_NOTE", "file/inspected", "no SkillGate ELF note"),
    ("-DNO_ENTRY", "file/inspected", "does not export the data symbol"),
    ("-Wl,-rpath,/somewhere", "file/inspected", "library search path"),
    ("-Wl,-z,execstack", "file/inspected", "executable stack"),
    ("-DCRASH_IN_CREATE", "contract/many-lives", "its last words: create has no future"),
];

/// Its create() refuses, whatever its configuration is.
pub(crate) const NEEDS_ROOT: (&str, &str) = (
    "    s = calloc(1, sizeof *s);\n",
    "    if (req != NULL) return refuse(err, SKG_E_PRECONDITION, \"needs root\");\n    s = calloc(1, sizeof *s);\n",
);

/// The store in C with other words in the place of some.
#[rustfmt::skip]
const CHANGED: &[(Row, &[(&str, &str)])] = &[
    (("gives a blob to the tenant who has begun one last", "storage/blobs-at-once", "that was written beside others is not there for \"check\""), &[
        ("static int32_t blob_create(", "static skg_str last;\nstatic int32_t blob_create("),
        ("b->tenant = put_text(", "last = b->tenant = put_text("),
        ("b->stat.id = ", "b->tenant = last;\n    b->stat.id = "),
    ]),
    (("has a list without a lock", "storage/blobs-committed-at-once", "128 blobs were committed by 16 callers at once, each with SKG_OK, and "), &[
        ("% BUCKETS]", "% 1]"),
        ("    pthread_mutex_lock(&s->lock);\n    bucket = bucket_of(s, b->stat.id);\n    b->next = *bucket;\n    *bucket = b;\n    b->users++;\n    pthread_mutex_unlock(&s->lock);\n",
         "    bucket = bucket_of(s, b->stat.id);\n    b->next = *bucket;\n    { struct timespec t = {0, 200000}; nanosleep(&t, NULL); }\n    *bucket = b;\n    b->users++;\n"),
    ]),
    (("needs what this host lacks", "contract/instance", "it makes no instance from its configuration: needs root (code -9)"), &[
        NEEDS_ROOT,
    ]),
    (("counts its blobs", "storage/blob-ids", "64 blobs have ids that differ from one another in "), &[
        ("    memcpy(id, \"blob:\", 5);", "    static unsigned count;\n    count++;\n    memset(random, 0, sizeof random);\n    memcpy(random, &count, sizeof count);\n    memcpy(id, \"blob:\", 5);"),
    ]),
    (("gives ids of 80 bits", "storage/blob-digests", "is not \"blob:\" and 128 random bits"), &[
        ("#define ID_BYTES 31u ", "#define ID_BYTES 21u "),
    ]),
    (("writes its ids in base64", "storage/blob-digests", "+\" is not \"blob:\" and at most 123 of A-Z a-z 0-9 . _ -"), &[
        ("letters[random[i] & 31];", "letters[random[i] & 31];\n    id[ID_BYTES - 1] = '+';"),
    ]),
    (("begins its ids with a dot", "contract/answers", "is not \"blob:\" and at most 123 of A-Z a-z 0-9 . _ -"), &[
        ("letters[random[i] & 31];", "letters[random[i] & 31];\n    id[5] = '.';"),
    ]),
    (("takes its ids from rand()", "storage/blob-ids", "was given a second time, in another life"), &[
        ("    memcpy(id, \"blob:\", 5);", "    for (i = 0; i < sizeof random; i++) random[i] = (uint8_t)(rand() >> 8);\n    memcpy(id, \"blob:\", 5);"),
    ]),
];

fn limit(sabotage: &str) -> Duration {
    match sabotage {
        "hangs" | "hangs on what is cancelled already" | "does not limit time" => SHORT,
        _ => LIMIT,
    }
}

/// Fails in this case, for this reason, and loads.
fn found(report: &Report, (sabotage, case, part): Row) -> Result<(), String> {
    let failed = ended(report, Status::Failed);
    let seen = report
        .cases
        .iter()
        .find(|c| c.name == case)
        .map_or("", |c| &c.seen);
    if failed == [case] && seen.contains(part) {
        return Ok(());
    }
    Err(format!(
        "{sabotage}: {case} has to see {part:?}\n{}",
        table(report)
    ))
}

fn all_found(kind: &str, inner: &str, rows: &[Row]) {
    let mut missed = Vec::new();
    for row in rows {
        let (sabotage, case, _) = *row;
        let settings = Settings {
            only: vec![case.to_owned()],
            limit_max: Some(limit(sabotage)),
            ..settings(&saboteur(kind), &sabotaged(inner, sabotage))
        };
        missed.extend(found(&run(&settings), *row).err());
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}

#[test]
fn what_a_store_does_wrong_is_found_by_name() {
    all_found("store", "storage_fs", STORE);
}

#[test]
fn what_a_sandbox_does_wrong_is_found_by_name() {
    all_found("sandbox", "sandbox_process", SANDBOX);
    if is_root() {
        all_found("sandbox", "sandbox_process", AS_ROOT);
    }
}

#[test]
fn what_says_it_otherwise_within_the_contract_passes() {
    for (says, case) in RIGHT_TOO {
        let settings = Settings {
            only: vec![(*case).to_owned()],
            limit_max: Some(LIMIT),
            ..settings(&saboteur("sandbox"), &sabotaged("sandbox_process", says))
        };
        let report = run(&settings);
        assert_eq!(
            ended(&report, Status::Passed),
            ["file/loads", *case],
            "{says}: {}",
            table(&report)
        );
    }
}

fn is_found(plugin: &std::path::Path, (sabotage, case, part): Row) {
    let settings = Settings {
        only: vec![case.to_owned()],
        limit_max: Some(LIMIT),
        ..settings(plugin, &serde_json::json!({}))
    };
    let report = run(&settings);
    // A file that is not in order does not load either.
    let failed = report
        .cases
        .iter()
        .find(|c| c.name == case && c.status == Status::Failed);
    let seen = failed.is_some_and(|case| case.seen.contains(part));
    assert!(
        seen && !report.is_good(),
        "{sabotage}: {case} has to see {part:?}\n{}",
        table(&report)
    );
}

/// What ends a case's process is told with general rules, but where it is what the case looks for.
#[test]
fn a_fault_in_memory_that_was_taken_back_is_told_with_the_rule_that_it_breaks() {
    for (sabotage, case, function, advice) in [
        (
            "keeps a request",
            "contract/borrowed",
            "rule 1",
            "copy what is needed later",
        ),
        (
            "reads an empty text",
            "contract/empty-values",
            "skg_str",
            "look at len before ptr",
        ),
        (
            "segfaults",
            "operations/exactly-once",
            "rules 3 to 5",
            "`skillgate plugin check --only",
        ),
    ] {
        let settings = Settings {
            only: vec![case.to_owned()],
            ..settings(&saboteur("store"), &sabotaged("storage_fs", sabotage))
        };
        let report = run(&settings);
        let told = report.cases.iter().find(|told| told.name == case).unwrap();
        assert_eq!(told.function, function, "{}", table(&report));
        assert!(told.advice.starts_with(advice), "{}", table(&report));
    }
}

#[test]
fn what_is_wrong_with_a_file_is_found_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (i, row) in IN_C.iter().enumerate() {
        let options: Vec<_> = row.0.split(' ').collect();
        is_found(&probe(dir.path(), &format!("probe{i}"), &options), *row);
    }
}

#[test]
fn what_a_store_in_c_does_wrong_is_found_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (row, changes) in CHANGED {
        is_found(&changed_c(dir.path(), changes), *row);
    }
}

/// What is right, and not as the bundled store does it: a store for reading, with other letters in ids and capitals in digests.
#[test]
fn what_a_store_says_otherwise_within_the_contract_passes() {
    let dir = tempfile::tempdir().unwrap();
    let changes = [
        ("SKG_ST_SKILLS | SKG_ST_SKILLS_WRITE |", "SKG_ST_SKILLS |"),
        ("    t->skill_put = skill_put;", "    (void)skill_put;"),
        // 128 random bits in base64url.
        ("#define ID_BYTES 31u ", "#define ID_BYTES 27u "),
        (
            "abcdefghijklmnopqrstuvwxyz234567",
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
        ),
        ("letters[random[i] & 31]", "letters[random[i] & 63]"),
        (
            "    sha256_hex(&h->digest, b->sha256);",
            "    sha256_hex(&h->digest, b->sha256);\n    { int i; for (i = 0; i < 64; i++) if (b->sha256[i] >= 'a') b->sha256[i] -= 32; }",
        ),
    ];
    let cases = [
        "storage/caps",
        "storage/blobs-at-once",
        "storage/blob-digests",
        "storage/blob-ids",
    ];
    let settings = Settings {
        only: cases.map(str::to_owned).to_vec(),
        ..settings(&changed_c(dir.path(), &changes), &serde_json::json!({}))
    };
    let report = run(&settings);
    let passed = ended(&report, Status::Passed);
    let all = ["file/loads"].into_iter().chain(cases);
    assert_eq!(passed, all.collect::<Vec<_>>(), "{}", table(&report));
}

/// With one at a time there is nothing to be mixed up, and that is no fault.
#[test]
fn a_store_that_has_room_for_one_blob_at_a_time_is_asked_for_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let one = ("define HANDLES_MAX 1024u", "define HANDLES_MAX 1u");
    let case = "storage/blobs-at-once";
    let settings = Settings {
        only: vec![case.to_owned()],
        ..settings(&changed_c(dir.path(), &[one]), &serde_json::json!({}))
    };
    let report = run(&settings);
    assert_eq!(
        ended(&report, Status::Skipped),
        [case],
        "{}",
        table(&report)
    );
}

/// Not only the calls that every plugin answers at once.
#[test]
fn one_call_of_many_that_waits_on_the_event_loop_is_found_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let at_once = ("SKG_F_BLOCKING", "0u");
    let commit = "static int32_t blob_commit(void *self, skg_op op, uint64_t writer) {\n    struct store *s = self;\n    struct handle *h;\n    struct blob *b, **bucket;\n    uint8_t *exact;\n";
    let waits = format!("#include <poll.h>\n{commit}    poll(NULL, 0, 200);\n");
    let case = "operations/returns";
    let row = ("waits in blob_commit", case, "blob_commit returns after 2");
    is_found(&changed_c(dir.path(), &[at_once, (commit, &waits)]), row);
    let good = Settings {
        only: vec![case.to_owned()],
        ..settings(&changed_c(dir.path(), &[at_once]), &serde_json::json!({}))
    };
    let report = run(&good);
    assert!(report.is_good(), "{}", table(&report));
}

#[test]
fn an_exception_across_the_boundary_is_found_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let Some(plugin) = thrower(dir.path()) else {
        return;
    };
    let row = ("throws in create()", "contract/many-lives", "SIGABRT");
    is_found(&plugin, row);
}

/// A check that nothing can fail checks nothing.
#[test]
fn for_every_case_there_is_a_plugin_that_fails_it() {
    let fails = |case: &&str| {
        let rows = [STORE, SANDBOX, IN_C, AS_ROOT].concat();
        let changed = CHANGED.iter().map(|(row, _)| row);
        rows.iter().chain(changed).any(|row| row.1 == *case)
    };
    let never: Vec<_> = case_names().filter(|case| !fails(case)).collect();
    // One measures, the other is too large for every day.
    assert_eq!(never, ["storage/blob-large", "figures/calls"]);
}

/// The wrapper adds nothing of its own: without a sabotage it passes what it fails with one.
#[test]
fn without_sabotage_the_same_plugins_pass() {
    // One that runs code on the host wraps nothing.
    let wraps = |row: &&Row| row.0 != "runs code on the host";
    for (kind, inner, rows) in [
        ("store", "storage_fs", STORE),
        ("sandbox", "sandbox_process", SANDBOX),
    ] {
        let settings = Settings {
            only: rows
                .iter()
                .filter(wraps)
                .map(|row| row.1.to_owned())
                .collect(),
            ..settings(&saboteur(kind), &sabotaged(inner, "none"))
        };
        let report = run(&settings);
        let skipped = ended(&report, Status::Skipped);
        let skipped_fairly = skipped.iter().all(|case| not_enforced().contains(case));
        assert!(report.is_good() && skipped_fairly, "{}", table(&report));
    }
}
