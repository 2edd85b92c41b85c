//! What blobs and files hold, in JSON: text, or bytes as base64 (REQUIREMENTS R11).

use base64::DecodeError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error as _};

use super::{Error, named};
use crate::rpc::aside;

/// Absent: text.
#[derive(Debug, Clone, Copy)]
pub(super) enum Encoding {
    Base64,
}

impl<'de> Deserialize<'de> for Encoding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name == "base64" {
            return Ok(Encoding::Base64);
        }
        // Most who name another mean text: told of base64 alone they would say that of their text.
        let short: String = name.chars().take(NAME_CHARS_MAX).collect();
        Err(D::Error::custom(format!(
            "{short:?} is not taken: leave encoding out where content is text, or use \"base64\""
        )))
    }
}

/// Of a name that is none, in a message.
const NAME_CHARS_MAX: usize = 40;

pub(super) fn decode(
    content: String,
    encoding: Option<Encoding>,
    pointer: &str,
) -> Result<Vec<u8>, Error> {
    match encoding {
        None => Ok(content.into_bytes()),
        Some(Encoding::Base64) => aside(content.len(), || BASE64.decode(content))
            .map_err(|error| Error::params(pointer, not_base64(pointer, error))),
    }
}

fn not_base64(pointer: &str, error: DecodeError) -> String {
    let why = match error {
        DecodeError::InvalidByte(at, byte) => {
            format!("{:?} at {at}", char::from(byte))
        }
        other => other.to_string(),
    };
    format!(
        "{} is not base64 ({why}): it is A-Z a-z 0-9 + /, with = to a multiple of 4, in one line and without \"data:\" before it; \
         for text leave encoding out",
        named(pointer)
    )
}

/// Content on its way out: as text when it is, else as base64.
#[derive(Debug, Serialize)]
pub(super) struct Content {
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        aside(bytes.len(), || match String::from_utf8(bytes) {
            Ok(content) => Content {
                content,
                encoding: None,
            },
            Err(error) => Content {
                content: BASE64.encode(error.as_bytes()),
                encoding: Some("base64"),
            },
        })
    }
}
