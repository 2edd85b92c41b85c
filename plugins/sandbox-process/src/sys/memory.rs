//! What this process has in its memory, as its forks have it.

use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use super::image::{LARGE_PAGE, MADV_COLLAPSE};
use super::{check, exit_now};

/// What the file is called in maps, behind `/memfd:`.
pub(super) const NAME: &CStr = c"skillgate-memory";
/// Smaller places are left where they are: a fork copies their tables as fast.
const PLACE_BYTES_MIN: usize = 16 << 10;

/// Puts what this process has in its memory into large pages of a file, of which it has private mappings afterwards, at the same
/// addresses, with the same bytes and rights. A fork then copies no tables for it: it finds what it reads sixteen pages at a
/// time, what it writes to is copied (see `pinned.rs`), and its end lets go of less. `false`: the kernel has no such pages.
///
/// Before there are threads. The file has no name, and no descriptor when this returns; nobody can write to it. `smaps` is this
/// process's own /proc/PID/smaps, and what it lists is there as long as this runs. This is about speed alone: where an error is
/// given, or a rule of the host is against it, the bytes are where they were.
pub(crate) fn have_forks_map_memory(smaps: &str) -> io::Result<bool> {
    let places = places_of(smaps);
    // SAFETY: the smaps say that they are mapped, private and readable, and there is no other thread.
    unsafe { exchange(&places) }
}

/// A line of /proc/PID/maps.
pub(super) struct Mapping<'a> {
    pub(super) pages: Range<usize>,
    pub(super) rights: &'a str,
    /// A path, one of the kernel's own names, or nothing.
    pub(super) name: &'a str,
}

impl<'a> Mapping<'a> {
    pub(super) fn of(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let [begin, end] = [begin, end].map(|at| usize::from_str_radix(at, 16));
        Some(Mapping {
            pages: begin.ok()?..end.ok()?,
            rights: words.next()?,
            name: words.nth(3).unwrap_or_default(),
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Place {
    pages: Range<usize>,
    protection: c_int,
}

impl Place {
    /// Of a line of maps: what is a file's, nobody's or the heap's. Not the stack, and nothing of the kernel's own.
    fn of(line: &str) -> Option<Self> {
        let Mapping {
            pages,
            rights,
            name,
        } = Mapping::of(line)?;
        let is_files = name.starts_with('/');
        let is_ours = ["", "[heap]"].contains(&name);
        let protection = match rights {
            "rw-p" if is_files || is_ours => libc::PROT_READ | libc::PROT_WRITE,
            // What is nobody's and cannot be written to has been put there, in large pages (`image.rs`).
            "r--p" if is_files => libc::PROT_READ,
            "r-xp" if is_files => libc::PROT_READ | libc::PROT_EXEC,
            _ => return None,
        };
        (pages.len() >= PLACE_BYTES_MIN).then_some(Place { pages, protection })
    }
}

/// Those of which a fork is to have what is there, by /proc/PID/smaps (proc_pid_smaps(5)). What the kernel keeps from forks
/// (`madvise(2)`: WIPEONFORK, DONTFORK; `dp`, droppable, as the keys of getrandom() in the vDSO are) would be in all of them, once
/// it is a file's: the same random numbers in each run. `sl` is sealed, and cannot be exchanged.
fn places_of(smaps: &str) -> Vec<Place> {
    let (mut places, mut place) = (Vec::new(), None);
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let stays = |flag| ["wf", "dc", "dp", "sl"].contains(&flag);
            places.extend(
                place
                    .take()
                    .filter(|_| !flags.split_whitespace().any(stays)),
            );
        } else if Mapping::of(line).is_some() {
            place = Place::of(line);
        }
    }
    places
}

/// # Safety
///
/// The places are private mappings that can be read, in whole pages, and no other thread writes to them.
unsafe fn exchange(places: &[Place]) -> io::Result<bool> {
    let all = places.iter().map(|place| place.pages.len());
    let bytes = all.sum::<usize>().next_multiple_of(LARGE_PAGE);
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), flags) };
    check(fd.into())?;
    // SAFETY: it is new, and nobody else's.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes as u64)?;
    if !become_large(&file, bytes)? {
        return Ok(false);
    }
    let mut at = 0;
    let exchanged = places.iter().try_for_each(|place| {
        let here = at;
        at += place.pages.len() as u64;
        // SAFETY: this function's own condition.
        unsafe { exchange_one(place, &file, here) }
    });
    if seal(&file).is_err() {
        // Never goes on with memory that somebody could write to from outside.
        exit_now(124);
    }
    exchanged.map(|()| true)
}

