//! What can go wrong below, with the value that failed inside, and the one place that gives it a code of the ABI.

use rustix::io::Errno;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::Error;

/// What every function below the trait answers.
pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

/// One variant per thing that can fail. Paths are relative to the store or the shelf, as an operator looks for them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("cannot {doing} {path:?}: {errno}")]
    Os {
        doing: &'static str,
        path: String,
        errno: Errno,
    },
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    AlreadyExists(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    OutOfRange(String),
    #[error("{0}")]
    Exhausted(String),
    /// The disk, or what may be had of it. What expires is freed once a minute, so sooner is too soon.
    #[error("{0}")]
    Full(String),
    /// What one tenant's blobs may take.
    #[error("{why}")]
    BlobsOfTenant {
        why: String,
        /// Whether those that it stores come to an end by themselves. Else nothing comes of waiting.
        expire: bool,
    },
    /// What one tenant's skills may take; those stay.
    #[error("{0}")]
    SkillsOfTenant(String),
    #[error("{0}")]
    Corrupt(String),
    #[error("{0}")]
    Precondition(String),
    #[error("{0}")]
    Unavailable(String),
    /// It will be possible, and nobody here need do anything for it.
    #[error("{0}")]
    NotYet(&'static str),
    #[error("{0}")]
    Unimplemented(&'static str),
    #[error("{0}")]
    Stale(&'static str),
}

impl Fault {
    /// For `map_err`: `Fault::os("open", path)`.
    pub(crate) fn os(doing: &'static str, path: &str) -> impl FnOnce(Errno) -> Fault {
        move |errno| Fault::Os {
            doing,
            path: path.to_owned(),
            errno,
        }
    }

    /// The thing is not there, also when a parent of it is not.
    pub(crate) fn is_missing(&self) -> bool {
        match self {
            Fault::Os { errno, .. } => matches!(*errno, Errno::NOENT | Errno::NOTDIR),
            Fault::NotFound(_) => true,
            _ => false,
        }
    }

    /// The disk takes nothing, or nothing of this size: it is full, or a quota is, or it fails.
    pub(crate) fn is_of_the_disk(&self) -> bool {
        let Fault::Os { errno, .. } = self else {
            return false;
        };
        matches!(
            *errno,
            Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS
        )
    }

    /// It says nothing about the thing: descriptors or memory have run out.
    pub(crate) fn is_shortage(&self) -> bool {
        let Fault::Os { errno, .. } = self else {
            return false;
        };
        matches!(*errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
    }

    /// Of what must be there as it was stored: the disk cannot read it, or there is something else in its place.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Fault::Os { errno, .. } => *errno == Errno::IO || self.is_missing(),
            Fault::Invalid(_) => true,
            _ => false,
        }
    }

    /// `self`, or "not found" with this text when that is what it means.
    pub(crate) fn or_not_found(self, text: impl FnOnce() -> String) -> Fault {
        if self.is_missing() {
            Fault::NotFound(text())
        } else {
            self
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        let message = fault.to_string();
        match fault {
            Fault::NotFound(_) => Error::new(abi::E_NOT_FOUND, message),
            Fault::AlreadyExists(_) => Error::new(abi::E_ALREADY_EXISTS, message),
            Fault::Invalid(_) => Error::new(abi::E_INVALID_ARGUMENT, message),
            Fault::OutOfRange(_) => Error::new(abi::E_OUT_OF_RANGE, message),
            Fault::Exhausted(_) => Error::new(abi::E_EXHAUSTED, message).retryable(RETRY_AFTER_MS),
            Fault::Full(_) => {
                Error::new(abi::E_EXHAUSTED, message).retryable(RETRY_WHEN_FULL_AFTER_MS)
            }
            Fault::BlobsOfTenant { expire: true, .. } => Error::new(abi::E_EXHAUSTED, message)
                .of_tenant()
                .retryable(RETRY_WHEN_FULL_AFTER_MS),
            Fault::BlobsOfTenant { .. } | Fault::SkillsOfTenant(_) => {
                Error::new(abi::E_EXHAUSTED, message).of_tenant()
            }
            Fault::Corrupt(_) => Error::new(abi::E_CORRUPT, message),
            Fault::Precondition(_) => Error::new(abi::E_PRECONDITION, message),
            Fault::Unavailable(_) => Error::new(abi::E_UNAVAILABLE, message),
            Fault::NotYet(_) => Error::new(abi::E_UNAVAILABLE, message).retryable(RETRY_AFTER_MS),
            Fault::Unimplemented(_) => Error::new(abi::E_UNIMPLEMENTED, message),
            Fault::Stale(_) => Error::new(abi::E_STALE, message),
            Fault::Os { errno, .. } => match errno {
                Errno::NOSPC | Errno::DQUOT => {
                    Error::new(abi::E_EXHAUSTED, message).retryable(RETRY_WHEN_FULL_AFTER_MS)
                }
                // Descriptors, memory: it may work again at once, without a restart.
                Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
                    Error::new(abi::E_EXHAUSTED, message).retryable(RETRY_AFTER_MS)
                }
                Errno::NOENT | Errno::NOTDIR => Error::new(abi::E_NOT_FOUND, message),
                Errno::ACCESS | Errno::PERM | Errno::ROFS => Error::new(abi::E_PERMISSION, message),
                _ => Error::new(abi::E_INTERNAL, message),
            },
        }
    }
}

/// Advice to the host when something has run out.
const RETRY_AFTER_MS: u32 = 1000;

/// And when that is the space for data.
const RETRY_WHEN_FULL_AFTER_MS: u32 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_has_a_code_and_advice() {
        for (errno, code, retry_after_ms) in [
            (Errno::NOSPC, abi::E_EXHAUSTED, RETRY_WHEN_FULL_AFTER_MS),
            (Errno::DQUOT, abi::E_EXHAUSTED, RETRY_WHEN_FULL_AFTER_MS),
            (Errno::MFILE, abi::E_EXHAUSTED, RETRY_AFTER_MS),
            (Errno::NFILE, abi::E_EXHAUSTED, RETRY_AFTER_MS),
            (Errno::NOMEM, abi::E_EXHAUSTED, RETRY_AFTER_MS),
            (Errno::NOENT, abi::E_NOT_FOUND, 0),
            (Errno::NOTDIR, abi::E_NOT_FOUND, 0),
            (Errno::ACCESS, abi::E_PERMISSION, 0),
            (Errno::PERM, abi::E_PERMISSION, 0),
            (Errno::ROFS, abi::E_PERMISSION, 0),
            (Errno::IO, abi::E_INTERNAL, 0),
        ] {
            let error = Error::from(Fault::os("open", "a/b")(errno));
            let retryable = retry_after_ms > 0;
            assert_eq!(
                (error.code, error.retryable, error.retry_after_ms),
                (code, retryable, retry_after_ms),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_missing_damaged_or_out_of_reach_for_now_is_told_apart() {
        let os = |errno| Fault::os("open", "a/b")(errno);
        for (fault, missing, shortage, damage) in [
            (os(Errno::NOENT), true, false, true),
            (os(Errno::NOTDIR), true, false, true),
            (Fault::NotFound(String::new()), true, false, false),
            (os(Errno::MFILE), false, true, false),
            (os(Errno::NFILE), false, true, false),
            (os(Errno::NOMEM), false, true, false),
            (os(Errno::IO), false, false, true),
            (Fault::Invalid(String::new()), false, false, true),
            (os(Errno::ACCESS), false, false, false),
            (Fault::Corrupt(String::new()), false, false, false),
        ] {
            assert_eq!(
                (fault.is_missing(), fault.is_shortage(), fault.is_damage()),
                (missing, shortage, damage),
                "{fault:?}"
            );
            assert_eq!(
                fault.is_of_the_disk(),
                matches!(
                    &fault,
                    Fault::Os {
                        errno: Errno::IO,
                        ..
                    }
                )
            );
            let or = fault.or_not_found(|| "there is none".to_owned());
            assert_eq!(matches!(or, Fault::NotFound(_)), missing);
        }
    }
}
