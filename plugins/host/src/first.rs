//! The structs that a plugin hands over, each at least as long as in the first version of the contract. A shorter one is what its maker
//! forgot to set to sizeof: of what is missing there would else be said that it is empty, or, of a table, that every call is not
//! offered.

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::wire::{self, Grows, Malformed};

/// One that had so many bytes when the contract began, whatever it has grown to.
pub(crate) trait First: Grows {
    const BYTES: usize;
}

macro_rules! first {
    ($($t:ident $bytes:literal)+) => { $(
        impl First for abi::$t {
            const BYTES: usize = $bytes;
        }
        const _: () = assert!(size_of::<abi::$t>() >= $bytes);
    )+ };
}
first! {
    Completion 24 Error 48 BlobStat 88 RunResult 136 Health 64 Sandbox 72 SandboxFactory 16 SkillFile 48 Skill 152 SkillPage 24
    Content 40 BlobOpened 24 Storage 184 StorageFactory 16 PluginInfo 120
}

/// As [`wire::prefix`], and long enough.
///
/// # Safety
/// As there.
pub(crate) unsafe fn prefix<T: First>(p: *const T, what: &str) -> Result<T, Malformed> {
    // SAFETY: the caller's promise.
    let value = unsafe { wire::prefix(p, what) }?;
    is_whole(&value, what)?;
    Ok(value)
}

/// Of a copy of what a plugin has written, an element of a list too.
pub(crate) fn is_whole<T: First>(value: &T, what: &str) -> Result<(), Malformed> {
    // SAFETY: `Grows`: its first field is a u32, struct_size.
    let size = unsafe { (&raw const *value).cast::<u32>().read() } as usize;
    if size < T::BYTES {
        return Err(Malformed(format!(
            "{what}: struct_size is {size}, smaller than the {} of the first version",
            T::BYTES
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shorter_than_at_the_beginning_is_refused_and_what_has_grown_is_not() {
        #[repr(C)]
        struct Grown(abi::Health, u64);
        let mut grown = Grown(wire::zeroed(), 7);
        let mut look = |size| {
            grown.0.struct_size = size;
            // SAFETY: a struct with so many bytes at least.
            let read = unsafe { prefix((&raw const grown).cast::<abi::Health>(), "health") };
            read.map(drop).map_err(|Malformed(why)| why)
        };
        for size in [64, 72] {
            assert_eq!(look(size), Ok(()));
        }
        for size in [8, 16, 56] {
            let why =
                format!("health: struct_size is {size}, smaller than the 64 of the first version");
            assert_eq!(look(size), Err(why));
        }
        assert!(look(0).unwrap_err().contains("set it to sizeof"));
    }
}
