//! Memory that ends where the next byte faults, and that faults as a whole once it was taken back.

use std::any::TypeId;
use std::cell::RefCell;
use std::io;
use std::sync::{Mutex, PoisonError};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::wire::{Grows, size_of_u32};

/// How a struct is shown to a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// As this header declares it; the next byte cannot be read.
    Whole,
    /// As the oldest host does, which is one of minor 0; the next byte cannot be read.
    Oldest,
    /// As a host of a newer header would: with fields behind it that nobody knows.
    Longer,
}

/// Bytes of a newer host behind what this header declares.
pub(crate) const MORE_BYTES: usize = 64;
/// They make a pointer that cannot be followed and a number that is too large.
const POISON: u8 = 0xaa;

thread_local! {
    /// While what is lent is taken back: what was lent since the last time (address, bytes). None: it is lent for ever.
    static LENT: RefCell<Option<Vec<(usize, usize)>>> = const { RefCell::new(None) };
}

/// Lent for ever, and known to be: a sanitizer that looks for leaks takes what nobody points at for one, and is to find the
/// plugin's alone.
pub(crate) fn keep<T: ?Sized>(value: Box<T>) -> &'static T {
    static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let value: &'static T = Box::leak(value);
    let at = std::ptr::from_ref(value).cast::<u8>() as usize;
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(at);
    value
}

/// In `work` nothing of what a call was lent can be touched when that call has returned: it was borrowed (rule 1).
pub(crate) fn taking_back<T>(work: impl FnOnce() -> T) -> T {
    with_lent(Some(Vec::new()), work)
}

/// In `work` what is lent is lent for ever.
pub(super) fn for_ever<T>(work: impl FnOnce() -> T) -> T {
    with_lent(None, work)
}

fn with_lent<T>(lent: Option<Vec<(usize, usize)>>, work: impl FnOnce() -> T) -> T {
    let before = LENT.replace(lent);
    let result = work();
    LENT.set(before);
    result
}

/// A call that this thread has made has returned.
pub(super) fn take_back() {
    let lent = LENT.with_borrow_mut(|lent| lent.as_mut().map(std::mem::take));
    for (at, bytes) in lent.into_iter().flatten() {
        // What cannot be taken back, which is never so of one's own mapping, stays.
        // SAFETY: what `before_a_guard` has mapped, which the kit does not look at again.
        unsafe { libc::mprotect(at as *mut libc::c_void, bytes, libc::PROT_NONE) };
    }
}

/// Lends elements: a copy that can be taken back, or these, for ever.
pub(super) fn lend<T: Copy>(values: &'static [T]) -> *const T {
    let is_taken_back = LENT.with_borrow(Option::is_some);
    if !is_taken_back || values.is_empty() {
        return values.as_ptr();
    }
    let Ok(at) = before_a_guard(size_of_val(values)) else {
        return values.as_ptr();
    };
    let at = at.cast::<T>();
    // SAFETY: so many bytes are writable there.
    unsafe {
        let bytes = size_of_val(values);
        std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), at.cast(), bytes);
    }
    at.cast_const()
}

/// Memory that is lent until its op completes, and from then on faults: the data of a blob_write, the room of a blob_read. The
/// byte behind it faults from the beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    at: usize,
    bytes: usize,
}

impl Room {
    /// Zeroed.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let at = for_ever(|| before_a_guard(bytes))? as usize;
        Ok(Room { at, bytes })
    }

    /// Filled with a copy.
    pub(crate) fn of(data: &[u8]) -> io::Result<Self> {
        let room = Room::new(data.len())?;
        // SAFETY: so many bytes are writable there, and nobody knows of it yet.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), room.at as *mut u8, data.len()) };
        Ok(room)
    }

    pub(super) fn pointer(self) -> *mut u8 {
        self.at as *mut u8
    }

    pub(super) fn len(self) -> u64 {
        self.bytes as u64
    }

    /// The first `n` bytes; `None`: there are fewer.
    ///
    /// # Safety
    /// It was not taken back, and nobody writes there now.
    pub(super) unsafe fn copy(self, n: u64) -> Option<Vec<u8>> {
        let n = usize::try_from(n).ok().filter(|n| *n <= self.bytes)?;
        // SAFETY: so many bytes are readable there, by the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(self.pointer(), n) }.to_vec())
    }

    /// From now on it cannot be touched. The kit does not look at it again.
    pub(super) fn take_back(self) {
        let Ok(page) = page_bytes() else { return };
        let start = self.at - self.at % page;
        // What cannot be taken back, which is never so of one's own mapping, stays.
        // SAFETY: the pages that were mapped for it, up to the guard.
        unsafe {
            let bytes = self.at + self.bytes - start;
            libc::mprotect(start as *mut libc::c_void, bytes, libc::PROT_NONE);
        }
    }
}

/// Lends a list of what never grows.
pub(super) fn lend_list<T: Copy + 'static>(values: &[T]) -> abi::List {
    let values: &'static [T] = keep(values.into());
    abi::List {
        ptr: lend(values).cast(),
        ..abi::List::of(values)
    }
}

/// What the structs that a host produces measure in minor 0: no host shows less of them. They grow at the end, so this is
/// where such a host's ends.
fn oldest_size<T: 'static>() -> usize {
    known::<T>().min(size_of::<T>())
}

