//! The gateway has every secret and every token in its memory. No dump of it is left on a disk or given to a handler of the host.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Bytes of a dump of this process. The kernel writes no file as short as that; and a handler (a pipe in `kernel.core_pattern`),
/// which it calls with a limit of 0 too, it does not call with this one (core(5)).
const DUMP_BYTES_MAX: u64 = 1;

/// Lets the kernel make no dump of this process, nor of what it starts. What is above it stays in the hard limit, for an operator
/// who wants one of a process that runs: prlimit(1).
pub fn leave_no_dump() {
    let limit = getrlimit(Resource::Core);
    // With a hard limit of 0 none but root can have this one: for all others it stays what it was.
    let _ = setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(DUMP_BYTES_MAX),
            maximum: limit.maximum.map(|bytes| bytes.max(DUMP_BYTES_MAX)),
        },
    );
}
