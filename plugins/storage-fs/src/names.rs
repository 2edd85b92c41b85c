//! Names that become parts of a path: tenants, blobs, and names for what is being built.

use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};

use crate::fault::{Fault, Result};

/// RFC 4648 base32 in lower case: no letter needs care in a URL, a shell or a file system that ignores case.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// 26 letters of 5 bits are 130 random bits.
const ID_CHARS: usize = 26;

/// What an encoded tenant takes at most; a name in a directory may have 255 bytes.
const TENANT_CHARS_MAX: usize = 200;

/// Of a long tenant's name this much stays readable.
const TENANT_CHARS_KEPT: usize = 100;

/// 26 letters from the operating system's randomness.
pub(crate) fn random_name() -> Result<String> {
    let mut random = [0u8; ID_CHARS];
    let mut filled = 0;
    while filled < random.len() {
        match getrandom(&mut random[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Fault::os("get randomness for", "a name")(errno)),
        }
    }
    Ok(random
        .iter()
        .map(|byte| char::from(BASE32[usize::from(byte & 31)]))
        .collect())
}

/// A well-formed blob id; the text after `blob:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlobName(String);

impl BlobName {
    pub(crate) fn random() -> Result<BlobName> {
        random_name().map(BlobName)
    }

    /// `None` for what no store of this kind ever gave out.
    pub(crate) fn parse(id: &str) -> Option<BlobName> {
        let name = id.strip_prefix("blob:")?;
        let well_formed = name.len() == ID_CHARS && name.bytes().all(|b| BASE32.contains(&b));
        well_formed.then(|| BlobName(name.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn id(&self) -> String {
        format!("blob:{}", self.0)
    }

    /// The directory that keeps one directory from holding every blob of a tenant.
    pub(crate) fn prefix(&self) -> &str {
        &self.0[..2]
    }
}

/// A tenant's name as the name of a directory. Two tenants never share one:
/// - `[a-z0-9._-]` stay, every other byte and a leading dot become `%xx`, so it can be read back;
/// - what would be too long becomes its beginning, `=`, and the SHA-256 of the whole; `=` never appears otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TenantDir(String);

impl TenantDir {
    pub(crate) fn new(tenant: &str) -> Result<TenantDir> {
        if tenant.is_empty() {
            return Err(Fault::Invalid("the tenant is empty".to_owned()));
        }
        let mut dir = String::with_capacity(tenant.len());
        for (at, byte) in tenant.bytes().enumerate() {
            match byte {
                b'.' if at == 0 => dir.push_str("%2e"),
                b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => dir.push(char::from(byte)),
                _ => {
                    dir.push('%');
                    dir.push_str(&hex::encode([byte]));
                }
            }
        }
        if dir.len() > TENANT_CHARS_MAX {
            dir.truncate(TENANT_CHARS_KEPT);
            dir.push('=');
            dir.push_str(&hex::encode(Sha256::digest(tenant.as_bytes())));
        }
        Ok(TenantDir(dir))
    }

    /// As found on disk. Anything that [`TenantDir::new`] does not make is refused.
    pub(crate) fn from_entry(name: &str) -> Option<TenantDir> {
        let allowed =
            |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'%' | b'=');
        let fine = !name.is_empty() && !name.starts_with('.') && name.bytes().all(allowed);
        fine.then(|| TenantDir(name.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_never_share_a_directory() {
        let long = "x".repeat(300);
        let longer = "x".repeat(301);
        let capital = "X".repeat(70);
        let tenants = [
            "acme", "Acme", "ACME", "acme/", "../acme", "..", ".", "a.b", ".a.b", "%41cme", "a\0b",
            "ä", "a\u{308}", "%2e", "=", "x=", &long, &longer, &capital, "a b", "a%20b",
        ];
        let mut seen = std::collections::HashMap::new();
        for tenant in tenants {
            let dir = TenantDir::new(tenant).unwrap();
            let text = dir.as_str();
            assert!(text.len() <= TENANT_CHARS_MAX, "{text}");
            assert!(
                !text.starts_with('.') && !text.contains(['/', '\0']),
                "{text}"
            );
            assert_eq!(TenantDir::from_entry(text), Some(dir.clone()));
            assert_eq!(seen.insert(text.to_owned(), tenant), None, "{text} twice");
        }
        assert!(TenantDir::new("").is_err());
    }

    #[test]
    fn what_is_no_tenants_directory_is_none() {
        for bad in [
            "",
            ".",
            "..",
            ".acme",
            "Acme",
            "a b",
            "a/b",
            "a\0",
            "ä",
            "lost+found",
        ] {
            assert_eq!(TenantDir::from_entry(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn blob_ids_have_one_spelling() {
        let name = BlobName::random().unwrap();
        assert_eq!(BlobName::parse(&name.id()), Some(name.clone()));
        let good = name.as_str();
        for bad in [
            good.to_owned(),
            "blob:".to_owned(),
            "blob:../../../etc/passwd".to_owned(),
            format!("blob:{}", good.to_uppercase()),
            format!("blob:{}", &good[1..]),
            format!("blob:{good}a"),
            format!("blob:{}\0", &good[1..]),
            format!("blob:{}/", &good[1..]),
            format!("blob:{}1", &good[1..]),
            format!("Blob:{good}"),
            format!("blob:{}é", &good[2..]),
        ] {
            assert_eq!(BlobName::parse(&bad), None, "{bad:?}");
        }
    }

    #[test]
    fn random_names_use_every_letter_and_do_not_repeat() {
        let names: Vec<String> = (0..1000).map(|_| random_name().unwrap()).collect();
        let letters: std::collections::HashSet<char> =
            names.iter().flat_map(|n| n.chars()).collect();
        assert_eq!(letters.len(), 32);
        let different: std::collections::HashSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len());
    }
}
