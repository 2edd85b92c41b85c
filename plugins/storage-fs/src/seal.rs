//! `meta.json` of a skill or a blob: `{"check":"<SHA-256 of the value of meta>","meta":{...}}`. A flipped bit in it is found
//! when it is read, and says "corrupt" instead of a wrong size, type or owner.

use std::os::fd::AsFd;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::beneath;
use crate::fault::{Fault, Result};

/// The name of the file, in the directory of what it is about.
pub(crate) const META_FILE: &str = "meta.json";

/// A manifest and the list of a skill's files are far below this.
const MAX_META_BYTES: u64 = 8 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    check: String,
    #[serde(borrow)]
    meta: &'a RawValue,
}

pub(crate) fn seal(meta: &impl Serialize) -> Result<Vec<u8>> {
    let unwritable =
        |error: serde_json::Error| Fault::Invalid(format!("cannot write it as json: {error}"));
    let raw = serde_json::value::to_raw_value(meta).map_err(unwritable)?;
    let check = digest(raw.get());
    let bytes = serde_json::to_vec(&Sealed { check, meta: &raw }).map_err(unwritable)?;
    if bytes.len() as u64 > MAX_META_BYTES {
        return Err(Fault::OutOfRange(format!(
            "what is to be stored about it takes {} bytes, more than {MAX_META_BYTES}",
            bytes.len()
        )));
    }
    Ok(bytes)
}

/// Reads `<dir>/meta.json` below `root`.
pub(crate) fn read<T: DeserializeOwned>(root: impl AsFd, dir: &str) -> Result<T> {
    read_sized(root, dir).map(|(meta, _)| meta)
}

/// The same, with the bytes of the file.
pub(crate) fn read_sized<T: DeserializeOwned>(root: impl AsFd, dir: &str) -> Result<(T, u64)> {
    let path = format!("{dir}/{META_FILE}");
    let bytes = beneath::read_file(root, &path, MAX_META_BYTES)?;
    let meta = open(&bytes).map_err(|why| Fault::Corrupt(format!("{path}: {why}")))?;
    Ok((meta, bytes.len() as u64))
}

fn open<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let sealed: Sealed<'_> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if digest(sealed.meta.get()) != sealed.check {
        return Err("its content does not match its check sum".to_owned());
    }
    serde_json::from_str(sealed.meta.get()).map_err(|error| error.to_string())
}

fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found() {
        let value = vec!["text/plain".to_owned(), "42".to_owned()];
        let good = seal(&value).unwrap();
        assert_eq!(open::<Vec<String>>(&good), Ok(value));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open::<Vec<String>>(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn what_is_too_large_to_be_read_is_not_written() {
        let around = seal(&"").unwrap().len();
        let largest = "x".repeat(usize::try_from(MAX_META_BYTES).unwrap() - around);
        let bytes = seal(&largest).unwrap();
        assert_eq!(bytes.len() as u64, MAX_META_BYTES);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(META_FILE), bytes).unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        assert_eq!(read::<String>(root, ".").unwrap(), largest);
        let more = seal(&(largest + "x"));
        assert!(matches!(more, Err(Fault::OutOfRange(_))));
    }
}
