//! Randomness that can be repeated.

/// SplitMix64: small, and good enough to choose moments and bytes.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// From `SKILLGATE_TEST_SEED`, else from the clock. Prints the seed.
    #[allow(
        clippy::print_stdout,
        reason = "a failure can be repeated only with its seed"
    )]
    pub(crate) fn seeded(what: &str) -> Random {
        let given = std::env::var("SKILLGATE_TEST_SEED").ok().map(|text| {
            text.parse()
                .unwrap_or_else(|_| panic!("SKILLGATE_TEST_SEED={text} is no number"))
        });
        let seed = given.unwrap_or_else(|| {
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |since| since.as_nanos() as u64)
        });
        println!("{what}: SKILLGATE_TEST_SEED={seed}");
        Random(seed)
    }

    /// Another stream, for another thread.
    pub(crate) fn fork(&mut self) -> Random {
        Random(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
