//! Reading the contract's C structs without trusting them. Used by both ends: the SDK reads requests, the host reads
//! answers. Not part of the SDK's promise to vendors.
//!
//! Every struct is copied, as far as its producer's `struct_size` says that it reaches, into a zeroed twin of the
//! reader's own size. A field that the producer does not know is then zero, which for every type of the contract means
//! "nothing": a null function, an empty text, an empty list. That is `SKG_HAS` for all fields at once.

use std::mem::{align_of, size_of, MaybeUninit};

use skillgate_plugin_abi as abi;

/// A C struct of the contract that begins with `struct_size`.
///
/// # Safety
/// The type is `repr(C)`, its first field is a `u32` called `struct_size`, and all-zero bytes are a valid value of it.
pub unsafe trait Grows: Copy {}

macro_rules! grows {
    ($($t:ident)+) => { $(
        // SAFETY: declared in the header with `uint32_t struct_size` first (tests/layout.rs of the abi crate compares);
        // all fields are integers, pointers or Option<fn>, for which zero is valid.
        unsafe impl Grows for abi::$t {}
        // Of one with another alignment a size that is "whole" could end in the middle of a pointer.
        const _: () = assert!(align_of::<abi::$t>() == align_of::<*const u8>());
    )+ };
}
grows! {
    Error Completion LogRecord BlobStat Host CreateRequest SandboxCaps Limits Mount RunSkill EgressRule Gate RunRequest
    RunResult Health Sandbox SandboxFactory SkillFile Skill ListRequest SkillPage Content PutSkill BlobOpened
    BlobCreateRequest Storage StorageFactory PluginInfo
}

/// What was wrong with a struct: the field and the reason, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub String);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

fn bad<T>(what: &str, why: impl std::fmt::Display) -> Result<T, Malformed> {
    Err(Malformed(format!("{what}: {why}")))
}

/// Most bytes that a Rust slice may have: what is said to be longer is garbled, whoever says it.
pub(crate) const LONGEST: usize = isize::MAX as usize;

/// Smallest `struct_size` that says anything: the size itself and one more field.
const SMALLEST: usize = 8;

/// A zeroed value of a contract's struct.
#[must_use]
pub fn zeroed<T: Grows>() -> T {
    // SAFETY: `Grows` promises that all-zero bytes are a valid value.
    unsafe { MaybeUninit::<T>::zeroed().assume_init() }
}

/// The struct's own size as the contract writes it.
#[must_use]
pub fn size_of_u32<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX)
}

/// Copies what the producer's struct holds into a zeroed one of ours.
///
/// # Safety
/// `p` is null, or points to a struct of the contract whose first `struct_size` bytes are readable.
pub unsafe fn prefix<T: Grows>(p: *const T, what: &str) -> Result<T, Malformed> {
    if p.is_null() {
        return bad(what, "is null");
    }
    // SAFETY: not null; the caller promises at least struct_size itself, read without an assumption about alignment.
    let size = unsafe { p.cast::<u32>().read_unaligned() } as usize;
    if size < SMALLEST || !is_whole::<T>(size) {
        return bad(
            what,
            format_args!(
                "struct_size is {size}, which no struct of the contract has: set it to sizeof"
            ),
        );
    }
    // SAFETY: `size` bytes are readable by the caller's promise.
    Ok(unsafe { copy(p, size) })
}

/// Structs grow at their end, and their size is that of the whole: a multiple of the alignment. One that is not may end in the
/// middle of a field, and half a pointer is a wrong one.
const fn is_whole<T: Grows>(size: usize) -> bool {
    size % align_of::<T>() == 0
}

/// # Safety
/// `available` bytes are readable at `p`.
unsafe fn copy<T: Grows>(p: *const T, available: usize) -> T {
    let mut out = MaybeUninit::<T>::zeroed();
    let n = available.min(size_of::<T>());
    // SAFETY: n bytes are readable at p (caller) and writable in `out` (n <= size of T); a local does not overlap.
    unsafe { std::ptr::copy_nonoverlapping(p.cast::<u8>(), out.as_mut_ptr().cast::<u8>(), n) };
    // SAFETY: `Grows`: zero bytes, partly replaced by a producer's value of the same struct, are a valid value.
    unsafe { out.assume_init() }
}

