//! The skillgate plugin contract, major 1: the Rust spelling of `include/skillgate_plugin.h`.
//!
//! `no_std`, no dependency, no behaviour: types, constants, and what it takes to look into a struct that came from the
//! other side. The header is the authority and has the rules; `tests/layout.rs` compiles it and compares every size,
//! offset, field type and constant with this crate. Who writes a plugin in Rust uses `skillgate-plugin-sdk` instead.
//!
//! Rust 1.63, edition 2021: a vendor's compiler may be old.
#![no_std]
// The contract's types are raw pointers; reading them is what this crate is for.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

use core::mem::size_of;

mod basics;
mod consts;
mod layout;
mod sandbox;
mod storage;

pub use basics::*;
pub use consts::*;
#[doc(hidden)]
pub use layout::layout;
pub use sandbox::*;
pub use storage::*;

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("the skillgate plugin contract is defined for 64-bit little-endian targets only");

/// `SKG_ABI_MAJOR`: of this crate.
pub const ABI_MAJOR: u32 = 1;
/// `SKG_ABI_MINOR`: of this crate.
pub const ABI_MINOR: u32 = 0;
/// First word of an entry and of a note: "SKG1".
pub const MAGIC: u32 = 0x3147_4b53;
/// The one exported symbol, NUL-terminated.
pub const ENTRY_SYMBOL: &[u8] = b"skillgate_plugin_entry_v1\0";
/// Id of the sandbox factory, NUL-terminated.
pub const SANDBOX_ID: &[u8] = b"skillgate.sandbox/1\0";
/// Id of the storage factory, NUL-terminated.
pub const STORAGE_ID: &[u8] = b"skillgate.storage/1\0";

/// An operation in flight. 0 is never valid.
pub type Op = u64;
/// A POSIX descriptor, opened close-on-exec, or -1: the one thing whose ownership moves. See `SKG_FD` in the header.
pub type Fd = i32;

/// Is `field` inside the struct that the other side handed over? `SKG_HAS`.
///
/// ```
/// # use skillgate_plugin_abi as abi;
/// # fn state(health: *const abi::Health) -> bool {
/// // SAFETY: health is a live struct of the contract.
/// unsafe { abi::has!(abi::Health, health, state) }
/// # }
/// ```
///
/// It reads through the pointer, so that whoever asks says why that is right:
///
/// ```compile_fail,E0133
/// # use skillgate_plugin_abi as abi;
/// # fn state(health: *const abi::Health) -> bool {
/// abi::has!(abi::Health, health, state)
/// # }
/// ```
///
/// # Safety
/// The pointer is to a struct of the contract that begins with `struct_size`. It need not be aligned.
#[macro_export]
macro_rules! has {
    ($t:ty, $p:expr, $f:ident) => {{
        let p: *const $t = $p;
        let end = $crate::offset_of!($t, $f) + $crate::size_of_field(|s: &$t| &s.$f);
        $crate::struct_size(p.cast()) >= end
    }};
}

/// What a struct says of its own size. For [`has!`], which leaves it to its caller to write `unsafe`.
///
/// # Safety
/// `p` points to a struct of the contract that begins with `struct_size`. It need not be aligned.
#[doc(hidden)]
#[must_use]
pub unsafe fn struct_size(p: *const u32) -> usize {
    // SAFETY: the caller's promise, in the same terms.
    (unsafe { p.read_unaligned() }) as usize
}

/// `core::mem::offset_of!`, which is newer than this crate may be.
#[doc(hidden)]
#[macro_export]
macro_rules! offset_of {
    ($t:ty, $f:ident) => {{
        let place = ::core::mem::MaybeUninit::<$t>::uninit();
        let base = place.as_ptr();
        // SAFETY: the field is inside `place`; nothing is read, so that it is not initialised does not matter.
        let field = unsafe { ::core::ptr::addr_of!((*base).$f) };
        field as usize - base as usize
    }};
}

#[doc(hidden)]
pub const fn size_of_field<S, T>(_: fn(&S) -> &T) -> usize {
    size_of::<T>()
}

// SAFETY: static, read-only descriptions; whoever makes one keeps what it points to unchanged.
unsafe impl Sync for EntryV1 {}
// SAFETY: as for EntryV1.
unsafe impl Sync for PluginInfo {}
// SAFETY: as for EntryV1.
unsafe impl Sync for SandboxFactory {}
// SAFETY: as for EntryV1.
unsafe impl Sync for StorageFactory {}

impl Str {
    /// No text.
    pub const EMPTY: Str = Str {
        ptr: core::ptr::null(),
        len: 0,
    };

    /// For statics.
    #[must_use]
    pub const fn new(s: &'static str) -> Self {
        Str {
            ptr: s.as_ptr(),
            len: s.len() as u64,
        }
    }

    /// Borrows, for as long as the call lasts that it is given to.
    #[must_use]
    pub fn of(s: &str) -> Self {
        Str {
            ptr: s.as_ptr(),
            len: s.len() as u64,
        }
    }

    /// The bytes, which need not be UTF-8: the other side wrote them.
    ///
    /// # Safety
    /// `ptr..ptr + len` is readable for `'a`, or `len` is 0 (then `ptr` is not looked at).
    #[must_use]
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the caller's promise, in the same terms.
        unsafe {
            Bytes {
                ptr: self.ptr,
                len: self.len,
            }
            .bytes()
        }
    }
}

impl Bytes {
    /// No bytes.
    pub const EMPTY: Bytes = Bytes {
        ptr: core::ptr::null(),
        len: 0,
    };

    /// Borrows, for as long as the call lasts that it is given to.
    #[must_use]
    pub fn of(s: &[u8]) -> Self {
        Bytes {
            ptr: s.as_ptr(),
            len: s.len() as u64,
        }
    }

    /// The bytes.
    ///
    /// # Safety
    /// As [`Str::bytes`].
    #[must_use]
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise; a null pointer with length 0 was answered above.
        unsafe { core::slice::from_raw_parts(self.ptr, self.len as usize) }
    }
}

impl List {
    /// No elements.
    pub const EMPTY: List = List {
        ptr: core::ptr::null(),
        len: 0,
        stride: 0,
    };

    /// Borrows, for as long as the call lasts that it is given to. At most `u32::MAX` elements.
    #[must_use]
    pub fn of<T>(s: &[T]) -> Self {
        debug_assert!(s.len() <= u32::MAX as usize && size_of::<T>() <= u32::MAX as usize);
        List {
            ptr: s.as_ptr().cast(),
            len: s.len() as u32,
            stride: size_of::<T>() as u32,
        }
    }

    /// Element `i`, `SKG_AT`. It need not be aligned, and may be shorter than `T`: see [`has!`].
    ///
    /// # Safety
    /// `i < len`, and the list is as its producer says.
    #[must_use]
    pub unsafe fn at<T>(&self, i: u32) -> *const T {
        // SAFETY: i < len, so the element lies inside the list that the producer made.
        unsafe {
            self.ptr
                .cast::<u8>()
                .add(i as usize * self.stride as usize)
                .cast()
        }
    }
}
