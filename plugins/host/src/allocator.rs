//! The C library's allocator: the plugins' in this process, whatever the program's own is.

/// Has it map what is large by itself, and so give it back when it is freed (mallopt(3)). By default it raises the size from which
/// it does, up to 32 MiB, with what is freed; then as much as the largest runs ever had stays with each of its arenas.
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    {
        /// Bytes: the size that it begins with.
        const LARGE: libc::c_int = 128 << 10;
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            // SAFETY: a setting of the allocator's, which takes its lock.
            let taken = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
            if taken == 0 {
                tracing::warn!(
                    "mallopt(M_MMAP_THRESHOLD) failed: memory that large runs have used may stay with the gateway"
                );
            }
        });
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    /// Without the setting the first piece would have raised the size beyond all others, which then stay with their arena.
    #[test]
    fn what_is_large_is_mapped_by_itself() {
        super::give_memory_back();
        drop(std::hint::black_box(vec![1_u8; 30 << 20]));
        let pieces: Vec<_> = (0..64).map(|_| vec![1_u8; 1 << 20]).collect();
        std::hint::black_box(&pieces);
        // SAFETY: it reads the allocator's counts, under its lock.
        let mapped = unsafe { libc::mallinfo2() }.hblkhd;
        assert!(mapped >= 64 << 20, "{mapped} bytes");
    }
}