/// Writes our struct into the consumer's, as far as its `struct_size` says that there is room, and sets that to what was
/// written. Null is no room.
///
/// # Safety
/// `out` is null, or points to a struct of the contract whose first `struct_size` bytes are writable.
pub unsafe fn fill<T: Grows>(out: *mut T, value: &T) {
    if out.is_null() {
        return;
    }
    let size = out.cast::<u32>();
    // SAFETY: not null; the caller promises at least struct_size itself.
    let n = (unsafe { size.read_unaligned() } as usize).min(size_of::<T>());
    if n < SMALLEST {
        return;
    }
    // SAFETY: n bytes are readable in `value` and writable at `out`; two sides' structs do not overlap.
    unsafe { std::ptr::copy_nonoverlapping((value as *const T).cast::<u8>(), out.cast::<u8>(), n) };
    // SAFETY: as above; n fits, since it is at most the size of a struct.
    unsafe { size.write_unaligned(n as u32) };
}

/// Reads texts, bytes and lists, and keeps count of how much it has copied: an answer may not be larger than the
/// reader's budget.
#[derive(Debug)]
pub struct Reader {
    left: usize,
}

impl Reader {
    /// A reader that copies at most `budget_bytes`.
    #[must_use]
    pub fn new(budget_bytes: usize) -> Self {
        Reader { left: budget_bytes }
    }

    fn spend(&mut self, what: &str, len: u64, cap: usize) -> Result<usize, Malformed> {
        let cap = cap.min(LONGEST);
        let len = match usize::try_from(len) {
            Ok(n) if n <= cap => n,
            _ => {
                return bad(
                    what,
                    format_args!("{len} bytes, more than the {cap} that are allowed"),
                );
            }
        };
        match self.left.checked_sub(len) {
            Some(left) => {
                self.left = left;
                Ok(len)
            }
            None => bad(what, "the whole is larger than what is allowed"),
        }
    }

    /// Copies bytes; null with length 0 is empty.
    ///
    /// # Safety
    /// `b.len` bytes are readable at `b.ptr`, or `b.ptr` is null.
    pub unsafe fn bytes(
        &mut self,
        b: abi::Bytes,
        what: &str,
        cap: usize,
    ) -> Result<Vec<u8>, Malformed> {
        if b.len == 0 {
            return Ok(Vec::new());
        }
        if b.ptr.is_null() {
            return bad(what, format_args!("null with length {}", b.len));
        }
        self.spend(what, b.len, cap)?;
        // SAFETY: not null, and b.len bytes are readable by the caller's promise.
        Ok(unsafe { b.bytes() }.to_vec())
    }

