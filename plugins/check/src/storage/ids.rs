//! Ids of blobs: who has seen some, and those of an earlier life, can guess no other.

use std::collections::HashSet;

use skillgate_plugin_sdk::abi;

use super::TENANT;
use crate::bench::{Bench, Done, demand, failed};
use crate::raw::Kind;

/// Ids of one life that are looked at.
const IDS: usize = 64;
/// And of the next one: a generator that begins anew gives its first numbers first.
const IDS_OF_NEXT: usize = 8;
/// Of the 128: so few ids do not show every value that a letter can have.
const BITS_MIN: f64 = 96.0;

pub(crate) fn ids(bench: &Bench) -> Done {
    let ids = ids_of_a_life(bench, "a", IDS)?;
    let bits = bits_that_differ(&ids);
    demand(bits >= BITS_MIN, || {
        let shown = ids.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
        format!(
            "{IDS} blobs have ids that differ from one another in {bits:.0} bits, and at least 128 have to be random: {shown}, ..."
        )
    })?;
    let mut known: HashSet<_> = ids.into_iter().collect();
    for id in ids_of_a_life(bench, "b", IDS_OF_NEXT)? {
        if !known.insert(id.clone()) {
            return Err(failed(format!(
                "the id {id} was given a second time, in another life of the plugin"
            )));
        }
    }
    Ok(())
}

/// In a process of its own, with nothing of an earlier one: what is not random is the same there. All blobs are alike,
/// so that an id cannot come from what is in them.
fn ids_of_a_life(bench: &Bench, instance: &str, count: usize) -> Done<Vec<String>> {
    let plugin = bench.open_apart(Kind::Storage)?;
    let store = bench.storage_of(&plugin, instance)?;
    store.needs(abi::ST_BLOBS, "blobs")?;
    let ids = (0..count).map(|_| Ok(store.blob(TENANT, &[b"alike"])?.id));
    let ids = ids.collect::<Done<Vec<_>>>()?;
    let mut destroyed = store.instance.destroyed();
    drop(store);
    bench.until_destroyed(destroyed.wait())?;
    Ok(ids)
}

/// At most so many bits of an id are not the same in all of them: each letter has those that tell its values apart. It
/// does not matter which of the letters an id may have are used, and what is the same in all is no fault.
fn bits_that_differ(ids: &[String]) -> f64 {
    let longest = ids.iter().map(String::len).max().unwrap_or(0);
    let values = |at: usize| {
        let letters = ids.iter().map(|id| id.as_bytes().get(at));
        letters.collect::<HashSet<_>>().len()
    };
    (0..longest)
        .map(|at| f64::from(u32::try_from(values(at)).unwrap_or(u32::MAX)).log2())
        .sum()
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// 128 bits that are as good as random, the same in every run of the test.
    fn random(number: usize) -> [u8; 16] {
        let digest = Sha256::digest(number.to_le_bytes());
        digest[..16].try_into().unwrap()
    }

    fn bits(id: impl Fn(usize) -> String) -> f64 {
        bits_that_differ(&(0..IDS).map(id).collect::<Vec<_>>())
    }

    /// Some of those that an id may have.
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

    /// With letters of so many bits.
    fn written(number: usize, bits: u32) -> String {
        let mut rest = u128::from_le_bytes(random(number));
        let letters = (0..128_u32.div_ceil(bits)).map(|_| {
            let letter = (rest % (1 << bits)) as usize;
            rest >>= bits;
            char::from(LETTERS[letter])
        });
        format!("blob:{}", letters.collect::<String>())
    }

    #[test]
    fn random_ids_are_taken_with_any_of_the_letters_and_beside_whatever_else() {
        for alphabet in 1..=6 {
            let seen = bits(|number| written(number, alphabet));
            assert!(seen > BITS_MIN + 10.0, "{alphabet}: {seen}");
        }
        let with_more = |number| format!("blob:eu-1.{number:08}.{}", written(number, 4));
        assert!(bits(with_more) > BITS_MIN);
        // As long as their number is.
        let decimal = |number| format!("blob:{}", u128::from_le_bytes(random(number)));
        assert!(bits(decimal) > BITS_MIN);
    }

    #[test]
    fn ids_that_follow_from_others_are_seen() {
        let counted = |number| format!("blob:{number:032x}");
        let behind_a_random_word = |number| format!("{}-{number}", written(0, 4));
        // A clock of 100 ns whose every call is another while apart, and a machine.
        let of_time = |number: usize| format!("blob:{:016x}-c0ffee", number * number * 9_999_991);
        // Too few are random.
        let of_64_bits = |number| written(number, 4)[..21].to_owned();
        let all: [&dyn Fn(usize) -> String; 4] =
            [&counted, &behind_a_random_word, &of_time, &of_64_bits];
        for ids in all {
            let seen = bits(ids);
            assert!(seen < BITS_MIN, "{}: {seen}", ids(7));
        }
        assert!(bits(|_| "blob:always".to_owned()).abs() < 0.1);
    }
}
