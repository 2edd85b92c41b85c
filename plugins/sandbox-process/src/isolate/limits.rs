//! The limits of each process of a run (setrlimit(2)); those of a run as a whole are its control group's.

use std::io;

use super::Isolation;
use crate::sys;

const OPEN_FILES_MAX: u64 = 1024;
const LOCKED_BYTES_MAX: u64 = 64 * 1024;
const STACK_BYTES: u64 = 8 << 20;
const PENDING_SIGNALS_MAX: u64 = 1024;
/// Address space is not memory: this only stops what would burn page tables and nothing else. The cgroup limits memory.
const ADDRESS_SPACE_MIN: u64 = 4 << 30;

impl Isolation<'_> {
    /// Limits that are the same for every run.
    pub(super) fn set_common_limits(&self) -> io::Result<()> {
        let limits = [
            (libc::RLIMIT_NOFILE as i32, OPEN_FILES_MAX),
            (libc::RLIMIT_STACK as i32, STACK_BYTES),
            (libc::RLIMIT_MEMLOCK as i32, LOCKED_BYTES_MAX),
            (libc::RLIMIT_SIGPENDING as i32, PENDING_SIGNALS_MAX),
            // 1, not 0: for a core handler behind a pipe, which runs as root on the host, 0 means "no limit of mine".
            (libc::RLIMIT_CORE as i32, 1),
            (libc::RLIMIT_MSGQUEUE as i32, 0),
            (libc::RLIMIT_NICE as i32, 0),
            (libc::RLIMIT_RTPRIO as i32, 0),
        ];
        for (resource, value) in limits {
            sys::set_limit(resource, value.min(sys::hard_limit(resource)?))?;
        }
        Ok(())
    }

    /// The run's own.
    pub(super) fn set_limits(&self) -> io::Result<()> {
        let memory = self.spec.memory_bytes;
        let or_none = |n: u64| if n > 0 { n } else { u64::MAX };
        let address_space = or_none(memory.saturating_mul(8)).max(ADDRESS_SPACE_MIN);
        // Private writable memory, of each process by itself: what there is when there is no cgroup.
        let data = if self.ground.memory_by_cgroup {
            u64::MAX
        } else {
            or_none(memory)
        };
        let file = or_none(self.spec.disk_bytes);
        let cpu = or_none(self.spec.cpu_ms.div_ceil(1000));
        let limits = [
            (libc::RLIMIT_AS as i32, address_space),
            (libc::RLIMIT_DATA as i32, data),
            (libc::RLIMIT_FSIZE as i32, file),
            // Init and the program are there already.
            (libc::RLIMIT_NPROC as i32, u64::from(self.spec.max_pids) + 2),
        ];
        // Without a limit there is nothing to lower.
        if cpu != u64::MAX {
            let cpu_max = (cpu + 1).min(sys::hard_limit(libc::RLIMIT_CPU as i32)?);
            sys::set_soft_limit(libc::RLIMIT_CPU as i32, cpu.min(cpu_max), cpu_max)?;
        }
        for (resource, value) in limits.into_iter().filter(|(_, value)| *value != u64::MAX) {
            sys::set_limit(resource, value.min(sys::hard_limit(resource)?))?;
        }
        Ok(())
    }
}