    /// Copies a text; null with length 0 is empty; what is not UTF-8 is malformed.
    ///
    /// # Safety
    /// As [`Reader::bytes`].
    pub unsafe fn text(
        &mut self,
        s: abi::Str,
        what: &str,
        cap: usize,
    ) -> Result<String, Malformed> {
        // SAFETY: the caller's promise, in the same terms.
        let bytes = unsafe {
            self.bytes(
                abi::Bytes {
                    ptr: s.ptr,
                    len: s.len,
                },
                what,
                cap,
            )
        }?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(e) => bad(
                what,
                format_args!("not UTF-8 at byte {}", e.utf8_error().valid_up_to()),
            ),
        }
    }

    fn list(
        &mut self,
        list: abi::List,
        what: &str,
        max: u32,
        smallest: usize,
        size: usize,
    ) -> Result<(), Malformed> {
        if list.len == 0 {
            return Ok(());
        }
        if list.ptr.is_null() {
            return bad(what, format_args!("null with {} elements", list.len));
        }
        if list.len > max {
            return bad(
                what,
                format_args!(
                    "{} elements, more than the {max} that are allowed",
                    list.len
                ),
            );
        }
        if (list.stride as usize) < smallest {
            return bad(
                what,
                format_args!("stride {} is smaller than an element", list.stride),
            );
        }
        self.spend(what, u64::from(list.len) * size as u64, usize::MAX)
            .map(|_| ())
    }

    /// Copies the elements of a list of structs that may grow.
    ///
    /// # Safety
    /// `list.len` elements of `list.stride` bytes are readable at `list.ptr`, or `list.ptr` is null.
    pub unsafe fn items<T: Grows>(
        &mut self,
        list: abi::List,
        what: &str,
        max: u32,
    ) -> Result<Vec<T>, Malformed> {
        self.list(list, what, max, SMALLEST, size_of::<T>())?;
        if list.len > 0 && !is_whole::<T>(list.stride as usize) {
            return bad(
                what,
                format_args!(
                    "stride {} is not the size of an element: set it to sizeof",
                    list.stride
                ),
            );
        }
        let mut out = Vec::with_capacity(list.len as usize);
        for i in 0..list.len {
            // SAFETY: i < len.
            let p = unsafe { list.at::<T>(i) };
            // SAFETY: an element has at least SMALLEST readable bytes, see `list`.
            let size = unsafe { p.cast::<u32>().read_unaligned() } as usize;
            if size < SMALLEST || !is_whole::<T>(size) {
                return bad(
                    what,
                    format_args!("element {i}: struct_size is {size}, which no struct of the contract has: set it to sizeof"),
                );
            }
            // SAFETY: stride bytes of the element are readable.
            out.push(unsafe { copy(p, size.min(list.stride as usize)) });
        }
        Ok(out)
    }

    /// Copies the elements of a list of a frozen type.
    ///
    /// # Safety
    /// As [`Reader::items`], and every bit pattern is a valid `T`.
    pub unsafe fn frozen<T: Copy>(
        &mut self,
        list: abi::List,
        what: &str,
        max: u32,
    ) -> Result<Vec<T>, Malformed> {
        self.list(list, what, max, size_of::<T>(), size_of::<T>())?;
        let mut out = Vec::with_capacity(list.len as usize);
        for i in 0..list.len {
            // SAFETY: i < len and the stride holds a whole T, see `list`.
            out.push(unsafe { list.at::<T>(i).read_unaligned() });
        }
        Ok(out)
    }
}

