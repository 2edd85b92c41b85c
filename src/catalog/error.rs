//! What can go wrong with a skill.

use skillgate_plugin_sdk::{abi, model};
use skillgate_skill::{NameError, SkillName};

use crate::json::CUT;

/// What can go wrong with a skill.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Missing, hidden or another tenant's: the same words for all.
    #[error(
        "there is no skill {name:?}{}; list_skills shows what there is",
        instead(name)
    )]
    SkillNotFound {
        /// As asked for, cut.
        name: String,
    },
    /// The skill is there, this version is not.
    #[error("skill {name} has no version {version:?}; its latest is {latest}")]
    VersionNotFound {
        /// Which.
        name: String,
        /// As asked for, cut.
        version: String,
        /// What there is.
        latest: String,
    },
    /// No such file in the skill.
    #[error("skill {name} {version} has no file {path:?}; it has {files}")]
    FileNotFound {
        /// Which.
        name: String,
        /// In which version.
        version: String,
        /// As asked for.
        path: String,
        /// A list of what there is.
        files: String,
    },
    /// A path that points out of the skill.
    #[error("{why}; a path stays inside the skill's directory")]
    PathEscape {
        /// Which path, and how.
        why: String,
    },
    /// Not a cursor of this listing.
    #[error(
        "cursor is not one of this listing; give the same namespace as for the page that it came with, or begin again without a cursor"
    )]
    CursorInvalid,
    /// Not Python.
    #[error("{message}")]
    LanguageUnsupported {
        /// Which, and which is.
        message: String,
    },
    /// A parameter that does not fit.
    #[error("{message}")]
    Invalid {
        /// JSON pointer into `params`.
        pointer: String,
        /// What was wrong.
        message: String,
    },
    /// The version is taken by other content, or the name by the operator.
    #[error("{message}")]
    AlreadyExists {
        /// What is taken, and what to do.
        message: String,
    },
    /// Over a limit.
    #[error("{message}")]
    TooLarge {
        /// Which.
        message: String,
    },
    /// The store takes none (`SKG_E_UNIMPLEMENTED` of `skill_put`).
    #[error(
        "the skill store of this gateway is read-only: nothing can be published here; run_code runs code without publishing it"
    )]
    ReadOnly,
    /// The store does not say that it has any (`SKG_ST_SKILLS`).
    #[error(
        "the store of this gateway keeps no skills: nothing can be published here; run_code runs code without publishing it, and \
         list_skills shows the operator's skills"
    )]
    NoSkills,
    /// A stored skill that cannot be read.
    #[error("stored skill {name} {version} is broken: {why}")]
    Broken {
        /// Which.
        name: String,
        /// In which version.
        version: String,
        /// How.
        why: String,
    },
    /// There is another store since the call was decided, and it has something else there.
    #[error(
        "the skill store was exchanged while this call waited, and {name} {version} is not the same in the new one: nothing was done, call again"
    )]
    Replaced {
        /// Which.
        name: String,
        /// In which version.
        version: String,
    },
    /// The store failed.
    #[error("skill store failed")]
    Store(#[source] model::Error),
}

impl Error {
    /// What is stored of one skill cannot be read, or is not there, which says nothing about another. `is_ours`: the store is the
    /// bundled one, of which it is known what it says of a single file.
    pub(super) fn is_of_one_skill(&self, is_ours: bool) -> bool {
        match self {
            Error::Broken { .. }
            | Error::Invalid { .. }
            | Error::SkillNotFound { .. }
            | Error::VersionNotFound { .. } => true,
            Error::Store(error) => match error.code {
                abi::E_CORRUPT | abi::E_NOT_FOUND => true,
                // A file that the gateway may not read, a directory in its place, one that is too large. A vendor's may mean the
                // whole store by these, of which a list without skills would be a wrong answer.
                abi::E_PERMISSION | abi::E_INVALID_ARGUMENT | abi::E_OUT_OF_RANGE => is_ours,
                _ => false,
            },
            _ => false,
        }
    }
}

/// What to write instead of what cannot be a skill's name; of one that can, nothing. Of a name and a version, which
/// `mount_skills` takes together, and nothing else does: how to say them.
fn instead(name: &str) -> String {
    if let Some((name, version)) = name.split_once('@') {
        return format!(
            ": a version is a parameter of its own, name {name:?} and version {version:?}"
        );
    }
    match SkillName::parse(name) {
        Err(NameError::BadCharacter(_, wrong)) if wrong != CUT => format!(
            ": no name has the character {wrong:?}, only a-z, 0-9, `_`, `-` and dots between segments"
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn a_name_with_a_version_is_told_where_the_version_goes() {
        let said = |name: &str| Error::SkillNotFound { name: name.into() }.to_string();
        let plain = "there is no skill \"csv.stats\"; list_skills shows what there is";
        assert_eq!(said("csv.stats"), plain);
        assert_eq!(
            said("csv.stats@0.1.0"),
            "there is no skill \"csv.stats@0.1.0\": a version is a parameter of its own, name \"csv.stats\" and version \"0.1.0\"; list_skills shows what there is"
        );
    }

    #[test]
    fn what_cannot_be_a_name_is_told_why() {
        let said = |name: &str| Error::SkillNotFound { name: name.into() }.to_string();
        for (name, wrong) in [
            ("Hello.World", "'H'"),
            ("hello world", "' '"),
            ("a/b", "'/'"),
        ] {
            let why = format!(": no name has the character {wrong}, only a-z, 0-9,");
            assert!(said(name).contains(&why), "{}", said(name));
        }
        // What was cut may be one.
        let cut = format!("{}…", "a".repeat(64));
        for name in ["hello_world", "a.-b", "", &cut] {
            let plain = format!("there is no skill {name:?}; list_skills shows what there is");
            assert_eq!(said(name), plain);
        }
    }
}