/// A page that the kernel itself holds for a moment (compaction, migration) counts as in use. It waits for such pages, 150 ms or
/// so, before it says EBUSY, and on a machine that is short of memory that happens.
const SEAL_TRIES_MAX: u32 = 10;

/// Nobody changes the file any more. Nothing is written but the stack: it is a copy of this very memory.
fn seal(file: &File) -> io::Result<()> {
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
    let mut tries = 0;
    loop {
        // SAFETY: no pointers.
        let sealed =
            check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }.into());
        tries += 1;
        match sealed {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && tries < SEAL_TRIES_MAX => {}
            other => return other.map(drop),
        }
    }
}

/// Puts a mapping of what is in the file from `at` on in the place of one; or does nothing, where a rule of the host does not
/// let a file like this be executed.
///
/// # Safety
///
/// As for [`exchange`].
unsafe fn exchange_one(place: &Place, file: &File, at: u64) -> io::Result<()> {
    let (bytes, protection) = (place.pages.len(), place.protection);
    // From here to the last call nothing is written but the stack.
    // SAFETY: readable, by this function's own condition.
    file.write_all_at(unsafe { bytes_of(&place.pages) }, at)?;
    let (fd, at) = (file.as_raw_fd(), at as libc::off_t);
    let anywhere = std::ptr::null_mut();
    // SAFETY: a new mapping, which is nobody else's.
    let new = unsafe { libc::mmap(anywhere, bytes, protection, libc::MAP_PRIVATE, fd, at) };
    if new == libc::MAP_FAILED {
        return Ok(());
    }
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let to = place.pages.start as *mut c_void;
    // SAFETY: the kernel puts one in the place of the other at once, and the bytes are the same.
    if unsafe { libc::mremap(new, bytes, bytes, flags, to) } == libc::MAP_FAILED {
        // Nobody says what is there now.
        exit_now(124);
    }
    Ok(())
}

/// # Safety
///
/// The place can be read while the slice lives.
unsafe fn bytes_of(place: &Range<usize>) -> &[u8] {
    // SAFETY: by this function's own condition. The kernel alone looks at them.
    unsafe { std::slice::from_raw_parts(place.start as *const u8, place.len()) }
}