/// A text that is only shown: what is not UTF-8 is replaced, and what is longer than `cap` bytes cut.
///
/// # Safety
/// As [`Reader::bytes`].
#[must_use]
pub unsafe fn shown(s: abi::Str, cap: usize) -> String {
    if s.len == 0 || s.ptr.is_null() {
        return String::new();
    }
    let cut = abi::Bytes {
        ptr: s.ptr,
        len: s.len.min(cap as u64),
    };
    // SAFETY: not null, and no longer than what the caller promises to be readable.
    let mut text = String::from_utf8_lossy(unsafe { cut.bytes() }).into_owned();
    // What stands for a byte that is no text has three.
    let mut end = text.len().min(cap);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// Overwrites a secret so that the write is not optimised away.
pub fn wipe(secret: &mut [u8]) {
    for byte in secret {
        // SAFETY: a valid, exclusive reference.
        unsafe { std::ptr::write_volatile(byte, 0) };
    }
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why<T: std::fmt::Debug>(read: Result<T, Malformed>) -> String {
        read.unwrap_err().to_string()
    }

    #[test]
    fn a_list_is_read_as_far_as_it_is_one() {
        let pairs = [abi::Kv {
            key: abi::Str::new("k"),
            value: abi::Str::new("v"),
        }; 3];
        let list = abi::List::of(&pairs);
        let size = size_of::<abi::Kv>();
        let read = |list, max, budget| {
            // SAFETY: three elements at most, which live; any bit pattern is a pair.
            let read = unsafe { Reader::new(budget).frozen::<abi::Kv>(list, "l", max) };
            read.map(|pairs| pairs.len())
        };
        assert_eq!(read(list, 3, 3 * size), Ok(3));
        assert_eq!(
            why(read(list, 2, usize::MAX)),
            "l: 3 elements, more than the 2 that are allowed"
        );
        assert_eq!(
            why(read(list, 3, 3 * size - 1)),
            "l: the whole is larger than what is allowed"
        );
        let null = abi::List {
            ptr: std::ptr::null(),
            ..list
        };
        assert_eq!(why(read(null, 3, usize::MAX)), "l: null with 3 elements");
        assert_eq!(read(abi::List { len: 0, ..null }, 0, 0), Ok(0));
        let stride = |by: i64| abi::List {
            stride: u32::try_from(size as i64 + by).unwrap(),
            len: 1,
            ..list
        };
        assert_eq!(read(stride(8), 3, usize::MAX), Ok(1));
        let narrow = format!("l: stride {} is smaller than an element", size - 1);
        assert_eq!(why(read(stride(-1), 3, usize::MAX)), narrow);
    }

    /// Structs that grow: of an older producer's, what it has not got is nothing.
    #[test]
    fn an_element_is_read_as_far_as_its_producer_knows_it() {
        let mut file: abi::SkillFile = zeroed();
        file.size_bytes = 7;
        let read = |struct_size: usize, stride: usize| {
            let mut file = file;
            file.struct_size = u32::try_from(struct_size).unwrap();
            let list = abi::List {
                ptr: std::ptr::addr_of!(file).cast(),
                len: 1,
                stride: u32::try_from(stride).unwrap(),
            };
            // SAFETY: one element, which lives and has as many bytes as its stride says.
            let read = unsafe { Reader::new(usize::MAX).items::<abi::SkillFile>(list, "l", 1) };
            read.map(|files| files[0].size_bytes)
        };
        let size = size_of::<abi::SkillFile>();
        assert_eq!(read(size, size), Ok(7));
        assert_eq!(read(size - 8, size), Ok(0));
        // It says more of itself than there is room for.
        assert_eq!(read(size, size - 8), Ok(0));
        assert_eq!(read(SMALLEST, SMALLEST), Ok(0));
        let no_size = "which no struct of the contract has: set it to sizeof";
        // The last one ends in the middle of the field.
        for odd in [SMALLEST - 1, SMALLEST + 1, size - 4] {
            assert_eq!(
                why(read(odd, size)),
                format!("l: element 0: struct_size is {odd}, {no_size}")
            );
        }
        let narrow = "l: stride 7 is smaller than an element";
        assert_eq!(why(read(size, SMALLEST - 1)), narrow);
        let odd = format!(
            "l: stride {} is not the size of an element: set it to sizeof",
            size - 4
        );
        assert_eq!(why(read(size, size - 4)), odd);
    }

    /// Half a pointer is a wrong one.
    #[test]
    fn a_struct_does_not_end_in_the_middle_of_a_field() {
        let text = abi::Str::new("why");
        let read = |struct_size: usize| {
            let mut error: abi::Error = zeroed();
            error.message = text;
            error.struct_size = u32::try_from(struct_size).unwrap();
            // SAFETY: a struct that lives, and says no more than it has.
            unsafe { prefix(std::ptr::addr_of!(error), "e") }.map(|e| e.message)
        };
        let at = abi::offset_of!(abi::Error, message);
        let whole = at + size_of::<abi::Str>();
        for (size, is_there) in [(SMALLEST, false), (at, false), (whole, true)] {
            let read = read(size).unwrap();
            let expected = if is_there { text } else { abi::Str::EMPTY };
            assert_eq!((read.ptr, read.len), (expected.ptr, expected.len), "{size}");
        }
        for odd in [SMALLEST - 1, at + 1, at + 4, whole - 1, whole + 4] {
            assert_eq!(
                why(read(odd)),
                format!("e: struct_size is {odd}, which no struct of the contract has: set it to sizeof")
            );
        }
    }
}
