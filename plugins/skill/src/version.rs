//! Versions: SemVer 2.0.0 with one total order, and references `name@version`.

use std::cmp::Ordering;
use std::fmt;

use thiserror::Error;

use crate::name::{NameError, SkillName};
use crate::text::{one_line, quoted};

/// Longest version, in bytes. A version is a path component in stores.
pub const VERSION_BYTES_MAX: usize = 128;

/// Why a text is not a version.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VersionError {
    /// Longer than [`VERSION_BYTES_MAX`].
    #[error("has {0} bytes, at most {VERSION_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// Not SemVer 2.0.0: the text, and why.
    #[error("{0} is not a semantic version: {1}; write major.minor.patch, such as 0.1.0")]
    NotSemver(String, String),
}

/// A semantic version.
///
/// `Ord` is the order of listings: SemVer precedence, and between versions that differ only in
/// build metadata the bytes of that metadata. It is total and agrees with `Eq`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version(semver::Version);

impl Version {
    /// Parses a version: exactly SemVer 2.0.0, no `v` in front, no blanks.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        if text.len() > VERSION_BYTES_MAX {
            return Err(VersionError::TooLong(text.len()));
        }
        semver::Version::parse(text)
            .map(Version)
            .map_err(|e| VersionError::NotSemver(quoted(text), one_line(&e.to_string())))
    }

    /// Whether this is a pre-release (`1.0.0-rc.1`).
    pub fn is_prerelease(&self) -> bool {
        !self.0.pre.is_empty()
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0
            .cmp_precedence(&other.0)
            .then_with(|| self.0.build.as_str().cmp(other.0.build.as_str()))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Version {
    type Err = VersionError;
    fn from_str(text: &str) -> Result<Self, VersionError> {
        Version::parse(text)
    }
}

impl serde::Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Version {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        Version::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The version that "latest" means: the highest, a pre-release only when there is nothing else.
pub fn latest<'a>(versions: impl IntoIterator<Item = &'a Version>) -> Option<&'a Version> {
    versions.into_iter().max_by(|a, b| {
        let release = |v: &Version| !v.is_prerelease();
        release(a).cmp(&release(b)).then_with(|| a.cmp(b))
    })
}

/// Why a text is not a reference.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RefError {
    /// The part before `@`.
    #[error("skill name {0}")]
    Name(#[from] NameError),
    /// The part after `@`.
    #[error("version {0}")]
    Version(#[from] VersionError),
}

/// A skill, in its latest version or in one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkillRef {
    /// Which skill.
    pub name: SkillName,
    /// None: the latest.
    pub version: Option<Version>,
}

impl SkillRef {
    /// Parses `name` or `name@version`.
    pub fn parse(text: &str) -> Result<Self, RefError> {
        match text.split_once('@') {
            None => Ok(SkillRef {
                name: SkillName::parse(text)?,
                version: None,
            }),
            Some((name, version)) => Ok(SkillRef {
                name: SkillName::parse(name)?,
                version: Some(Version::parse(version)?),
            }),
        }
    }
}

impl fmt::Display for SkillRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            None => self.name.fmt(f),
            Some(version) => write!(f, "{}@{version}", self.name),
        }
    }
}

impl std::str::FromStr for SkillRef {
    type Err = RefError;
    fn from_str(text: &str) -> Result<Self, RefError> {
        SkillRef::parse(text)
    }
}

impl serde::Serialize for SkillRef {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for SkillRef {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        SkillRef::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    #[test]
    fn versions() {
        let longest = format!("1.0.0-{}", "a".repeat(122));
        for good in [
            "0.1.0",
            "2.3.1",
            "1.0.0-alpha.1",
            "1.0.0+build.5",
            "1.0.0-rc.1+x",
            "18446744073709551615.0.0",
            &longest,
        ] {
            assert_eq!(Version::parse(good).unwrap().to_string(), good);
        }
        let long = format!("1.0.0-{}", "a".repeat(123));
        for bad in [
            "",
            "1",
            "1.0",
            "v1.0.0",
            "1.0.0.0",
            " 1.0.0",
            "1.0.0 ",
            "01.0.0",
            "1.0.0-",
            "1.0.0+",
            "1.0.0-01",
            "1.0.0-a..b",
            "1.0.x",
            "*",
            "latest",
            "-1.0.0",
            "1.0.0-é",
            "18446744073709551616.0.0",
            "../1.0.0",
            "1.0.0/..",
            "1.0.0\0",
            &long,
        ] {
            assert!(Version::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn one_order() {
        // SemVer 2.0.0 section 11, then build metadata by its bytes.
        let ascending = [
            "0.9.9",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.0.0+10",
            "1.0.0+9",
            "1.0.0+a",
            "1.2.0",
            "1.10.0",
            "10.0.0",
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(v(a).cmp(&v(b)), i.cmp(&j), "{a} {b}");
                assert_eq!(v(a).partial_cmp(&v(b)), Some(i.cmp(&j)), "{a} {b}");
            }
        }
        assert_ne!(
            v("1.0.0+01").cmp(&v("1.0.0+1")),
            Ordering::Equal,
            "order must agree with equality"
        );
    }

    #[test]
    fn latest_prefers_releases() {
        for (versions, want) in [
            (vec!["1.0.0", "2.0.0-rc.1", "1.9.0"], Some("1.9.0")),
            (vec!["2.0.0-rc.1", "2.0.0-rc.2"], Some("2.0.0-rc.2")),
            (vec!["1.0.0+a", "1.0.0+b"], Some("1.0.0+b")),
            (vec!["9.0.0", "10.0.0"], Some("10.0.0")),
            (vec![], None),
        ] {
            let versions: Vec<Version> = versions.into_iter().map(v).collect();
            assert_eq!(latest(&versions).map(ToString::to_string).as_deref(), want);
        }
    }

    #[test]
    fn references() {
        assert_eq!(
            SkillRef::parse("a.b").unwrap(),
            SkillRef {
                name: SkillName::parse("a.b").unwrap(),
                version: None
            }
        );
        let r = SkillRef::parse("a.b@1.0.0-rc.1+x").unwrap();
        assert_eq!(
            (r.name.as_str(), r.to_string().as_str()),
            ("a.b", "a.b@1.0.0-rc.1+x")
        );
        for bad in [
            "",
            "@",
            "a@",
            "@1.0.0",
            "a@1",
            "a@latest",
            "a@1.0.0@2.0.0",
            "A@1.0.0",
            "a @1.0.0",
        ] {
            assert!(SkillRef::parse(bad).is_err(), "{bad:?}");
        }
    }
}
