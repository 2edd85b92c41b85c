//! The inside of a zygote: a warmed Python that has this file loaded as an extension module and does nothing but make
//! children of itself. Its script (`zygote/zygote.py`) calls [`tend`], which returns in children only.
//!
//! The zygote reads orders: descriptors and numbers. A job, a secret or a line of code never gets here, so there is
//! nothing of one run that the children of the next could inherit. A child isolates itself ([`crate::isolate::pooled`]),
//! rehearses, and waits in [`activate`] until the plugin says for which run it is.

use std::cell::RefCell;
use std::ffi::{CStr, c_long};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use crate::guard::Without;
use crate::interpreter::Interpreter;
use crate::isolate::pooled::{Child, Inside, Leased, above, place_rehearsal};
use crate::isolate::{Ground, set_common_limits};
use crate::seccomp;
use crate::sys::{self, Fork, Pages, python};
use crate::wire::{Memory, RunSpec};

/// What a zygote is executed with: its script. The modules to warm are its argument.
pub(crate) const SCRIPT: &str = include_str!("zygote/zygote.py");
/// Where it finds this very file, until it has loaded it.
pub(crate) const MODULE: &str = "/.run/launcher.so";
// Its descriptors, beside the standard ones.
pub(crate) const CONTROL_FD: i32 = 3;
pub(crate) const LAUNCHER_FD: i32 = 4;
pub(crate) const SETTINGS_FD: i32 = 5;
/// The control socket of its spare.
pub(crate) const SPARE_FD: i32 = 6;
/// Both ends of a socket, for the rehearsal: of the zygote's own, and of each child's.
pub(crate) const REHEARSAL_FDS: [i32; 2] = [8, 9];
/// The end of the pipe that its standard output leads to, which nobody reads: kept open, so that writing is no error.
pub(crate) const NOWHERE_FD: i32 = 10;

/// What a zygote is called in a list of processes, and what its spare is until it makes children.
const NAME: &CStr = c"skillgate-warm";
const SPARE_NAME: &CStr = c"skillgate-spare";

/// The longest [`Order`]: it has no mounts.
const ORDER_BYTES_MAX: usize = 4096;

/// The first and only word of a child, on its orders' socket: it is what its run will be. Its mount namespace comes with it.
pub(crate) const READY: &[u8] = b"ready";

/// What is the same for all children: [`Ground`] as far as they need it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) program: String,
    pub(crate) loader: Option<String>,
    pub(crate) landlock_abi: Option<u32>,
    pub(crate) user_namespace: bool,
    pub(crate) drops_groups: bool,
    pub(crate) memory_by_cgroup: bool,
}

/// A zygote's first word: it is warm. The spare's pidfd comes with it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Warm {
    pub(crate) memory: Memory,
    pub(crate) spare: libc::pid_t,
}

/// One child to make. Its descriptors, in order: network and ipc namespace, user namespace (if `user`), orders, channel,
/// output, report, the group to be born in (if `born_in`), `tasks` files.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// What is known already; the run's own comes with its activation.
    pub(crate) spec: RunSpec,
    pub(crate) outer_id: u32,
    /// It has a user namespace of its own.
    pub(crate) user: bool,
    pub(crate) born_in: bool,
    /// It rehearses when no run has wanted it for so long.
    pub(crate) idle_ns: u64,
}

thread_local! {
    /// In a child: itself. The zygote has one thread, and so has each child until its run begins.
    static BORN: RefCell<Option<Born>> = const { RefCell::new(None) };
}

/// What a copy of the zygote is for.
enum Born {
    Run(Child),
    Trial(Trial),
}

/// Makes children until the launcher goes. Returns in a child.
pub(crate) fn tend() -> c_long {
    match try_tend() {
        Ok(Some(born)) => {
            BORN.with(|b| *b.borrow_mut() = Some(born));
            0
        }
        Ok(None) => sys::exit_now(0),
        // The launcher sees it end.
        Err(_) => sys::exit_now(1),
    }
}

