//! Loading: the bytes that were checked are the bytes that run.
//!
//! The file is read once. Its bytes are pinned, inspected, copied to a sealed memfd and loaded from there, so that
//! nobody can put another file in between, and an update of the file in place does not pull the code from under the
//! process (which would be SIGBUS).

use std::ffi::CStr;
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::wire::{Malformed, Reader};

use crate::allocator::give_memory_back;
use crate::first;
use crate::inspect::{Inspection, NOTE_ID_BYTES, Note, digest, inspect_bytes, read};
use crate::plugin::Info;
use crate::trust::{guarded, signed_as, trusted_comment};

/// What the operator says about the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pin {
    /// 64 hex digits, in either case; `None`: any file will do.
    pub sha256: Option<String>,
    /// The minisign public key (base64) that `<file>.minisig` must be made with; `None`: no signature is looked for.
    pub minisign_key: Option<String>,
    /// Nobody but this user and root may be able to write the file or the directories that lead to it. `false` is for
    /// plugins that came with this program: who can write those can write the program.
    pub guarded: bool,
}

/// A file that is not loaded, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct LoadError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub why: Refusal,
}

impl LoadError {
    pub(crate) fn new(path: &Path, why: Refusal) -> Self {
        LoadError {
            path: path.to_owned(),
            why,
        }
    }
}

/// Why a plugin is not loaded: what was found, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It cannot be opened or read.
    #[error("it cannot be read ({0}): check the path, and that this user may read the file")]
    Unreadable(std::io::Error),
    /// A directory, device or socket.
    #[error("it is not a regular file: name the plugin's shared object itself")]
    NotAFile,
    /// Larger than the limit.
    #[error(
        "it has {bytes} bytes, and a plugin has at most {max}: link it without debug information"
    )]
    TooLarge {
        /// What it has.
        bytes: u64,
        /// What it may have.
        max: u64,
    },
    /// Others can change it.
    #[error(
        "{} can be written by its group or by everybody (mode {mode:04o}): take that right away with chmod go-w", what.display()
    )]
    Writable {
        /// The file, or a directory that leads to it.
        what: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user owns it, and so can change it.
    #[error(
        "{} belongs to the user {owner}, who can change it, and this program runs as {this_user}: give it to root or to this user with chown", what.display()
    )]
    Owner {
        /// The file, or a directory that leads to it.
        what: PathBuf,
        /// Whose it is: a user's number.
        owner: u32,
        /// The number of the user that this program runs as.
        this_user: u32,
    },
    /// Its digest is not the pinned one.
    #[error(
        "its sha256 is {found}, and the configuration pins {pinned}: install the pinned file, or pin this one if it is what you want"
    )]
    Pin {
        /// Of the file.
        found: String,
        /// In the configuration.
        pinned: String,
    },
    /// There is a key, and no signature that can be read.
    #[error(
        "the configuration has a minisign_key, and its signature {} cannot be read ({error}): put the vendor's .minisig beside it", file.display()
    )]
    NoSignature {
        /// Where it was looked for.
        file: PathBuf,
        /// Why it cannot be read.
        error: std::io::Error,
    },
    /// The key is no key.
    #[error(
        "minisign_key is not a minisign public key ({0}): copy the second line of the vendor's .pub file"
    )]
    Key(String),
    /// The signature does not fit.
    #[error(
        "its signature does not fit the file and minisign_key ({0}): get the file and its .minisig again, from the vendor"
    )]
    Signature(String),
    /// It is signed as something else.
    #[error(
        "it is signed as {signed:?}, and it is {expected:?}: a signature counts for the plugin and version in its trusted comment alone"
    )]
    SignedAs {
        /// The trusted comment.
        signed: String,
        /// What it must be.
        expected: String,
    },
    /// No shared object at all.
    #[error("{0}, so it is no plugin: name the plugin's shared object (.so)")]
    NotAPlugin(&'static str),
    /// For another processor.
    #[error("it is built for {theirs}, and this host is {ours}: get the build for {ours}")]
    Machine {
        /// The file's.
        theirs: String,
        /// The host's.
        ours: String,
    },
    /// The entry symbol is missing or is not data.
    #[error(
        "it does not export the data symbol skillgate_plugin_entry_v1, so it is no plugin for this contract: export it with SKG_EXPORT"
    )]
    NoEntry,
    /// No SkillGate note.
    #[error(
        "it has no SkillGate ELF note, so it cannot be checked before its code runs: build it with SKG_NOTE"
    )]
    NoNote,
    /// Another major of the contract.
    #[error(
        "it is built for major {theirs} of the plugin contract, and this host speaks major {ours}: get a build for major {ours}"
    )]
    Major {
        /// The plugin's.
        theirs: u32,
        /// The host's.
        ours: u32,
    },
    /// It needs a newer host.
    #[error(
        "it needs a host with minor {needs} or later of the plugin contract, and this one has minor {ours}: update skillgate, or get an older build of the plugin"
    )]
    HostTooOld {
        /// The plugin's minimum.
        needs: u32,
        /// The host's.
        ours: u32,
    },
    /// `SKG_F_OWN_PROCESS`, or a runtime that shares no process.
    #[error("{0}: configure isolation = \"process\"")]
    OwnProcess(&'static str),
    /// RPATH or RUNPATH.
    #[error(
        "it has the library search path {0:?}, which would load libraries that nobody has checked: link it without -rpath"
    )]
    SearchPath(String),
    /// It asks for an executable stack.
    #[error("it asks for an executable stack: link it with -z noexecstack")]
    ExecutableStack,
    /// Text relocations.
    #[error("it has text relocations, which need writable code: compile it with -fPIC")]
    TextRelocations,
    /// No sealed copy could be made.
    #[error(
        "a sealed copy of it cannot be made ({0}): this needs memory, and a kernel that allows executable memfds (vm.memfd_noexec below 2)"
    )]
    Copy(std::io::Error),
    /// dlopen or dlsym says no.
    #[error(
        "the dynamic loader refuses it ({0}): install what it names, or get a build for this system"
    )]
    Loader(String),
    /// The entry contradicts the contract or the note.
    #[error("its entry table is not in order: {0}; this is for its vendor to mend")]
    Entry(String),
    /// Its own process refuses it, for one of the reasons above.
    #[error("{0}")]
    InProcess(String),
    /// Its own process did not get as far as saying what it is.
    #[error("its process did not start: {0}")]
    Process(String),
}

