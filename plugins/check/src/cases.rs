//! The list of cases. What each demands is what the header says, in a sentence.

use std::time::Duration;

use crate::bench::{Bench, Done};
use crate::run::{CREATE_ADVICE, CREATE_DEMANDS};
use crate::sandbox::{
    egress, files as sandbox_files, isolation, life, limits, measured, runs, skills as run_skills,
};
use crate::storage::{
    at_once, blobs, committed_at_once, ids, lent, life as store_life, skills, writers,
};
use crate::{contract, figures, file, operations, process_state};

/// What has to be there for a case to make sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    File,
    Plugin,
    Storage,
    Sandbox,
}

pub(crate) struct Case {
    /// `group/name`.
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    /// The watchdog's.
    pub(crate) limit: Duration,
    pub(crate) full_only: bool,
    /// A plugin that does not do what it demands touches memory that faults.
    pub(crate) by_fault: bool,
    /// Of the header: what it is about.
    pub(crate) function: &'static str,
    pub(crate) demands: &'static str,
    pub(crate) advice: &'static str,
    pub(crate) run: fn(&Bench) -> Done,
}

/// What a case may take that makes instances and calls.
const LIMIT: Duration = Duration::from_secs(60);
/// What one may take that waits for the plugin's own limits, or makes many instances.
const LONG: Duration = Duration::from_secs(180);
/// What one may take that moves gigabytes.
const LARGE: Duration = Duration::from_secs(1800);

const fn case(
    name: &'static str,
    needs: Needs,
    function: &'static str,
    demands: &'static str,
    advice: &'static str,
    run: fn(&Bench) -> Done,
) -> Case {
    Case {
        name,
        needs,
        limit: LIMIT,
        full_only: false,
        by_fault: false,
        function,
        demands,
        advice,
        run,
    }
}

const fn long(case: Case) -> Case {
    Case {
        limit: LONG,
        ..case
    }
}

const fn by_fault(case: Case) -> Case {
    Case {
        by_fault: true,
        ..case
    }
}

use Needs::{File, Plugin, Sandbox, Storage};

