//! How a zygote comes to be: a Python in a mount namespace of its own whose root is the template, with nothing of the
//! host in sight, an environment of six constants, of which its script takes two away, and seven descriptors beside the
//! standard ones. It keeps the launcher's rights, since it gives its children what they need of them, and dies with the
//! launcher.

use std::ffi::CString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use crate::isolate::{ENVIRONMENT, Ground};
use crate::root::{GUEST, STAGING};
use crate::sys::{self, Fork, NODEV, NOSUID, RDONLY};
use crate::wire::Memory;
use crate::zygote::{
    CONTROL_FD, LAUNCHER_FD, MODULE, NOWHERE_FD, REHEARSAL_FDS, SCRIPT, SETTINGS_FD, SPARE_FD,
    Settings, Warm,
};

/// A process that makes children, or may have to.
#[derive(Debug)]
pub(super) struct Maker {
    pub(super) pid: libc::pid_t,
    pub(super) pidfd: OwnedFd,
    pub(super) control: OwnedFd,
}

/// A zygote that may not be warm yet.
#[derive(Debug)]
pub(super) struct Zygote {
    pub(super) maker: Maker,
    /// For the spare, until there is one.
    pub(super) spares_control: Option<OwnedFd>,
    /// Takes the maker's place if that dies: a copy of it. `None` in a warm one: it has taken it, or has died.
    pub(super) spare: Option<Maker>,
    pub(super) number: u64,
    pub(super) born_ns: u64,
    /// What it says when it is warm.
    pub(super) memory: Option<Memory>,
    pub(super) children: u64,
}

impl Zygote {
    /// Its first word has been heard.
    pub(super) fn becomes_warm(&mut self, Warm { memory, spare }: Warm, pidfd: OwnedFd) {
        self.spare = self.spares_control.take().map(|control| Maker {
            pid: spare,
            pidfd,
            control,
        });
        self.memory = Some(memory);
    }

    /// Its processes.
    pub(super) fn makers(&self) -> impl Iterator<Item = &Maker> {
        [Some(&self.maker), self.spare.as_ref()]
            .into_iter()
            .flatten()
    }

    pub(super) fn into_makers(self) -> impl Iterator<Item = Maker> {
        [Some(self.maker), self.spare].into_iter().flatten()
    }

    /// Without its maker, if it has a spare.
    pub(super) fn with_spare(mut self) -> (Maker, Option<Self>) {
        match self.spare.take() {
            Some(spare) => {
                let gone = std::mem::replace(&mut self.maker, spare);
                if let Some(memory) = &mut self.memory {
                    // The copies were the other's.
                    memory.copied_bytes = 0;
                }
                (gone, Some(self))
            }
            None => (self.maker, None),
        }
    }
}

const OUT_OF_THE_WAY: i32 = 16;
/// The kernel would write into the C library's thread record for each of the two processes that a child becomes
/// ([`sys::divide`]), and there is one. Taken out of the environment by the script.
const NO_RSEQ: &str = "GLIBC_TUNABLES=glibc.pthread.rseq=0";
/// The dynamic linker looks up every function at the start, once, and not each child those that nobody has called before.
/// Taken out like the other.
const BIND_NOW: &str = "LD_BIND_NOW=1";

/// Starts one. Its first word on the control socket says that it is warm.
pub(super) fn start(ground: &Ground, preload: &[String], number: u64) -> io::Result<Zygote> {
    let (control, theirs) = sys::socketpair(libc::SOCK_SEQPACKET)?;
    let (spares_control, spares) = sys::socketpair(libc::SOCK_SEQPACKET)?;
    for ours in [&control, &spares_control] {
        sys::set_nonblocking(ours.as_fd())?;
    }
    let settings = sys::memfd(c"skillgate-zygote")?;
    let mut writer = std::fs::File::from(settings.try_clone()?);
    writer.write_all(&serde_json::to_vec(&Settings {
        program: ground.interpreter.program.clone(),
        loader: ground.interpreter.loader.clone(),
        landlock_abi: ground.landlock_abi,
        user_namespace: ground.user_namespace,
        drops_groups: ground.drops_groups,
        memory_by_cgroup: ground.memory_by_cgroup,
    })?)?;
    io::Seek::rewind(&mut writer)?;
    drop(writer);
    let born_in = libc::CLONE_NEWNS | libc::CLONE_NEWUTS;
    match sys::clone_process(born_in, None)? {
        Fork::Child => {
            let become_zygote = std::panic::AssertUnwindSafe(|| {
                become_zygote(ground, preload, [theirs, spares], settings)
            });
            // Whatever it was: the launcher sees it end, and has nobody to tell more.
            let _ = std::panic::catch_unwind(become_zygote);
            sys::exit_now(126)
        }
        Fork::Parent { pid, pidfd } => Ok(Zygote {
            maker: Maker {
                pid,
                pidfd,
                control,
            },
            spares_control: Some(spares_control),
            spare: None,
            number,
            born_ns: sys::now_ns(),
            memory: None,
            children: 0,
        }),
    }
}