/// A plugin whose code is in the process.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) entry: abi::EntryV1,
    pub(crate) info: Info,
}

// SAFETY: the entry's pointers are to static, read-only data of code that is never unloaded, and get_factory may be
// called from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// A file that has passed every check that can be made without running it, as bytes that nobody can change any more.
#[derive(Debug)]
pub(crate) struct Checked {
    /// A sealed memfd.
    pub(crate) copy: File,
    pub(crate) inspection: Inspection,
    /// [`Pin::guarded`].
    pub(crate) guarded: bool,
    /// What its signature says that it is, when a key was configured.
    signed: Option<String>,
}

/// Reads the file once and checks it. Nothing of it is executed.
pub(crate) fn check(path: &Path, pin: &Pin) -> Result<Checked, LoadError> {
    let refuse = |why| LoadError::new(path, why);
    if pin.guarded {
        guarded(path).map_err(refuse)?;
    }
    let bytes = read(path)?;
    let found = digest(&bytes);
    if let Some(pinned) = &pin.sha256
        && !pinned.eq_ignore_ascii_case(&found)
    {
        let pinned = pinned.clone();
        return Err(refuse(Refusal::Pin { found, pinned }));
    }
    let signed = match &pin.minisign_key {
        Some(key) => Some(trusted_comment(path, &bytes, key).map_err(refuse)?),
        None => None,
    };
    let (inspection, refusal) = inspect_bytes(path, &bytes, found)?;
    if let Some(why) = refusal {
        return Err(refuse(why));
    }
    // The version is known when the plugin has said it; another plugin's signature is refused before its code runs.
    if let (Some(signed), Some(note)) = (&signed, &inspection.note) {
        signed_as(signed, &note.id, None).map_err(refuse)?;
    }
    let copy = sealed(&bytes).map_err(|error| refuse(Refusal::Copy(error)))?;
    Ok(Checked {
        copy,
        inspection,
        guarded: pin.guarded,
        signed,
    })
}