/// In a child: 1 when it has the time to rehearse, and what that takes. 2 in one that does it for the others.
pub(crate) fn is_idle() -> c_long {
    let rehearses = |born: &Born| match born {
        Born::Run(child) => c_long::from(child.is_idle()),
        Born::Trial(_) => 2,
    };
    match BORN.with(|b| b.borrow().as_ref().map(rehearses)) {
        Some(how) if how > 0 && place_rehearsal().is_ok() => how,
        _ => 0,
    }
}

/// In a child: waits for its run and gives up every right. Returns when nothing is left but the run's own.
pub(crate) fn activate() -> c_long {
    match BORN.with(|b| b.borrow_mut().take()) {
        Some(Born::Run(child)) => {
            child.activate();
            0
        }
        Some(Born::Trial(trial)) => trial.end(),
        // Called once more, by the code of a run: there is nothing to do and nothing to lose.
        None => -1,
    }
}

/// The file system. A zygote has none in its place, but an ordinary user's.
fn proc() -> io::Result<OwnedFd> {
    if std::path::Path::new("/proc/self").exists() {
        return sys::open("/proc", libc::O_PATH);
    }
    sys::new_mount(c"proc", &[], sys::NOSUID | sys::NODEV | sys::NOEXEC)
}

/// What is mapped here.
fn own_maps(proc: BorrowedFd<'_>) -> io::Result<String> {
    read_own(proc, "self/maps")
}

fn read_own(proc: BorrowedFd<'_>, path: &str) -> io::Result<String> {
    let file = sys::open_at(proc, path, libc::O_RDONLY)?;
    io::read_to_string(File::from(file))
}

/// A copy of the zygote that does what children do before anything of their own, and what every run does, and says which pages
/// it has written to. It has the zygote's rights, and nothing runs in it but the rehearsal.
struct Trial {
    places: Vec<Pages>,
    proc: OwnedFd,
    told: OwnedFd,
}

impl Trial {
    /// What is found is said at once: to make room for it would be to write where children do not.
    fn end(self) -> ! {
        let mut told = File::from(self.told);
        let said =
            sys::open_at(self.proc.as_fd(), "self/pagemap", libc::O_RDONLY).and_then(|pagemap| {
                sys::own_pages(&self.places, &File::from(pagemap), |pages| {
                    writeln!(told, "{}-{}", pages.start, pages.end)
                })
            });
        sys::exit_now(said.is_err().into())
    }
}

/// On which side of [`try_out`] this is.
enum Tried {
    Here(Trial),
    Written(Vec<Pages>),
}

/// Finds out what each child will write to. Returns in the copy of the zygote that does, too; an error is the zygote's alone.
fn try_out() -> io::Result<Tried> {
    let proc = proc()?;
    let places = sys::writable_places(&own_maps(proc.as_fd())?);
    let (said, told) = sys::pipe()?;
    python::before_fork();
    let made = sys::clone_process(0, None);
    if let Ok(Fork::Child) = made {
        if sys::set_parent_death_signal(libc::SIGKILL).is_err() {
            sys::exit_now(1);
        }
        python::after_fork_child();
    } else {
        python::after_fork_parent();
    }
    let pid = match made? {
        Fork::Child => {
            // Its rehearsal puts descriptors of its own where these may be. Without them it ends: with an error it would go on
            // as the zygote does.
            let (Ok(proc), Ok(told)) = (above(proc), above(told)) else {
                sys::exit_now(1)
            };
            return Ok(Tried::Here(Trial { places, proc, told }));
        }
        Fork::Parent { pid, .. } => pid,
    };
    drop(told);
    let pages = io::read_to_string(File::from(said));
    // It has said all only if it says so.
    let exit = sys::wait(pid)?.map(|(_, exit)| exit).unwrap_or_default();
    if (exit.code, exit.signal) != (0, 0) {
        return Err(io::Error::other(format!(
            "the trial has ended before it was over: code {}, signal {}",
            exit.code, exit.signal
        )));
    }
    let pages: Vec<Pages> = pages?
        .lines()
        .map(|line| {
            let (start, end) = line.split_once('-')?;
            Some(start.parse().ok()?..end.parse().ok()?)
        })
        .collect::<Option<_>>()
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok(Tried::Written(pages))
}

