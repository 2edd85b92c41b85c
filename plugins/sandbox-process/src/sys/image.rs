//! The pages of this process's program and libraries.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;

use super::{exit_now, page_bytes};

/// Of the machines that this runs on. Where it is something else, the kernel does not give what is asked for in it.
pub(super) const LARGE_PAGE: usize = 2 << 20;
/// <linux/mman.h>, Linux 6.1
pub(super) const MADV_COLLAPSE: c_int = 25;

/// Has forks of this process inherit its page tables of code and constants. Otherwise each fork begins without them and
/// finds its way back by one page fault after the other: fork(2) copies those tables only of mappings that have a page of
/// their own, which those of files have once one byte was written. So each gets one, with the byte that is there.
///
/// Before there are threads, and before anything runs that is not to be trusted: what is executed can be written to
/// for a moment. What cannot be changed (a rule of the host forbids it) stays as it is: this is about speed alone.
///
/// `large`: code and constants are put into large pages as far as whole ones go, and stay where they are. A fork then copies
/// one entry of its tables for each where it copied 512, and the end of a process lets go of as many. It is memory of this
/// process, with its forks: no file's that others have too, and constants in it can be executed.
pub(crate) fn have_forks_inherit_code(large: bool) {
    let large: *const bool = &large;
    // SAFETY: the callback has this signature, does not keep its arguments, and reads a bool there.
    unsafe { libc::dl_iterate_phdr(Some(each_object), large.cast_mut().cast()) };
}

unsafe extern "C" fn each_object(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    large: *mut c_void,
) -> c_int {
    let touched = std::panic::catch_unwind(|| {
        // SAFETY: the loader's description of one loaded object, readable during this call, and the caller's bool.
        let (object, wants_large) = unsafe { (&*object, *large.cast::<bool>()) };
        // SAFETY: as above; the name is NUL-terminated.
        let name =
            (!object.dlpi_name.is_null()).then(|| unsafe { CStr::from_ptr(object.dlpi_name) });
        if name.is_some_and(|n| n.to_bytes().starts_with(b"linux-vdso")) {
            // The kernel's, and no file.
            return;
        }
        // SAFETY: as above; the table has that many lines.
        let lines =
            unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
        let segments: Vec<Segment> = lines
            .iter()
            .filter(|l| l.p_type == libc::PT_LOAD)
            .filter(|l| l.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R)
            .map(|line| Segment::of(object.dlpi_addr as usize, line))
            .collect();
        let mut large = if wants_large {
            whole_large_pages(&segments)
        } else {
            0..0
        };
        // SAFETY: read-only segments side by side, to which nobody writes.
        if !large.is_empty() && !unsafe { exchange(&large) } {
            large = 0..0;
        }
        for segment in segments.iter().flat_map(|s| s.without(&large)) {
            own_first_page(&segment);
        }
    });
    if touched.is_err() {
        exit_now(124);
    }
    0
}

/// One that can be read and not written to, in whole pages.
#[derive(Debug, Clone, PartialEq)]
struct Segment {
    pages: Range<usize>,
    executable: bool,
}

impl Segment {
    /// Of an object that was loaded at `base`.
    fn of(base: usize, line: &libc::Elf64_Phdr) -> Self {
        let page = page_bytes();
        let begin = (base + line.p_vaddr as usize) & !(page - 1);
        let end = (base + (line.p_vaddr + line.p_memsz) as usize).next_multiple_of(page);
        Segment {
            pages: begin..end,
            executable: line.p_flags & libc::PF_X != 0,
        }
    }

    /// What of it lies before `large`, and behind.
    fn without(&self, large: &Range<usize>) -> [Segment; 2] {
        let Range { start, end } = self.pages;
        let (before, behind) = if large.is_empty() {
            (start..end, end..end)
        } else {
            (start..end.min(large.start), start.max(large.end)..end)
        };
        [before, behind].map(|pages| Segment { pages, ..*self })
    }
}

/// The large pages that the first segments fill, as many as lie side by side.
fn whole_large_pages(segments: &[Segment]) -> Range<usize> {
    let mut all = segments.first().map_or(0..0, |s| s.pages.clone());
    for segment in segments.iter().skip(1) {
        if segment.pages.start != all.end {
            break;
        }
        all.end = segment.pages.end;
    }
    let large = all.start.next_multiple_of(LARGE_PAGE)..all.end & !(LARGE_PAGE - 1);
    if large.is_empty() { 0..0 } else { large }
}