#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    // === the file ===
    case("file/inspected", File, "SKG_NOTE",
        "a 64-bit ELF object for this processor with the SkillGate note and the entry symbol, without RPATH, executable stack and text relocations",
        "build it as the message says; `skillgate plugin inspect` shows what is found", file::inspected),
    case("file/loads", File, "skg_entry_v1",
        "the dynamic loader takes it, its entry says what its note says, and get_factory gives at least one factory",
        "export one skillgate_plugin_entry_v1, and write note and entry from the same constants", file::loads),
    case("file/identity", Plugin, "skg_plugin_info",
        "a stable id in reverse-DNS of at most 43 bytes, a SemVer version, a JSON Schema or none",
        "correct the texts of skg_plugin_info", file::identity),

    // === the contract ===
    case("contract/instance", Plugin, "create", CREATE_DEMANDS, CREATE_ADVICE, contract::instance),
    case("contract/struct-sizes", Plugin, "struct_size",
        "a producer sets struct_size (and stride) to sizeof of the struct of the header that it was built with",
        "write sizeof, never a number; zero a struct before it is filled", contract::sizes),
    case("contract/unknown-ids", Plugin, "get_factory",
        "NULL for a kind or an extension that it does not offer",
        "compare the whole id", contract::unknown_ids),
    by_fault(case("contract/older-host", Plugin, "SKG_HAS",
        "a field that the oldest host of this major does not have is read only when SKG_HAS says that it is there",
        "ask SKG_HAS before every field that is newer than your min_host_minor; never copy a host's struct by your own sizeof", contract::older_host)),
    by_fault(case("contract/newer-host", Plugin, "SKG_AT",
        "what a newer host adds is ignored: longer structs, wider strides, a higher minor",
        "walk lists with SKG_AT, refuse neither a larger struct_size nor a higher abi_minor", contract::newer_host)),
    by_fault(case("contract/empty-values", Plugin, "skg_str",
        "a text, list or byte string of length 0 is empty whatever its pointer is, and an op with such a request ends once",
        "look at len before ptr; answer SKG_E_INVALID_ARGUMENT when something is needed", contract::empty_values)),
    by_fault(case("contract/borrowed", Plugin, "rule 1",
        "what a call is given by pointer is looked at until that call returns, and not later",
        "copy what is needed later; dup a descriptor", contract::borrowed)),
    case("contract/bad-configuration", Plugin, "create",
        "a configuration that is wrong is an error with a message in *err, and the next create works",
        "parse with limits, answer SKG_E_INVALID_ARGUMENT and say what is wrong", contract::bad_configuration),
    long(case("contract/many-lives", Plugin, "destroy",
        "an instance can be made and destroyed any number of times in a process",
        "keep nothing of an instance in statics", contract::many_lives)),
    case("contract/two-instances", Plugin, "create",
        "instances of one plugin do not disturb each other (or the entry says SKG_F_SINGLETON)",
        "keep nothing of an instance in statics, or set SKG_F_SINGLETON", contract::two_instances),
    case("contract/answers", Plugin, "complete",
        "answers are whole: no NULL where a result is due, UTF-8 texts, within the bounds of skg_completion; health says numbers and layers",
        "see what the message names; a result is zeroed, filled and given to complete() in one go", contract::answers),

    // === operations ===
    case("operations/exactly-once", Plugin, "complete",
        "an op that was accepted is completed exactly once, one that was refused never (rule 3)",
        "let one place own an op and its completion", operations::exactly_once),
    long(case("operations/many-in-flight", Plugin, "skg_op",
        "every function may be called from any thread at any time, concurrently with itself; no room is SKG_E_EXHAUSTED",
        "guard what calls share; do not hold a lock while you wait", operations::many_in_flight)),
    case("operations/cancel-before", Plugin, "cancel",
        "cancel takes any op; a call whose op is cancelled already ends soon",
        "ask op_cancelled() after the op is registered", operations::cancel_before),
    case("operations/cancel-during", Plugin, "cancel",
        "an op that is cancelled is completed soon, with SKG_E_CANCELLED or its result; cancel itself never blocks",
        "let cancel() wake whoever works for the op, and wait for nobody", operations::cancel_during),
    case("operations/cancel-after", Plugin, "cancel",
        "cancel of an op that has ended does nothing",
        "forget an op when it is completed", operations::cancel_after),
    case("operations/returns", Plugin, "SKG_F_BLOCKING",
        "with SKG_F_BLOCKING every op is complete when its call returns; without, every call returns within about a millisecond",
        "set the flag if calls wait, or give the work to a thread", operations::returns),
    case("operations/drain", Plugin, "drain",
        "after drain new work is SKG_E_UNAVAILABLE, and what is open goes on; drain is completed when nothing is in flight",
        "count what is in flight; refuse what begins something, and nothing else", operations::drain),
    case("operations/after-destroy", Plugin, "destroy",
        "destroy returns when every thread of the instance is gone; then the host table is invalid",
        "join the threads in destroy()", operations::after_destroy),

    // === the process ===
    case("process/signals", Plugin, "rule 5",
        "signal handlers and masks stay as they are",
        "take no signals; for a runtime that cannot do without, set SKG_F_OWN_PROCESS and say so", process_state::signals),
    case("process/working-directory", Plugin, "rule 5",
        "the working directory stays as it is", "use paths below a directory's descriptor (openat)", process_state::working_directory),
    case("process/umask", Plugin, "rule 5",
        "the umask stays as it is", "set modes with fchmod", process_state::umask),
    case("process/environment", Plugin, "rule 5",
        "the environment stays as it is", "pass variables to a program that you start, with execve", process_state::environment),
    case("process/locale", Plugin, "rule 5",
        "the locale stays as it is", "use uselocale() on your own threads, or none", process_state::locale_kept),
    case("process/limits", Plugin, "rule 5",
        "resource limits stay as they are", "set limits in the processes that you start", process_state::limits),
    case("process/identity", Plugin, "rule 5",
        "user, groups and no_new_privs stay as they are", "change them in the processes that you start", process_state::identity),
    case("process/descriptors", Plugin, "SKG_FD",
        "descriptors of others stay open, and those of an instance are closed when it is destroyed",
        "close what you open, once; open with O_CLOEXEC", process_state::descriptors_kept),
    case("process/threads", Plugin, "destroy",
        "the number of threads does not grow with the number of instances that were destroyed",
        "join the threads in destroy()", process_state::threads_kept),
    case("process/children", Plugin, "destroy",
        "no process that an instance has started is left when destroy has returned",
        "end and wait for the processes that you start", process_state::children_kept),
    case("process/zombies", Plugin, "run",
        "a process that an instance has started and that has ended is waited for, while the instance lives and before destroy returns",
        "call waitpid() for each process that you start, at the latest when its run is completed", process_state::zombies_kept),
    case("process/streams", Plugin, "rule 5",
        "nothing is written to standard output and standard error", "use host->log", process_state::streams),

    // === storage ===
    case("storage/publish-and-read", Storage, "skill_get",
        "skill_get, skill_list, skill_read and skill_tree give what skill_put was given, a directory so that others can read it",
        "compare with what the message shows; set modes with fchmod, whatever the umask", skills::publish_and_read),
    case("storage/publish-twice", Storage, "skill_put",
        "the same version with the same content succeeds and changes nothing, with other content it is SKG_E_ALREADY_EXISTS",
        "compare tree_sha256 with that of what is there", skills::publish_twice),
    case("storage/caps", Storage, "skill_put",
        "caps has bits of the header, and what each promises is there: no function of it is NULL, and with SKG_ST_SKILLS_WRITE skill_put takes a skill, without it is SKG_E_UNIMPLEMENTED",
        "set in caps what is there, and nothing else: SKG_ST_SKILLS_WRITE if skill_put publishes; if not, leave skill_put NULL or say SKG_E_UNIMPLEMENTED", skills::caps),
    case("storage/order", Storage, "skill_list",
        "by namespace, then name (bytes, ascending), then version (SemVer precedence, descending; build metadata last)",
        "see skg_skill_key", skills::order),
    case("storage/cursors", Storage, "skill_list",
        "a page has only what sorts strictly after `after`; following pages to the end gives every version once",
        "compare with `after`; do not look for the skill that it names, which may be gone", skills::cursors),
    case("storage/latest", Storage, "skill_get",
        "no version: the highest by SemVer precedence, a pre-release only when there is nothing else",
        "compare versions as numbers, and pre-releases as SemVer says", skills::latest),
    case("storage/names", Storage, "skill_put",
        "a store checks again what it turns into a path of its own: names, versions and paths do not leave their place",
        "refuse paths with \"..\", empty and absolute parts; encode what becomes a file's name", skills::names),
    case("storage/tenants", Storage, "skill_get",
        "what one tenant has stored does not exist for another: SKG_E_NOT_FOUND",
        "make the tenant a part of every key", skills::tenants),
    case("storage/concurrent-publish", Storage, "skill_put",
        "of those who publish one version at the same time one wins (with the same content all do), and it is never visible in part",
        "build it aside and make it visible in one step (rename, transaction)", skills::concurrent_publish),
    case("storage/skills-published-at-once", Storage, "skill_put",
        "calls come from several threads at once: each skill of those that are published at the same time is there when it was completed with SKG_OK",
        "guard with one lock what calls share: from the look at a list to the change of it", committed_at_once::skills),
    case("storage/blob-sizes", Storage, "blob_write",
        "a blob is what was written, whatever its size", "look at the ends of your chunks and buffers", blobs::sizes),
    by_fault(case("storage/blob-buffers", Storage, "blob_read",
        "blob_read writes at most cap bytes and blob_write reads len, and both leave their buffers alone once their op is complete",
        "bound what you copy by cap; copy what you need later, and complete last of all", lent::buffers)),
    Case { limit: LARGE, full_only: true, ..case("storage/blob-large", Storage, "blob_write",
        "a blob of more than 4 GiB is like any other", "use 64 bits for sizes and offsets; do not keep a blob in memory", blobs::large) },
    case("storage/blobs-at-once", Storage, "blob_write",
        "writers and readers, of several tenants, may be open at the same time: each is its own blob's and has its own place; no room is SKG_E_EXHAUSTED",
        "keep what belongs to a writer or a reader under its handle, and nothing of it beside that", at_once::at_once),
    case("storage/blobs-committed-at-once", Storage, "blob_commit",
        "calls come from several threads at once: each blob of those that are committed at the same time is there when it was completed with SKG_OK",
        "guard with one lock what calls share: from the look at a list to the change of it", committed_at_once::blobs),
    case("storage/blob-ranges", Storage, "blob_open",
        "a reader gives [offset, offset+len), len 0 to the end; an offset beyond the end is SKG_E_OUT_OF_RANGE",
        "cut at the blob's end", blobs::ranges),
    case("storage/blob-max-bytes", Storage, "blob_write",
        "a write beyond max_bytes is SKG_E_OUT_OF_RANGE", "count before you write", blobs::max_bytes),
    case("storage/blob-abort", Storage, "blob_abort",
        "a writer that is given up is thrown away, with all that it holds", "free it in blob_abort", blobs::abort),
    case("storage/blob-writer-ends", Storage, "blob_commit",
        "a writer is gone with blob_commit, also when that fails, and with blob_abort: blob_write then ends with SKG_E_STALE",
        "forget the writer first, and then make the blob of it", writers::end),
    case("storage/blob-close", Storage, "blob_close",
        "a reader that is closed is thrown away, with all that it holds", "free it in blob_close", blobs::close),
    case("storage/blob-delete", Storage, "blob_delete",
        "from then on it is as if it had never been; another tenant cannot delete it", "look for the tenant's blob first", blobs::delete),
    case("storage/blob-ttl", Storage, "skg_blob_create_request.ttl_s",
        "after ttl_s a blob is as if deleted, with 0 never; a clock may be coarse, and the kit waits up to 10 s longer",
        "look at its end whenever the blob is looked for; its bytes may be freed later", blobs::ttl),
    case("storage/blob-delete-while-open", Storage, "blob_delete",
        "open readers may go on, or end with SKG_E_NOT_FOUND; they give no other bytes", "keep what a reader needs until blob_close", blobs::delete_while_open),
    case("storage/blob-digests", Storage, "blob_commit",
        "sha256, size, kind and owner are the blob's; an id is \"blob:\" and at least 128 random bits, as 22 to 123 of A-Z a-z 0-9 . _ -, the first no '.'",
        "hash what was written; take ids from the system's randomness, and write them as hex or base64url", blobs::digests),
    long(case("storage/blob-ids", Storage, "skg_blob_stat.id",
        "an id is \"blob:\" and at least 128 random bits: from those of other blobs, and of other lives, none can be guessed",
        "take all of it from the system's randomness (getrandom), for each blob anew: no counter, no clock, no rand()", ids::ids)),
    case("storage/blob-descriptors", Storage, "blob_fd",
        "a read-only, seekable descriptor of the content, which others can read where it has a name",
        "open with O_RDONLY; set the mode with fchmod, whatever the umask", blobs::descriptors),
    case("storage/blob-tenants", Storage, "blob_open",
        "another tenant's blob, and an id that was never given, is SKG_E_NOT_FOUND", "make the tenant a part of every key", blobs::tenants),
    long(case("storage/durability", Storage, "skill_put",
        "what was completed with SKG_OK is there in the next life of the instance, what was not is there whole or not at all",
        "make it durable (fsync of file and directory) before complete(), or say SKG_ST_VOLATILE in caps", store_life::durability)),
    long(case("storage/blob-durability", Storage, "blob_commit",
        "what was completed with SKG_OK is as it was left in the next life of the instance: a blob is there, a deleted one is not",
        "make it durable (fsync of file and directory) before complete(), or say SKG_ST_VOLATILE in caps", store_life::blob_durability)),

    // === the sandbox ===
    case("sandbox/languages", Sandbox, "run", "a language that it does not run is SKG_E_UNIMPLEMENTED with SKG_ERR_NOT_EXECUTED", "compare the whole name", runs::languages),
    case("sandbox/answers", Sandbox, "run", "code gets its arguments, and what it returns is output_json", "use the guest that skillgate ships", runs::answers),
    case("sandbox/failures", Sandbox, "run", "a failure of the code is a result (SKG_RUN_FAILED) with the exception's class, and the next run works", "use the guest that skillgate ships, below a process that is pid 1 and not the code", runs::failures),
    case("sandbox/output", Sandbox, "run_output", "output of the skill, in order per stream; when the host has enough, keep draining", "do not stop reading at SKG_E_EXHAUSTED", runs::output_streams),
    case("sandbox/secrets", Sandbox, "secret_read", "a run finds the secrets that its request names in its environment, and nobody else does", "ask for them per run, hand them over where only the run reads them (no command line), wipe them after", runs::secrets),
    case("sandbox/blobs", Sandbox, "blob_create", "a run reads the blobs that are mounted for it, and those that it stores are output_blobs", "copy SKG_SRC_BLOB with blob_fd or blob_read; list what blob_finish has given", runs::blobs),
    case("sandbox/large-output", Sandbox, "skg_run_result.output_spilled", "output over limits.output_bytes is a blob, the last of output_blobs, and output_spilled is 1", "use the guest that skillgate ships, and tell it output_bytes", runs::large_output),
    case("sandbox/mounts", Sandbox, "skg_mount", "a read_only mount can be read and not changed", "mount it read-only inside, not by its mode", runs::mounts),
    case("sandbox/skills", Sandbox, "skg_run_skill", "a skill, mounted as a directory or from a tar, is called by its function and imported by code", "take every SKG_SRC_* of a mount; use the guest that skillgate ships", run_skills::skills),
    case("sandbox/many", Sandbox, "run", "runs at the same time, as many as max_concurrent says, each with its own answer", "say a smaller max_concurrent, or share less", runs::many),
    case("sandbox/limit-wall", Sandbox, "skg_limits.wall_ms", "caps.enforces has SKG_LIMIT_WALL, so a run ends at wall_ms, as \"Timeout\"", "end it yourself, or take SKG_LIMIT_WALL out of caps", limits::wall),
    long(case("sandbox/limit-cpu", Sandbox, "skg_limits.cpu_ms", "caps.enforces has SKG_LIMIT_CPU, so a run ends when it has used cpu_ms", "enforce it, or take SKG_LIMIT_CPU out of caps", limits::cpu)),
    case("sandbox/limit-memory", Sandbox, "skg_limits.memory_bytes", "caps.enforces has SKG_LIMIT_MEMORY, so a run cannot use more than memory_bytes, and one that tries ends as \"OutOfMemory\", or with its MemoryError", "enforce it, or take SKG_LIMIT_MEMORY out of caps", limits::memory),
    case("sandbox/limit-pids", Sandbox, "skg_limits.max_pids", "caps.enforces has SKG_LIMIT_PIDS, so a run cannot have more than max_pids processes and threads: fork fails, or the run ends as \"TooManyProcesses\"", "enforce it, or take SKG_LIMIT_PIDS out of caps", limits::pids),
    case("sandbox/limit-disk", Sandbox, "skg_limits.disk_bytes", "caps.enforces has SKG_LIMIT_DISK, so /workspace, /tmp and /dev/shm together hold disk_bytes: a write fails, or the run ends as \"DiskFull\"", "enforce it, or take SKG_LIMIT_DISK out of caps", limits::disk),
    case("sandbox/nonroot", Sandbox, "SKG_LIMIT_NONROOT", "caps.enforces has SKG_LIMIT_NONROOT, so no run is root", "run as another user, or take SKG_LIMIT_NONROOT out of caps", limits::nonroot),
    case("sandbox/isolation", Sandbox, "skg_sandbox_caps.isolation", "a run sees neither files nor processes nor the environment of the host, and writes nothing there", "give it a root, a /proc and an environment of its own", isolation::host),
    case("sandbox/runs-apart", Sandbox, "run", "create, execute, collect, destroy: a run finds nothing of another, neither files nor what that one has changed in its interpreter, whichever tenant's it was", "throw a run's directories away with it, and give no interpreter a second run", isolation::runs_apart),
    case("sandbox/egress-none", Sandbox, "SKG_EGRESS_CAN_DENY", "caps.egress has SKG_EGRESS_CAN_DENY, so with SKG_NET_NONE there is no way out", "give the run a network namespace of its own with nothing in it", egress::none),
    case("sandbox/egress-gate", Sandbox, "gate_serve", "caps.egress has SKG_EGRESS_GATE_LISTENER, so with SKG_NET_GATE the gate can be reached from inside, and nothing else", "make the listener inside, hand it to gate_serve, set http_proxy and https_proxy", egress::gate),
    case("sandbox/leftovers", Sandbox, "run", "no process of a run is left when it has ended", "end a run's processes by its namespace or control group, not one by one", life::leftovers),
    case("sandbox/files-left", Sandbox, "run", "create, execute, collect, destroy: a run leaves no file in state_dir, and none where the configuration says, when it has ended", "remove a run's directory, sockets and files when it has ended, however it has", sandbox_files::left),
    case("sandbox/measured", Sandbox, "skg_run_result", "cpu_us and peak_memory_bytes are what the run has used, in microseconds and bytes, and 0 where that is not known", "take them from its control group, or from wait4(), which counts of its process what that one has waited for, in the units of their names; or leave them 0", measured::used),
    long(case("sandbox/killed", Sandbox, "create", "create removes what an earlier life of the instance has left behind (kill -9)", "mark what you make with instance_id; sweep in create()", life::killed)),

    // === figures ===
    case("figures/calls", Plugin, "health", "calls succeed; what they cost is reported", "see the message", figures::calls),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_case_has_a_name_of_its_own_in_a_group() {
        let groups = [
            "file",
            "contract",
            "operations",
            "process",
            "storage",
            "sandbox",
            "figures",
        ];
        let mut names = HashSet::new();
        for case in CASES {
            let (group, _) = case.name.split_once('/').unwrap();
            assert!(groups.contains(&group), "{}", case.name);
            assert!(names.insert(case.name), "{} is there twice", case.name);
        }
    }
}