/// Returns only with an error.
fn become_zygote(
    ground: &Ground,
    preload: &[String],
    controls: [OwnedFd; 2],
    settings: OwnedFd,
) -> io::Result<std::convert::Infallible> {
    let keep = [
        controls[0].as_raw_fd(),
        controls[1].as_raw_fd(),
        settings.as_raw_fd(),
        ground.launcher.as_raw_fd(),
    ];
    sys::close_all_from(4, &keep)?;
    sys::set_propagation(libc::MS_PRIVATE)?;
    // The host's, for an ordinary user alone: in a user namespace the kernel makes the children's only while a whole one
    // is in sight, and each child takes it away before anything else.
    let proc = if ground.drops_groups {
        None
    } else {
        let host = sys::open("/proc", libc::O_PATH)?;
        Some(sys::clone_mounts(host.as_fd())?)
    };
    let module = module()?;
    std::env::set_current_dir(std::ffi::OsStr::from_bytes(ground.template.to_bytes()))?;
    sys::pivot_to_cwd()?;
    sys::detach(c".")?;
    std::env::set_current_dir("/")?;
    if let Some(proc) = proc {
        sys::attach(proc.as_fd(), "/proc")?;
    }
    let place = sys::new_mount(c"tmpfs", &[("mode", Some("0700"))], NOSUID | NODEV)?;
    sys::attach(place.as_fd(), STAGING)?;
    module.put()?;
    sys::new_session()?;
    sys::set_parent_death_signal(libc::SIGKILL)?;
    if !sys::is_alive(ground.launcher.as_fd())? {
        return Err(io::Error::other("the launcher has ended"));
    }
    sys::reset_signals()?;
    place_descriptors(ground, controls, settings)?;
    let program = sys::cstr(&ground.interpreter.program)?;
    let arguments = [
        ground.interpreter.program.as_str(),
        "-I",
        "-S",
        "-B",
        "-c",
        SCRIPT,
        GUEST,
        MODULE,
    ]
    .into_iter()
    .chain(preload.iter().map(String::as_str))
    .map(sys::cstr)
    .collect::<io::Result<Vec<CString>>>()?;
    let environment = ENVIRONMENT
        .into_iter()
        .chain([NO_RSEQ, BIND_NOW])
        .map(sys::cstr)
        .collect::<io::Result<Vec<CString>>>()?;
    Err(sys::execute(&program, &arguments, &environment))
}

/// 0 is /dev/null as in the launcher; the rest is where `zygote.rs` looks for it.
fn place_descriptors(
    ground: &Ground,
    [control, spares]: [OwnedFd; 2],
    settings: OwnedFd,
) -> io::Result<()> {
    // By value: what it was before is closed before anything is placed there.
    let away = |fd: OwnedFd| sys::dup_above(fd.as_fd(), OUT_OF_THE_WAY);
    let (control, spares, settings) = (away(control)?, away(spares)?, away(settings)?);
    let launcher = away(ground.launcher.try_clone()?)?;
    let (nowhere, to_nowhere) = sys::pipe()?;
    let (nowhere, to_nowhere) = (away(nowhere)?, away(to_nowhere)?);
    let (one, other) = sys::socketpair(libc::SOCK_STREAM)?;
    let (one, other) = (away(one)?, away(other)?);
    for (fd, place) in [
        (&to_nowhere, 1),
        (&to_nowhere, 2),
        (&control, CONTROL_FD),
        (&launcher, LAUNCHER_FD),
        (&settings, SETTINGS_FD),
        (&spares, SPARE_FD),
        (&one, REHEARSAL_FDS[0]),
        (&other, REHEARSAL_FDS[1]),
        (&nowhere, NOWHERE_FD),
    ] {
        sys::dup_to(fd.as_raw_fd(), place)?;
    }
    sys::close_all_from(7, &[REHEARSAL_FDS[0], REHEARSAL_FDS[1], NOWHERE_FD])?;
    // Their descriptors are closed above.
    std::mem::forget([
        control, spares, settings, launcher, nowhere, to_nowhere, one, other,
    ]);
    Ok(())
}

/// This very file, for the zygote to load.
enum Module {
    /// A mount of it.
    Mount(OwnedFd),
    /// It has no place in the file system.
    Copy(OwnedFd),
}

fn module() -> io::Result<Module> {
    let own = sys::open("/proc/self/exe", libc::O_RDONLY)?;
    let is_it = sys::stat(own.as_fd())?;
    let path = sys::path_of(own.as_fd())?;
    // By its path: the kernel clones mounts of one's own namespace only, and the file came here from another one.
    let mount = || -> io::Result<OwnedFd> {
        let at = sys::open(path.as_os_str().as_bytes(), libc::O_PATH)?;
        if sys::stat(at.as_fd())? != is_it {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mount = sys::clone_mount(at.as_fd())?;
        sys::restrict(mount.as_fd(), RDONLY | NOSUID | NODEV)?;
        Ok(mount)
    };
    Ok(match mount() {
        Ok(mount) => Module::Mount(mount),
        Err(_) => Module::Copy(own),
    })
}

impl Module {
    fn put(self) -> io::Result<()> {
        let mut file = std::fs::File::create_new(MODULE)?;
        match self {
            Module::Mount(mount) => sys::attach(mount.as_fd(), MODULE),
            Module::Copy(own) => io::copy(&mut std::fs::File::from(own), &mut file).map(drop),
        }
    }
}