/// Puts the bytes of a place into large pages that take its place. `false`: the kernel has none to give, or a rule of the
/// host is against it, and nothing has changed.
///
/// # Safety
///
/// The place is mapped and readable, nobody writes to it, and it begins and ends with a large page.
unsafe fn exchange(place: &Range<usize>) -> bool {
    let bytes = place.len();
    let room_bytes = bytes + LARGE_PAGE;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which is nobody else's.
    let room = unsafe { libc::mmap(std::ptr::null_mut(), room_bytes, writable, private, -1, 0) };
    if room == libc::MAP_FAILED {
        return false;
    }
    let copy = (room as usize).next_multiple_of(LARGE_PAGE) as *mut c_void;
    // SAFETY: within the new mapping; what is read is readable by this function's own condition.
    let is_large = unsafe {
        // Only saves the kernel the small pages. That they are large is what the second advice says, which is taken while
        // they can be written to.
        libc::madvise(copy, bytes, libc::MADV_HUGEPAGE);
        let from = place.start as *const u8;
        copy.cast::<u8>().copy_from_nonoverlapping(from, bytes);
        libc::madvise(copy, bytes, MADV_COLLAPSE) == 0
            && libc::mprotect(copy, bytes, libc::PROT_READ | libc::PROT_EXEC) == 0
    };
    if is_large {
        let to = place.start as *mut c_void;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the kernel puts one in the place of the other at once, and the bytes are the same.
        if unsafe { libc::mremap(copy, bytes, bytes, flags, to) } == libc::MAP_FAILED {
            // Nobody says what is there now.
            exit_now(124);
        }
    }
    // SAFETY: what is left of the new mapping: what has moved away is not there any more.
    unsafe { libc::munmap(room, room_bytes) };
    is_large
}

/// Of one segment, or what is left of it.
fn own_first_page(segment: &Segment) {
    let Range { start: begin, end } = segment.pages;
    if begin >= end {
        return;
    }
    let start = begin as *mut c_void;
    let mut protection = libc::PROT_READ;
    if segment.executable {
        protection |= libc::PROT_EXEC;
    }
    if (begin..end).contains(&(have_forks_inherit_code as *const () as usize)) {
        // Of this file's own code, what a fork does is nothing that its parent has ever done. Left as it is by a kernel that
        // does not know the advice.
        // SAFETY: as below; nothing is changed.
        unsafe { libc::madvise(start, end - begin, libc::MADV_POPULATE_READ) };
    }
    // SAFETY: a whole segment that the loader has mapped, private. It can be read and executed all the time; nothing but
    // the next line writes to it, the byte that is there, and there is no other thread that could be in it.
    unsafe {
        if libc::mprotect(start, end - begin, protection | libc::PROT_WRITE) != 0 {
            return;
        }
        let byte = start.cast::<u8>();
        byte.write_volatile(byte.read_volatile());
        if libc::mprotect(start, end - begin, protection) != 0 {
            // Never goes on with code that can be written to.
            exit_now(124);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: usize = 1 << 10;

    fn segment(pages: (usize, usize)) -> Segment {
        Segment {
            pages: pages.0 * K..pages.1 * K,
            executable: false,
        }
    }

    #[test]
    fn large_pages_are_whole_and_of_segments_side_by_side() {
        for (pages, large) in [
            (
                &[(4096, 4220), (4220, 6988), (6988, 9500)][..],
                (4096, 8192),
            ),
            (&[(4000, 5000), (5000, 9000)], (4096, 8192)),
            (&[(4000, 5000), (5004, 9000)], (0, 0)),
            (&[(4100, 8000)], (0, 0)),
            (&[], (0, 0)),
        ] {
            let segments: Vec<_> = pages.iter().copied().map(segment).collect();
            assert_eq!(
                whole_large_pages(&segments),
                segment(large).pages,
                "{pages:?}"
            );
        }
    }

    #[test]
    fn what_is_left_of_a_segment() {
        let large = (4096, 8192);
        for (pages, large, left) in [
            ((4096, 4220), large, vec![]),
            ((5000, 8192), large, vec![]),
            ((4000, 5000), large, vec![(4000, 4096)]),
            ((6988, 9500), large, vec![(8192, 9500)]),
            ((4000, 9500), large, vec![(4000, 4096), (8192, 9500)]),
            ((9500, 9600), large, vec![(9500, 9600)]),
            ((1, 2), large, vec![(1, 2)]),
            ((1, 2), (0, 0), vec![(1, 2)]),
        ] {
            let both = segment(pages).without(&segment(large).pages);
            let found: Vec<_> = both.into_iter().filter(|s| !s.pages.is_empty()).collect();
            let left: Vec<_> = left.into_iter().map(segment).collect();
            assert_eq!(found, left, "{pages:?} without {large:?}");
        }
    }
}
