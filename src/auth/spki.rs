//! SubjectPublicKeyInfo (RFC 5280 section 4.1), as PEM files of public keys have it: RSA, P-256, P-384 and Ed25519.

use super::keys::Shape;

/// What is in one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Public<'a> {
    /// PKCS #1, as the two integers are written.
    Rsa { n: &'a [u8], e: &'a [u8] },
    /// An uncompressed point, or the 32 bytes of Ed25519.
    Point(Shape, &'a [u8]),
}

/// Everything up to the point, for keys of one length: DER has one spelling only.
const FIXED: [(Shape, usize, &[u8]); 3] = [
    // id-ecPublicKey 1.2.840.10045.2.1, prime256v1 1.2.840.10045.3.1.7 (RFC 5480 section 2.1)
    (
        Shape::P256,
        65,
        &[
            0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06,
            0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
        ],
    ),
    // secp384r1 1.3.132.0.34
    (
        Shape::P384,
        97,
        &[
            0x30, 0x76, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06,
            0x05, 0x2b, 0x81, 0x04, 0x00, 0x22, 0x03, 0x62, 0x00,
        ],
    ),
    // id-Ed25519 1.3.101.112 (RFC 8410 section 4)
    (
        Shape::Ed25519,
        32,
        &[
            0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
        ],
    ),
];

/// rsaEncryption 1.2.840.113549.1.1.1 with its null (RFC 3279 section 2.3.1).
const RSA: &[u8] = &[
    0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];

/// Reads one, whole.
pub(super) fn read(der: &[u8]) -> Result<Public<'_>, &'static str> {
    for (shape, length, prefix) in FIXED {
        if let Some(point) = der.strip_prefix(prefix)
            && point.len() == length
        {
            return Ok(Public::Point(shape, point));
        }
    }
    rsa(der).ok_or("not an RSA, P-256, P-384 or Ed25519 public key")
}

fn rsa(der: &[u8]) -> Option<Public<'_>> {
    let whole = |(value, rest): (_, &[u8])| rest.is_empty().then_some(value);
    let (algorithm, bits) = value(0x30, whole(value(0x30, der)?)?)?;
    if algorithm != RSA {
        return None;
    }
    let key = whole(value(0x03, bits)?)?.strip_prefix(&[0])?;
    let (n, e) = value(0x02, whole(value(0x30, key)?)?)?;
    let e = whole(value(0x02, e)?)?;
    Some(Public::Rsa { n, e })
}

/// The value of an element with this tag, and what follows it. Lengths of up to 64 KiB.
pub(crate) fn value(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = der.strip_prefix(&[tag])?;
    let (length, rest) = match rest {
        [short @ 0..=0x7f, rest @ ..] => (usize::from(*short), rest),
        [0x81, length, rest @ ..] => (usize::from(*length), rest),
        [0x82, high, low, rest @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        _ => return None,
    };
    rest.split_at_checked(length)
}