/// Has children get copies, at their birth, of what each of them will write to. Gives how many bytes.
fn copy_ahead(pages: &[Pages]) -> io::Result<u64> {
    sys::have_forks_copy(pages)?;
    Ok(pages.iter().map(|pages| pages.len() as u64).sum())
}

/// On which side of [`stand_by`] this is.
enum Side {
    Zygote { spare: libc::pid_t, pidfd: OwnedFd },
    Spare,
}

/// Makes the spare: a copy of the zygote that does nothing until the zygote is gone, and then what it did, until the launcher
/// has another: to warm that takes some starts of an interpreter, and the copy is there. It has the zygote's layout, which is
/// why it makes children no longer than that. Returns on both sides, each with its own control socket.
fn stand_by(launcher: BorrowedFd<'_>) -> io::Result<(Side, OwnedFd)> {
    let [control, spares] = [CONTROL_FD, SPARE_FD].map(sys::inherited);
    let (control, spares) = (control?, spares?);
    python::before_fork();
    // A brother, as children are.
    match sys::clone_process(libc::CLONE_PARENT, None) {
        Ok(Fork::Child) => {
            python::after_fork_child();
            sys::set_process_name(SPARE_NAME);
            // In the zygote's own place: where it is free the descriptors of an order would come to lie in a child's way.
            sys::dup_to_own(spares.as_raw_fd(), CONTROL_FD)?;
            // A fork does not inherit it, and the launcher may have ended before.
            sys::set_parent_death_signal(libc::SIGKILL)?;
            if !sys::is_alive(launcher)? {
                return Err(io::Error::other("the launcher has ended"));
            }
            Ok((Side::Spare, control))
        }
        Ok(Fork::Parent { pid, pidfd }) => {
            python::after_fork_parent();
            Ok((Side::Zygote { spare: pid, pidfd }, control))
        }
        Err(e) => {
            python::after_fork_parent();
            Err(e)
        }
    }
}

