//! Memory that ends where the next byte faults.

use std::io;

use skillgate_plugin_sdk::wire::{Grows, size_of_u32};

/// How a struct is shown to a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// As this header declares it; the next byte cannot be read.
    Whole,
    /// As a host of an older header would: so many bytes, and the next byte cannot be read.
    Cut(usize),
    /// As a host of a newer header would: with fields behind it that nobody knows.
    Longer,
}

/// Bytes of a newer host behind what this header declares.
pub(crate) const MORE_BYTES: usize = 64;
/// They make a pointer that cannot be followed and a number that is too large.
const POISON: u8 = 0xaa;

/// Lends a copy of `value`, for ever. Its `struct_size` is set to what `shape` says.
pub(crate) fn place<T: Grows>(value: &T, shape: Shape) -> io::Result<*const T> {
    let size = size_of::<T>();
    let (shown, behind) = match shape {
        Shape::Whole => (size, 0),
        Shape::Cut(at) => (at.min(size), 0),
        Shape::Longer => (size, MORE_BYTES),
    };
    let at = before_a_guard(shown + behind)?;
    // SAFETY: at least `shown + behind` bytes are writable at `at`, and `shown` bytes are readable in `value`.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), at, shown);
        std::ptr::write_bytes(at.add(shown), POISON, behind);
        // Every struct that grows begins with struct_size.
        at.cast::<u32>()
            .write_unaligned(u32::try_from(shown + behind).unwrap_or(u32::MAX));
    }
    Ok(at.cast_const().cast())
}

/// Lends elements of a list that may grow, the next one `stride` bytes after the one before.
pub(crate) fn place_list<T: Grows>(
    values: &[T],
    shape: Shape,
) -> io::Result<skillgate_plugin_sdk::abi::List> {
    let stride = match shape {
        Shape::Longer => size_of::<T>() + MORE_BYTES,
        Shape::Whole | Shape::Cut(_) => size_of::<T>(),
    };
    let at = before_a_guard(stride * values.len())?;
    for (i, value) in values.iter().enumerate() {
        // SAFETY: element i lies in the memory that was made for all of them.
        unsafe {
            let element = at.add(i * stride);
            std::ptr::write_bytes(element, POISON, stride);
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(value).cast::<u8>(),
                element,
                size_of::<T>(),
            );
            element
                .cast::<u32>()
                .write_unaligned(u32::try_from(stride).unwrap_or(u32::MAX));
        }
    }
    Ok(skillgate_plugin_sdk::abi::List {
        ptr: at.cast_const().cast(),
        len: size_of_len(values),
        stride: u32::try_from(stride).unwrap_or(u32::MAX),
    })
}

fn size_of_len<T>(values: &[T]) -> u32 {
    u32::try_from(values.len()).unwrap_or(size_of_u32::<()>())
}

/// `size` writable bytes, the last of which is the last before a page that cannot be touched. Aligned to 8 when `size`
/// is a multiple of 8.
fn before_a_guard(size: usize) -> io::Result<*mut u8> {
    // SAFETY: asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
        .map_err(|_| io::Error::last_os_error())?;
    let room = size.max(1).div_ceil(page) * page;
    // SAFETY: new memory at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            room + page,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the last page of what was mapped just now, which nobody uses.
    let guarded =
        unsafe { libc::mprotect(start.cast::<u8>().add(room).cast(), page, libc::PROT_NONE) };
    if guarded != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: room >= size, so this lies in the mapping.
    Ok(unsafe { start.cast::<u8>().add(room - size) })
}
