//! What a skill is: names, versions, paths, manifests, front matter.
//!
//! Pure parsing: nothing here reads a file, a clock or the network. Text goes in, a type whose
//! invariants are written down comes out, or an error that names what was wrong, where, and what
//! to do. The gateway, the stores and vendors of plugins share it so that one name or path never
//! means two things.
//!
//! Order of reading: [`name`], [`version`], [`path`], [`files`] (a set of paths), [`network`],
//! [`secret`], [`python`], [`manifest`] (skill.toml), [`skill_md`] (SKILL.md), [`digest`], and
//! [`bundle`], which checks a whole skill with all of these.

#![forbid(unsafe_code)]

/// Gives a validated string type its conversions: everything goes through `parse`.
macro_rules! string_type {
    ($type:ident, $error:ty) => {
        impl $type {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl std::str::FromStr for $type {
            type Err = $error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::parse(text)
            }
        }
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(d)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

pub mod bundle;
pub mod digest;
pub mod files;
pub mod json;
pub mod manifest;
pub mod name;
pub mod network;
pub mod path;
pub mod problem;
pub mod python;
pub mod secret;
pub mod skill_md;
pub mod text;
pub mod version;

pub use bundle::{Bundle, Skill, SkillFile, assemble, code_warnings, validate};
pub use digest::{file_digest, tree_digest};
pub use files::FILES_MAX;
pub use manifest::{Kind, Manifest, ManifestError, Permissions, Runtime};
pub use name::{NameError, Namespace, SkillName, in_namespace};
pub use network::{NetworkPattern, PatternError, Scheme, canonical_host};
pub use path::{PathError, SkillPath};
pub use problem::{Code, Problem, Severity, some_of_each};
pub use python::FunctionName;
pub use secret::{SecretName, SecretNameError};
pub use skill_md::{SkillMd, SkillMdError};
pub use version::{RefError, SkillRef, Version, VersionError, latest};

/// The name of the manifest's file, at the top of a skill.
pub const SKILL_TOML: &str = "skill.toml";
/// The name of the instructions' file, at the top of a skill.
pub const SKILL_MD: &str = "SKILL.md";
