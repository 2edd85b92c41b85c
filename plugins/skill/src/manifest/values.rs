//! The values that only a manifest has: how each is checked.

use super::{DESCRIPTION_BYTES_MAX, Kind, TAG_BYTES_MAX};
use crate::path::{PathError, SkillPath};
use crate::problem::Code;
use crate::text::{is_deceptive, quoted};

/// Why a value is not what it must be; the sentence starts with the key.
pub(super) struct Wrong {
    pub(super) code: Code,
    pub(super) message: String,
    pub(super) help: Option<&'static str>,
}

impl Wrong {
    fn new(code: Code, message: impl Into<String>, help: &'static str) -> Self {
        Wrong {
            code,
            message: message.into(),
            help: Some(help),
        }
    }
}

macro_rules! wrong_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Wrong {
            fn from(e: $error) -> Self {
                Wrong { code: Code::Invalid, message: e.to_string(), help: None }
            }
        }
    )*};
}
wrong_from!(
    crate::name::NameError,
    crate::version::VersionError,
    crate::network::PatternError,
    crate::secret::SecretNameError,
    crate::python::FunctionNameError
);

pub(super) fn description(text: &str) -> Result<String, Wrong> {
    let help = "say in one line what the skill does; SKILL.md has room for more";
    if text.trim().is_empty() {
        return Err(Wrong::new(Code::Invalid, "is empty", help));
    }
    if text.len() > DESCRIPTION_BYTES_MAX {
        let message = format!(
            "has {} bytes, at most {DESCRIPTION_BYTES_MAX} are allowed",
            text.len()
        );
        return Err(Wrong::new(Code::TooLarge, message, help));
    }
    if text.contains(['\n', '\r']) {
        return Err(Wrong::new(Code::Invalid, "has more than one line", help));
    }
    visible(text).map(|()| text.to_owned())
}

fn visible(text: &str) -> Result<(), Wrong> {
    match text.chars().find(|c| is_deceptive(*c)) {
        None => Ok(()),
        Some(c) => Err(Wrong::new(
            Code::Invalid,
            format!(
                "has the character U+{:04X}, which a reader cannot see",
                u32::from(c)
            ),
            "remove control, bidirectional and zero-width characters",
        )),
    }
}

pub(super) fn tag(text: &str) -> Result<String, Wrong> {
    if text.trim().is_empty() {
        return Err(Wrong::new(Code::Invalid, "a tag is empty", "remove it"));
    }
    if text.len() > TAG_BYTES_MAX {
        let message = format!(
            "a tag has {} bytes, at most {TAG_BYTES_MAX} are allowed",
            text.len()
        );
        return Err(Wrong::new(Code::TooLarge, message, "use short tags"));
    }
    visible(text)
        .map(|()| text.to_owned())
        .map_err(|wrong| Wrong {
            message: format!("a tag {}", wrong.message),
            ..wrong
        })
}

pub(super) fn kind(text: &str) -> Result<Kind, Wrong> {
    match text {
        "action" => Ok(Kind::Action),
        "instruction" => Ok(Kind::Instruction),
        _ => Err(Wrong::new(
            Code::Invalid,
            format!("{} is neither \"action\" nor \"instruction\"", quoted(text)),
            "an action can be executed, an instruction is documentation only",
        )),
    }
}

pub(super) fn language(text: &str) -> Result<(), Wrong> {
    if text == "python" {
        return Ok(());
    }
    let message = format!("{} is not supported", quoted(text));
    Err(Wrong::new(
        Code::LanguageUnsupported,
        message,
        "write language = \"python\"",
    ))
}

pub(super) fn entrypoint(text: &str) -> Result<SkillPath, Wrong> {
    let help = "name a file of the skill, such as code/main.py";
    let path = SkillPath::parse(text).map_err(|e| {
        let code = match e {
            PathError::Escape { .. } => Code::PathEscape,
            PathError::Invalid { .. } => Code::PathInvalid,
        };
        Wrong::new(code, e.to_string(), help)
    })?;
    if path.file_name().len() > ".py".len() && path.as_str().ends_with(".py") {
        return Ok(path);
    }
    Err(Wrong::new(
        Code::Invalid,
        format!("{} is not a Python file", quoted(text)),
        help,
    ))
}