/// In minor 0.
fn known<T: 'static>() -> usize {
    let sizes = [
        (TypeId::of::<abi::Host>(), 160),
        (TypeId::of::<abi::CreateRequest>(), 56),
        (TypeId::of::<abi::ListRequest>(), 88),
        (TypeId::of::<abi::PutSkill>(), 168),
        (TypeId::of::<abi::BlobCreateRequest>(), 88),
        (TypeId::of::<abi::RunRequest>(), 216),
        (TypeId::of::<abi::RunSkill>(), 72),
        (TypeId::of::<abi::Mount>(), 88),
        (TypeId::of::<abi::EgressRule>(), 56),
        (TypeId::of::<abi::Limits>(), 56),
        (TypeId::of::<abi::Gate>(), 72),
        (TypeId::of::<abi::SandboxCaps>(), 40),
    ];
    let of = sizes.into_iter().find(|(of, _)| *of == TypeId::of::<T>());
    of.map_or(size_of::<T>(), |(_, size)| size)
}

/// Lends a copy of `value`, for ever. Its `struct_size` is set to what `shape` says.
pub(crate) fn place<T: Grows + 'static>(value: &T, shape: Shape) -> io::Result<*const T> {
    let size = size_of::<T>();
    let (shown, behind) = match shape {
        Shape::Whole => (size, 0),
        Shape::Oldest => (oldest_size::<T>(), 0),
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
pub(crate) fn place_list<T: Grows + 'static>(values: &[T], shape: Shape) -> io::Result<abi::List> {
    let stride = match shape {
        Shape::Longer => size_of::<T>() + MORE_BYTES,
        Shape::Whole => size_of::<T>(),
        Shape::Oldest => oldest_size::<T>(),
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
                size_of::<T>().min(stride),
            );
            element
                .cast::<u32>()
                .write_unaligned(u32::try_from(stride).unwrap_or(u32::MAX));
        }
    }
    Ok(abi::List {
        ptr: at.cast_const().cast(),
        len: size_of_len(values),
        stride: u32::try_from(stride).unwrap_or(u32::MAX),
    })
}

fn size_of_len<T>(values: &[T]) -> u32 {
    u32::try_from(values.len()).unwrap_or(size_of_u32::<()>())
}

fn page_bytes() -> io::Result<usize> {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
        .map_err(|_| io::Error::last_os_error())
}

/// `size` writable bytes, the last of which is the last before a page that cannot be touched. Aligned to 8 when `size`
/// is a multiple of 8.
fn before_a_guard(size: usize) -> io::Result<*mut u8> {
    let page = page_bytes()?;
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
    LENT.with_borrow_mut(|lent| lent.as_mut().map(|lent| lent.push((start as usize, room))));
    // SAFETY: room >= size, so this lies in the mapping.
    Ok(unsafe { start.cast::<u8>().add(room - size) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While there is no other minor, the oldest host is this one.
    #[test]
    fn the_oldest_host_is_the_one_of_minor_0() {
        fn same<T: 'static>() -> Option<(&'static str, usize, usize)> {
            let (oldest, now) = (known::<T>(), size_of::<T>());
            let differs = if abi::ABI_MINOR == 0 {
                oldest != now
            } else {
                oldest > now
            };
            differs.then_some((std::any::type_name::<T>(), oldest, now))
        }
        let wrong = [
            same::<abi::Host>(),
            same::<abi::CreateRequest>(),
            same::<abi::ListRequest>(),
            same::<abi::PutSkill>(),
            same::<abi::BlobCreateRequest>(),
            same::<abi::RunRequest>(),
            same::<abi::RunSkill>(),
            same::<abi::Mount>(),
            same::<abi::EgressRule>(),
            same::<abi::Limits>(),
            same::<abi::Gate>(),
            same::<abi::SandboxCaps>(),
        ];
        let wrong: Vec<_> = wrong.into_iter().flatten().collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn what_is_in_a_room_can_be_had_until_it_is_taken_back() {
        for data in [&b""[..], b"hello", &[7; 5000]] {
            let room = Room::of(data).unwrap();
            assert_eq!((room.at + room.bytes) % 4096, 0);
            // SAFETY: made just now.
            unsafe {
                assert_eq!(room.copy(room.len()).unwrap(), data);
                assert_eq!(room.copy(room.len() + 1), None);
            }
            room.take_back();
        }
    }

    #[test]
    fn a_struct_is_shown_as_its_host_would_show_it() {
        let request: abi::ListRequest = skillgate_plugin_sdk::wire::zeroed();
        for (shape, size) in [
            (Shape::Whole, size_of::<abi::ListRequest>()),
            (Shape::Longer, size_of::<abi::ListRequest>() + MORE_BYTES),
        ] {
            let at = place(&request, shape).unwrap();
            // SAFETY: placed just now: so many bytes can be read.
            let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), size) };
            assert_eq!(bytes[..4], u32::try_from(size).unwrap().to_le_bytes());
            assert!(
                bytes[size_of::<abi::ListRequest>()..]
                    .iter()
                    .all(|byte| *byte == POISON)
            );
            // The next byte is the first of a page.
            assert_eq!((at as usize + size) % 4096, 0);
        }
    }
}