fn try_tend() -> io::Result<Option<Born>> {
    // The file has done its service; nobody who is born here has a name for it.
    sys::detach(c"/.run")?;
    sys::set_process_name(NAME);
    let ground = ground()?;
    let inside: &'static Inside = Box::leak(Box::new(Inside::prepare(ground)?));
    // The program's code; and for the rest, where what follows finds no large pages.
    sys::have_forks_inherit_code(true);
    let mut lacks = Vec::new();
    // The last that is done before the first child: what is written from here on is copied with each.
    let moved = proc()
        .and_then(|proc| read_own(proc.as_fd(), "self/smaps"))
        .and_then(|smaps| sys::have_forks_map_memory(&smaps));
    let in_large_pages = moved.as_ref().is_ok_and(|all| *all);
    if !in_large_pages {
        let why = moved
            .err()
            .map_or("the kernel has none".into(), |e| e.to_string());
        lacks.push(format!("large pages for a zygote's memory: {why}"));
    }
    let written = match try_out() {
        Ok(Tried::Here(trial)) => return Ok(Some(Born::Trial(trial))),
        Ok(Tried::Written(pages)) => Ok(pages),
        Err(e) => Err(e),
    };
    let (side, control) = stand_by(inside.launcher())?;
    let mut copied_bytes = 0;
    // The memory that a user may lock is for zygotes; a spare may never make a child.
    if let Side::Zygote { .. } = side {
        match written.and_then(|pages| copy_ahead(&pages)) {
            Ok(bytes) => copied_bytes = bytes,
            Err(e) => lacks.push(format!("copies ahead of what its children write to: {e}")),
        }
    }
    // Each child's from its birth; after the copies, which count against one of them.
    set_common_limits()?;
    sys::install_filter(&seccomp::of_zygote())?;
    // A child is process 2 of its namespace: what looks at process ids to see a fork must see one.
    if std::process::id() <= 2 {
        return Err(io::Error::other(
            "the zygote has a process id that children have",
        ));
    }
    let mut is_spare = matches!(side, Side::Spare);
    // By value: a child has closed what it inherits, and must own none of it.
    if let Side::Zygote { spare, pidfd } = side {
        let warm = Warm {
            memory: Memory {
                in_large_pages,
                copied_bytes,
                lacks,
            },
            spare,
        };
        let word = serde_json::to_vec(&warm)?;
        sys::send_message(control.as_fd(), &word, &[pidfd.as_fd()])?;
    }
    // Nothing is given back in a child: that would be work, and touch pages that it shares.
    let buf = vec![0; ORDER_BYTES_MAX].leak();
    loop {
        let Some((n, fds)) = sys::receive_message(control.as_fd(), buf)? else {
            return Ok(None);
        };
        if is_spare {
            is_spare = false;
            sys::set_process_name(NAME);
        }
        let order: Order = serde_json::from_slice(&buf[..n])?;
        let (child, leased, born_in) = take_apart(inside, order, fds)?;
        python::before_fork();
        // A brother, so that the launcher sees it end.
        let flags = libc::CLONE_PARENT | inside.born_in();
        match sys::clone_process(flags, born_in.as_ref().map(AsFd::as_fd)) {
            Ok(Fork::Child) => {
                // Before it closes what it inherits: it must own none of it then.
                drop((control, born_in));
                return Ok(Some(Born::Run(child.be_born(leased))));
            }
            Ok(Fork::Parent { pid, pidfd }) => {
                python::after_fork_parent();
                let number = pid.to_string();
                sys::send_message(control.as_fd(), number.as_bytes(), &[pidfd.as_fd()])?;
            }
            Err(e) => {
                python::after_fork_parent();
                let code = e.raw_os_error().unwrap_or_default();
                sys::send_message(control.as_fd(), format!("!{code}").as_bytes(), &[])?;
            }
        }
    }
}

fn ground() -> io::Result<Ground> {
    let mut text = String::new();
    File::from(sys::inherited(SETTINGS_FD)?).read_to_string(&mut text)?;
    let settings: Settings = serde_json::from_str(&text)?;
    Ok(Ground {
        template: sys::cstr("/")?,
        interpreter: Interpreter {
            program: settings.program,
            loader: settings.loader,
            ..Interpreter::default()
        },
        landlock_abi: settings.landlock_abi,
        user_namespace: settings.user_namespace,
        drops_groups: settings.drops_groups,
        memory_by_cgroup: settings.memory_by_cgroup,
        launcher: sys::inherited(LAUNCHER_FD)?,
        without: Without::default(),
    })
}

/// The child, its leased namespaces, and the group to be born in.
fn take_apart(
    inside: &'static Inside,
    order: Order,
    fds: Vec<OwnedFd>,
) -> io::Result<(Child, Leased, Option<OwnedFd>)> {
    let mut fds = fds.into_iter();
    let mut next = || {
        fds.next()
            .ok_or_else(|| io::Error::other("an order came with too few descriptors"))
    };
    let leased = Leased {
        network: next()?,
        ipc: next()?,
        user: if order.user { Some(next()?) } else { None },
    };
    let child = Child {
        inside,
        spec: order.spec,
        outer_id: order.outer_id,
        idle_ns: order.idle_ns,
        orders: next()?,
        channel: next()?,
        output: next()?,
        report: next()?,
        tasks: Vec::new(),
    };
    let born_in = if order.born_in { Some(next()?) } else { None };
    let tasks = fds.collect();
    Ok((Child { tasks, ..child }, leased, born_in))
}
