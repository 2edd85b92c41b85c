//! The pages of this process's program and libraries.

use std::ffi::{CStr, c_int, c_void};

use super::exit_now;

/// Has forks of this process inherit its page tables of code and constants. Otherwise each fork begins without them and
/// finds its way back by one page fault after the other: fork(2) copies those tables only of mappings that have a page of
/// their own, which those of files have once one byte was written. So each gets one, with the byte that is there.
///
/// Before there are threads, and before anything runs that is not to be trusted: what is executed can be written to
/// for a moment. What cannot be changed (a rule of the host forbids it) stays as it is: this is about speed alone.
pub(crate) fn have_forks_inherit_code() {
    // SAFETY: the callback has this signature and does not keep its arguments.
    unsafe { libc::dl_iterate_phdr(Some(each_object), std::ptr::null_mut()) };
}

unsafe extern "C" fn each_object(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut c_void,
) -> c_int {
    let touched = std::panic::catch_unwind(|| {
        // SAFETY: the loader's description of one loaded object, readable during this call.
        let object = unsafe { &*object };
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
        for line in lines.iter().filter(|l| l.p_type == libc::PT_LOAD) {
            if line.p_flags & libc::PF_W == 0 {
                own_first_page(object.dlpi_addr as usize, line);
            }
        }
    });
    if touched.is_err() {
        exit_now(124);
    }
    0
}

/// Of one segment of an object that was loaded at `base`.
fn own_first_page(base: usize, segment: &libc::Elf64_Phdr) {
    // SAFETY: no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let begin = (base + segment.p_vaddr as usize) & !(page - 1);
    let end = (base + (segment.p_vaddr + segment.p_memsz) as usize).next_multiple_of(page);
    let start = begin as *mut c_void;
    let mut protection = libc::PROT_READ;
    if segment.p_flags & libc::PF_X != 0 {
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
