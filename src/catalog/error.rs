//! What can go wrong with a skill.

use skillgate_plugin_sdk::{abi, model};

/// What can go wrong with a skill.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Missing, hidden or another tenant's: the same words for all.
    #[error(
        "there is no skill {name:?}{}; list_skills shows what there is",
        apart(name)
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
    #[error("cursor is not one of this listing; begin again without a cursor")]
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

/// What whoever writes a version behind a name should write instead: `mount_skills` takes them together, and nothing else.
fn apart(name: &str) -> String {
    name.split_once('@')
        .map_or_else(String::new, |(name, version)| {
            format!(": a version is a parameter of its own, name {name:?} and version {version:?}")
        })
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
}