impl Checked {
    /// What the plugin says of itself must be what its signature says of it.
    pub(crate) fn agrees(&self, info: &Info) -> Result<(), LoadError> {
        let Some(signed) = &self.signed else {
            return Ok(());
        };
        signed_as(signed, &info.id, Some(&info.version))
            .map_err(|why| LoadError::new(&self.inspection.path, why))
    }
}

/// Loads what was checked into this process.
pub(crate) fn load(checked: &Checked) -> Result<Loaded, LoadError> {
    if let Some(why) = checked.inspection.own_process {
        let path = &checked.inspection.path;
        return Err(LoadError::new(path, Refusal::OwnProcess(why)));
    }
    let path = &checked.inspection.path;
    let tell = || {
        tracing::error!(file = %path.display(), "a plugin is still being loaded after {} s: its own code, which runs in the gateway then, does not come back, and neither the start nor a reload goes on before it does; isolation = \"process\" has a limit for it", SLOW_LOAD.as_secs());
    };
    telling(SLOW_LOAD, tell, || load_alone(checked))
}

/// After so long it is said that a plugin is still being loaded. Its constructors cannot be ended in this process.
const SLOW_LOAD: Duration = Duration::from_secs(5);

/// Does `work` here; while it goes on after so long, `tell` is called once.
fn telling<T>(after: Duration, tell: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (done, ended) = sync_channel::<()>(0);
        let watch = move || {
            if ended.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                tell();
            }
        };
        // Without a thread nothing is told, which is no reason not to load it.
        let _watched = std::thread::Builder::new()
            .name("plugin-load".into())
            .spawn_scoped(scope, watch);
        let result = work();
        drop(done);
        result
    })
}

/// Loads what was checked into this process, which is the plugin's own.
pub(crate) fn load_alone(checked: &Checked) -> Result<Loaded, LoadError> {
    let path = &checked.inspection.path;
    let loaded = load_copy(&checked.copy, checked.inspection.note.as_ref())
        .map_err(|why| LoadError::new(path, why))?;
    checked.agrees(&loaded.info)?;
    Ok(loaded)
}

/// Loads a sealed copy whose note is `note` into this process: the plugin's code runs from here on.
pub(crate) fn load_copy(copy: &File, note: Option<&Note>) -> Result<Loaded, Refusal> {
    // The code stays for ever: instances, threads and thread-local destructors of a plugin may outlive any use of it. Those of
    // one that is refused below, too: its constructors have run.
    let library = ManuallyDrop::new(open(copy)?);
    // SAFETY: the inspection found a data symbol of this name; it is read below, no further than it says.
    let symbol = unsafe { library.get::<*const abi::EntryV1>(abi::ENTRY_SYMBOL) };
    let symbol: *const abi::EntryV1 = match symbol {
        Ok(symbol) => symbol.into_raw().cast_const().cast(),
        Err(error) => return Err(Refusal::Loader(error.to_string())),
    };
    // To the loader that is an address as others are.
    if symbol.is_null() {
        return Err(Refusal::NoEntry);
    }
    // SAFETY: the address of the data symbol that the plugin exports as its entry.
    let entry = unsafe { entry(symbol) }?;
    // SAFETY: the entry's own, static.
    let info = unsafe { info(&entry) }?;
    agree(&entry, &info, note)?;
    Ok(Loaded { entry, info })
}

