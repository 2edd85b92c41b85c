//! The opaque `cursor` of a listing: the place after which the next page begins.
//!
//! A place, not a page number: it stays right when skills are published between two pages, and finding it costs the
//! same for every page. The check bytes are no secret, since a place gives nothing away that the caller may not list;
//! they tell a cursor that was cut, altered or made for another listing from one of ours. Whoever makes one up can name any
//! place, so a store is given only what can be the place of a skill.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sha2::{Digest, Sha256};
use skillgate_plugin_sdk::model::SkillKey;
use skillgate_skill::{Namespace, SkillName, Version};

const CHECK_BYTES: usize = 8;
const SEPARATOR: char = '\u{1f}';

/// Writes the place after `key` in the listing of this tenant and namespace.
pub(super) fn encode(key: &SkillKey, tenant: &str, namespace: &str) -> String {
    let place = [key.namespace.as_str(), &key.name, &key.version].join(&SEPARATOR.to_string());
    let mut bytes = check(&place, tenant, namespace).to_vec();
    bytes.extend_from_slice(place.as_bytes());
    BASE64.encode(bytes)
}

/// Reads it back; `None` when it is not a cursor of this listing.
pub(super) fn decode(cursor: &str, tenant: &str, namespace: &str) -> Option<SkillKey> {
    let bytes = BASE64.decode(cursor).ok()?;
    let (sum, place) = bytes.split_at_checked(CHECK_BYTES)?;
    let place = std::str::from_utf8(place).ok()?;
    if sum != check(place, tenant, namespace) {
        return None;
    }
    let mut parts = place.split(SEPARATOR).map(str::to_owned);
    let key = SkillKey {
        namespace: parts.next()?,
        name: parts.next()?,
        version: parts.next()?,
    };
    (parts.next().is_none() && is_place(&key)).then_some(key)
}

/// Whether there can be a skill of this key.
fn is_place(key: &SkillKey) -> bool {
    (key.namespace.is_empty() || Namespace::parse(&key.namespace).is_ok())
        && SkillName::parse(&key.name).is_ok()
        && Version::parse(&key.version).is_ok()
}

fn check(place: &str, tenant: &str, namespace: &str) -> [u8; CHECK_BYTES] {
    let mut digest = Sha256::new();
    for part in ["list_skills", tenant, namespace, place] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let mut sum = [0; CHECK_BYTES];
    sum.copy_from_slice(&digest.finalize()[..CHECK_BYTES]);
    sum
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};
    use skillgate_plugin_sdk::model::SkillKey;

    fn key(namespace: &str, name: &str, version: &str) -> SkillKey {
        SkillKey {
            namespace: namespace.into(),
            name: name.into(),
            version: version.into(),
        }
    }

    #[test]
    fn a_place_that_no_skill_can_have_is_no_cursor() {
        for (namespace, name, version) in [
            ("a", "a.b", "x"),
            ("a", "a.b", ""),
            ("a", "../b", "1.0.0"),
            ("a", "", "1.0.0"),
            ("A", "a.b", "1.0.0"),
            ("", "", ""),
        ] {
            let cursor = encode(&key(namespace, name, version), "t", "");
            assert_eq!(
                decode(&cursor, "t", ""),
                None,
                "{namespace} {name} {version}"
            );
        }
        let of_none = key("", "b", "1.0.0-rc.1");
        let cursor = encode(&of_none, "t", "");
        assert_eq!(decode(&cursor, "t", ""), Some(of_none));
    }

    #[test]
    fn only_its_own_listing_takes_a_cursor() {
        let key = key("acme", "acme.x", "1.0.0");
        let cursor = encode(&key, "t", "acme");
        assert_eq!(decode(&cursor, "t", "acme"), Some(key));
        assert_eq!(decode(&cursor, "u", "acme"), None, "another tenant's");
        assert_eq!(decode(&cursor, "t", ""), None, "another filter's");
        for end in 0..cursor.len() {
            assert_eq!(decode(&cursor[..end], "t", "acme"), None, "cut at {end}");
        }
        for (index, letter) in cursor.char_indices() {
            let other = if letter == 'A' { "B" } else { "A" };
            let altered = format!("{}{other}{}", &cursor[..index], &cursor[index + 1..]);
            assert_eq!(decode(&altered, "t", "acme"), None, "altered at {index}");
        }
        for junk in ["", "%%%", "null", "AAAA"] {
            assert_eq!(decode(junk, "t", "acme"), None);
        }
    }
}