/// Has an empty file of so many bytes, whole large pages, lie in such. `false`: not all of it could be.
fn become_large(file: &File, bytes: usize) -> io::Result<bool> {
    // Where there is nothing at all the kernel makes nothing large; what is not there it need not copy.
    for at in (0..bytes).step_by(LARGE_PAGE) {
        file.write_all_at(&[0], at as u64)?;
    }
    let room_bytes = bytes + LARGE_PAGE;
    let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which is nobody else's.
    let room = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            room_bytes,
            libc::PROT_NONE,
            nothing,
            -1,
            0,
        )
    };
    if room == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let view = (room as usize).next_multiple_of(LARGE_PAGE) as *mut c_void;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: within the new mapping, which is taken away again; the file has the byte that is looked at, see above.
    let is_large = unsafe {
        let fd = file.as_raw_fd();
        let is_there = libc::mmap(view, bytes, libc::PROT_READ, flags, fd, 0) != libc::MAP_FAILED;
        if is_there {
            // Linux 6.1 says EINVAL where nobody has looked.
            for at in (0..bytes).step_by(LARGE_PAGE) {
                view.cast::<u8>().add(at).read_volatile();
            }
        }
        is_there && libc::madvise(view, bytes, MADV_COLLAPSE) == 0
    };
    // SAFETY: as above.
    unsafe { libc::munmap(room, room_bytes) };
    Ok(is_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_forks_map_of_a_process() {
        let (read, write, execute) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
        for (line, protection) in [
            ("100000-104000 rw-p 00000000 00:00 0 ", Some(read | write)),
            ("100000-103000 rw-p 00000000 00:00 0 ", None),
            ("100000-104000 r--p 00000000 00:00 0 ", None),
            ("100000-104000 r-xp 00000000 00:00 0 ", None),
            ("100000-104000 ---p 00000000 00:00 0 ", None),
            ("100000-104000 rw-s 00000000 00:00 0 ", None),
            ("100000-104000 rw-p 0 00:00 0   [heap]", Some(read | write)),
            ("100000-104000 rw-p 0 00:00 0   [stack]", None),
            ("100000-104000 r--p 0 00:00 0   [vvar]", None),
            ("100000-104000 r-xp 0 00:00 0   [vdso]", None),
            ("100000-104000 rw-p 0 00:00 0   [anon: x]", None),
            ("100000-104000 rw-p 50 fe:00 12 /usr/x", Some(read | write)),
            ("100000-104000 r--p 50 fe:00 12 /usr/x", Some(read)),
            (
                "100000-104000 r-xp 50 fe:00 12 /usr/x",
                Some(read | execute),
            ),
            ("100000-104000 r--s 50 fe:00 12 /usr/x", None),
            ("100000-104000", None),
            ("", None),
        ] {
            let pages = 0x10_0000..0x10_4000;
            let place = protection.map(|protection| Place { pages, protection });
            assert_eq!(Place::of(line), place, "{line}");
        }
    }

    #[test]
    fn what_is_kept_from_forks_stays_so() {
        let mapping = "100000-104000 rw-p 00000000 00:00 0 ";
        let rest =
            "Size:                 16 kB\nRss:                   4 kB\nTHPeligible:           0\n";
        let smaps = |flags: &str| format!("{mapping}\n{rest}{flags}");
        assert_eq!(places_of(&smaps("VmFlags: rd wr mr mw me ac \n")).len(), 1);
        for flag in ["wf", "dc", "dp", "sl"] {
            let flags = format!("VmFlags: rd wr mr mw me {flag} ac \n");
            assert_eq!(places_of(&smaps(&flags)), [], "{flag}");
        }
        assert_eq!(places_of(&smaps("")), [], "nobody says what it is");

        let bytes = PLACE_BYTES_MIN;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let nowhere = std::ptr::null_mut();
        let is_place = |advice: Option<c_int>| {
            // SAFETY: a new mapping, which is nobody else's, and goes again.
            unsafe {
                let start = libc::mmap(nowhere, bytes, writable, flags, -1, 0);
                assert_ne!(start, libc::MAP_FAILED);
                if let Some(advice) = advice {
                    assert_eq!(libc::madvise(start, bytes, advice), 0);
                }
                let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
                let has_it = |place: &Place| place.pages.contains(&(start as usize));
                let has_it = places_of(&smaps).iter().any(has_it);
                assert_eq!(libc::munmap(start, bytes), 0);
                has_it
            }
        };
        assert!(is_place(None));
        for advice in [libc::MADV_WIPEONFORK, libc::MADV_DONTFORK] {
            assert!(!is_place(Some(advice)), "{advice}");
        }
    }

    #[test]
    fn bytes_stay_and_are_nobody_elses() {
        let bytes = 3 * PLACE_BYTES_MIN;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which is nobody else's.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, writable, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: it is that long, and this test's alone until its end.
        let memory = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), bytes) };
        let written: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        memory.copy_from_slice(&written);
        let begin = start as usize;
        // Two places, so that one lies behind the other in the file, and something between them that is none.
        let places = [
            begin..begin + PLACE_BYTES_MIN,
            begin + 2 * PLACE_BYTES_MIN..begin + bytes,
        ]
        .map(|pages| Place {
            pages,
            protection: writable,
        });
        // SAFETY: of the mapping above.
        let exchanged = unsafe { exchange(&places) }.unwrap();
        assert_eq!(memory, written, "exchanged: {exchanged}");
        memory[0] = 255;
        memory[bytes - 1] = 255;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // Where nothing was exchanged, the places are parts of one mapping.
        let is_file = |place: &Place| {
            let mut mappings = maps.lines().filter_map(Mapping::of);
            let has_it = |m: &Mapping<'_>| m.pages.contains(&place.pages.start);
            mappings
                .find(has_it)
                .unwrap()
                .name
                .contains("skillgate-memory")
        };
        assert!(places.iter().all(|place| is_file(place) == exchanged));
        // SAFETY: as above; what was written since goes, and what the file has comes back.
        unsafe { libc::madvise(start, bytes, libc::MADV_DONTNEED) };
        if exchanged {
            assert_eq!(
                (memory[0], memory[bytes - 1]),
                (written[0], written[bytes - 1])
            );
        }
        // SAFETY: nobody looks at it from here on.
        unsafe { libc::munmap(start, bytes) };
    }
}