/// Loads a sealed copy.
fn open(copy: &File) -> Result<Library, Refusal> {
    let copy = copy.try_clone().map_err(Refusal::Copy)?;
    let name = unique_name(copy.as_raw_fd());
    give_memory_back();
    // SAFETY: loading runs the plugin's constructors: that is what the operator asked for by configuring it. NOW: a
    // missing symbol is an error here, not a crash later. LOCAL: its symbols are nobody else's.
    let library = unsafe { Library::open(Some(&name), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|e| Refusal::Loader(e.to_string()))?;
    // The descriptor stays open as long as the code is there, so that a plugin can open its own file by the name that
    // dladdr gives it, and so that its number, which is in that name, is not used again.
    std::mem::forget(copy);
    Ok(library)
}

/// glibc knows a loaded library by its *name* first: the same name for another file would silently give the code that
/// was loaded before. So each load spells the path differently: the bits of a counter, as "./" and "/".
fn unique_name(fd: i32) -> String {
    static LOADS: AtomicU64 = AtomicU64::new(1);
    let mut n = LOADS.fetch_add(1, Ordering::Relaxed);
    let mut name = String::from("/proc/self/fd/");
    while n > 0 {
        name.push_str(if n & 1 == 1 { "./" } else { "/" });
        n >>= 1;
    }
    name + &fd.to_string()
}

/// On a machine that is short of memory one try in some thousands meets a page that is in use.
const SEAL_TRIES_MAX: u32 = 10;

/// A memfd with these bytes that nobody can change any more.
fn sealed(bytes: &[u8]) -> std::io::Result<File> {
    const NAME: &CStr = c"skillgate-plugin";
    const FLAGS: libc::c_uint = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a NUL-terminated name; no other memory is involved.
    let mut fd = unsafe { libc::memfd_create(NAME.as_ptr(), FLAGS | libc::MFD_EXEC) };
    if fd < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // Before Linux 6.3 the flag is unknown and every memfd is executable.
        // SAFETY: as above.
        fd = unsafe { libc::memfd_create(NAME.as_ptr(), FLAGS) };
    }
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: made just now, nobody else has it.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(bytes)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let mut tries = 0;
    loop {
        // SAFETY: fcntl on an open descriptor with an integer argument.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } == 0 {
            return Ok(file);
        }
        let error = std::io::Error::last_os_error();
        tries += 1;
        // Nobody maps it, but a page that the kernel itself holds for a moment (compaction, migration) counts as in use;
        // it waits for such pages, 150 ms or so, before it says EBUSY.
        if error.raw_os_error() != Some(libc::EBUSY) || tries == SEAL_TRIES_MAX {
            return Err(error);
        }
    }
}

/// # Safety
/// `p` is the address of the entry symbol of a loaded plugin.
unsafe fn entry(p: *const abi::EntryV1) -> Result<abi::EntryV1, Refusal> {
    let bad = |why: String| Err(Refusal::Entry(why));
    // Magic and size first, before anything that the size would have to cover.
    // SAFETY: the symbol's data begins with two u32 in every entry of this contract.
    let (magic, size) = unsafe {
        (
            p.cast::<u32>().read_unaligned(),
            p.cast::<u32>().add(1).read_unaligned(),
        )
    };
    if magic != abi::MAGIC {
        return bad(format!("magic is {magic:#x} instead of {:#x}", abi::MAGIC));
    }
    if (size as usize) < size_of::<abi::EntryV1>() {
        return bad(format!(
            "struct_size is {size}, smaller than the {} of the first version",
            size_of::<abi::EntryV1>()
        ));
    }
    // SAFETY: it says that it is that large.
    let entry = unsafe { p.read_unaligned() };
    if entry.abi_major != abi::ABI_MAJOR {
        return Err(Refusal::Major {
            theirs: entry.abi_major,
            ours: abi::ABI_MAJOR,
        });
    }
    if entry.min_host_minor > abi::ABI_MINOR {
        return Err(Refusal::HostTooOld {
            needs: entry.min_host_minor,
            ours: abi::ABI_MINOR,
        });
    }
    if entry.get_factory.is_none() {
        return bad("get_factory is null".into());
    }
    Ok(entry)
}

