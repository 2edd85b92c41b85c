//! What a run finds when it starts: the directories that it can write to, what it was given, and the limits of each of
//! its processes (setrlimit(2)); those of the run as a whole are its control group's.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};

use super::Ground;
use crate::guard::Guard;
use crate::root::{STAGING, WRITABLE};
use crate::sys::{self, NODEV, NOEXEC, NOSUID, RDONLY};
use crate::wire::RunSpec;

const OPEN_FILES_MAX: u64 = 1024;
const LOCKED_BYTES_MAX: u64 = 64 * 1024;
const STACK_BYTES: u64 = 8 << 20;
const PENDING_SIGNALS_MAX: u64 = 1024;
/// 1, not 0: for a core handler behind a pipe, which runs as root on the host, 0 means "no limit of mine" (core(5)). A run cannot
/// change it (`seccomp`).
pub(crate) const CORE_BYTES: u64 = 1;
/// Address space is not memory: this only stops what would burn page tables and nothing else. The cgroup limits memory.
const ADDRESS_SPACE_MIN: u64 = 4 << 30;

/// The inside of one run, for a process that is in its namespaces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interior<'a> {
    pub(super) ground: &'a Ground,
    pub(super) spec: &'a RunSpec,
}

impl Interior<'_> {
    fn writable_flags(&self) -> u64 {
        if self.ground.keeps(Guard::MountFlags) {
            NOSUID | NODEV | NOEXEC
        } else {
            0
        }
    }

    /// One tmpfs for all that a run can write, so that one size and one count of files bound it. Its directories are
    /// `owner`'s, or the maker's. The tmpfs itself stays where it was put together, read-only and closed: to take it
    /// away again would wait for every processor of the host.
    pub(super) fn mount_writable(&self, owner: Option<u32>) -> io::Result<()> {
        let spec = self.spec;
        let [size, inodes] = writable_bounds(spec);
        let limited = self.ground.keeps(Guard::DiskLimits);
        let mut options = vec![("mode", Some("0755"))];
        if limited && spec.disk_bytes > 0 {
            options.push(("size", Some(size.as_str())));
        }
        if limited && spec.disk_inodes > 0 {
            options.push(("nr_inodes", Some(inodes.as_str())));
        }
        let whole = sys::new_mount(c"tmpfs", &options, self.writable_flags())?;
        sys::attach(whole.as_fd(), STAGING)?;
        for (inside, part) in WRITABLE {
            let path = format!("{STAGING}/{part}");
            fs::DirBuilder::new().mode(0o700).create(&path)?;
            if owner.is_some() {
                chown(&path, owner, owner)?;
            }
            // In two places: there, and where it was put together.
            sys::attach(sys::clone_mount_at(&path)?.as_fd(), inside)?;
        }
        fs::set_permissions(STAGING, fs::Permissions::from_mode(0o000))?;
        sys::restrict(whole.as_fd(), RDONLY)
    }

    /// Gives what [`Self::mount_writable`] has made the size that this run has.
    pub(super) fn resize_writable(&self) -> io::Result<()> {
        let [size, inodes] = writable_bounds(self.spec);
        // 0 takes a bound away.
        sys::change_file_system(
            c"/workspace",
            &[("size", size.as_str()), ("nr_inodes", inodes.as_str())],
        )
    }

    /// Skills and blobs. The places for them are on small read-only tmpfs of the run's own.
    pub(super) fn attach_mounts(&self, mounts: &[OwnedFd]) -> io::Result<()> {
        let of = |target: &str, place: &str| {
            let name = target.strip_prefix(place)?.strip_prefix('/')?;
            Some(name.to_owned())
        };
        for place in ["/skills", "/blobs"] {
            let here: Vec<(String, &OwnedFd)> = self
                .spec
                .mounts
                .iter()
                .zip(mounts)
                .filter_map(|(spec, mount)| Some((of(&spec.target, place)?, mount)))
                .collect();
            if here.is_empty() {
                continue;
            }
            let options = [("size", Some("1m")), ("mode", Some("0755"))];
            let places = sys::new_mount(c"tmpfs", &options, NOSUID | NODEV | NOEXEC)?;
            for (name, mount) in &here {
                let directory = sys::stat(mount.as_fd())?.mode & libc::S_IFMT == libc::S_IFDIR;
                sys::make_in(places.as_fd(), name, directory)?;
            }
            sys::restrict(places.as_fd(), RDONLY)?;
            sys::attach(places.as_fd(), place)?;
            for (name, mount) in here {
                let target = format!("{place}/{name}");
                sys::attach(mount.as_fd(), &target)
                    .map_err(|e| io::Error::new(e.kind(), format!("{target}: {e}")))?;
            }
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
        // The tmpfs is the bound and answers first; this one only ends what has its size and no content.
        let file = or_none(self.spec.disk_bytes).saturating_add(sys::page_bytes() as u64);
        let cpu = or_none(self.spec.cpu_ms.div_ceil(1000));
        let limits = [
            (libc::RLIMIT_AS as i32, address_space),
            (libc::RLIMIT_DATA as i32, data),
            (libc::RLIMIT_FSIZE as i32, file),
            // Not before: who makes and seals it is the same user to the kernel where the gateway is an ordinary one, and may
            // send no descriptor while that user's runs have more under way than the sender may have open (unix(7),
            // ETOOMANYREFS).
            (libc::RLIMIT_NOFILE as i32, OPEN_FILES_MAX),
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

/// Limits that are the same for every run.
pub(crate) fn set_common_limits() -> io::Result<()> {
    let limits = [
        (libc::RLIMIT_STACK as i32, STACK_BYTES),
        (libc::RLIMIT_MEMLOCK as i32, LOCKED_BYTES_MAX),
        (libc::RLIMIT_SIGPENDING as i32, PENDING_SIGNALS_MAX),
        (libc::RLIMIT_CORE as i32, CORE_BYTES),
        (libc::RLIMIT_MSGQUEUE as i32, 0),
        (libc::RLIMIT_NICE as i32, 0),
        (libc::RLIMIT_RTPRIO as i32, 0),
    ];
    for (resource, value) in limits {
        sys::set_limit(resource, value.min(sys::hard_limit(resource)?))?;
    }
    Ok(())
}

/// Bytes and files of the run's tmpfs, as its options have them; its own directories are not the run's.
fn writable_bounds(spec: &RunSpec) -> [String; 2] {
    let inodes = match spec.disk_inodes {
        0 => 0,
        files => files.saturating_add(WRITABLE.len() as u64 + 1),
    };
    [spec.disk_bytes.to_string(), inodes.to_string()]
}