/// # Safety
/// `entry` is a loaded plugin's.
unsafe fn info(entry: &abi::EntryV1) -> Result<Info, Refusal> {
    const TEXT_BYTES: usize = 64 << 10;
    const SCHEMA_BYTES: usize = 1 << 20;
    let mut r = Reader::new(2 * SCHEMA_BYTES);
    let mut read = || {
        // SAFETY: info and what it points to are static; it says how large it is.
        unsafe {
            let i = first::prefix(entry.info, "info")?;
            Ok(Info {
                id: r.text(i.id, "info.id", 256)?,
                version: r.text(i.version, "info.version", 256)?,
                vendor: r.text(i.vendor, "info.vendor", TEXT_BYTES)?,
                description: r.text(i.description, "info.description", TEXT_BYTES)?,
                license: r.text(i.license, "info.license", TEXT_BYTES)?,
                config_schema_json: r.text(
                    i.config_schema_json,
                    "info.config_schema_json",
                    SCHEMA_BYTES,
                )?,
                build_info: r.text(i.build_info, "info.build_info", TEXT_BYTES)?,
                abi_minor: entry.abi_minor,
                blocking: entry.flags & abi::F_BLOCKING != 0,
                singleton: entry.flags & abi::F_SINGLETON != 0,
            })
        }
    };
    read().map_err(|e: Malformed| Refusal::Entry(e.0))
}

/// The note was believed when it was decided to load the file: the entry has to say the same.
fn agree(entry: &abi::EntryV1, info: &Info, note: Option<&Note>) -> Result<(), Refusal> {
    let Some(note) = note else {
        return Err(Refusal::NoNote);
    };
    if info.id.is_empty()
        || !info.id.starts_with(&note.id)
        || (note.id.len() < NOTE_ID_BYTES && info.id != note.id)
    {
        return Err(Refusal::Entry(format!(
            "its id is {:?}, and its note says {:?}",
            info.id, note.id
        )));
    }
    let (theirs, said) = (
        [
            entry.abi_major,
            entry.abi_minor,
            entry.min_host_minor,
            entry.flags,
        ],
        [
            note.abi_major,
            note.abi_minor,
            note.min_host_minor,
            note.flags,
        ],
    );
    if theirs != said {
        return Err(Refusal::Entry(format!(
            "it has major, minor, oldest host minor and flags {theirs:?}, and its note says {said:?}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// What is loaded is what was checked, also by whoever has the descriptor or finds it in /proc.
    #[test]
    fn a_copy_that_is_loaded_can_be_changed_by_nobody() {
        let copy = sealed(b"the checked bytes").unwrap();
        // SAFETY: fcntl on an open descriptor without an argument.
        let seals = unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_GET_SEALS) };
        let all = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        assert_eq!(seals & all, all, "{seals:#x}");
        let again = File::options()
            .write(true)
            .open(format!("/proc/self/fd/{}", copy.as_raw_fd()))
            .unwrap();
        for file in [&copy, &again] {
            for (what, tried) in [
                ("other bytes", file.write_at(b"x", 0).map(drop)),
                ("more bytes", file.write_at(b"x", 17).map(drop)),
                ("shorter", file.set_len(1)),
                ("longer", file.set_len(4096)),
            ] {
                let error = tried.expect_err(what);
                assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}: {error}");
            }
        }
        let mut bytes = [0; 17];
        copy.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"the checked bytes");
    }

    #[test]
    fn what_takes_long_is_told_of_while_it_goes_on_and_nothing_else_is() {
        let (tell, told) = sync_channel(1);
        telling(
            Duration::ZERO,
            || tell.send(()).unwrap(),
            // It goes on until it has been told of.
            || told.recv_timeout(Duration::from_secs(30)).unwrap(),
        );
        let never = || unreachable!("it has ended in time");
        assert_eq!(telling(Duration::MAX, never, || 7), 7);
    }
}
