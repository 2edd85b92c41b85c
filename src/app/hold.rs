//! One program at a time makes instances under the names of a `plugins.state_dir`: two of one name would each remove what the
//! other one is writing, as the contract lets them.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::time::Instant;

use super::AppError;

const LOCK_FILE: &str = "lock";
/// More than a process's number has.
const HOLDER_BYTES_MAX: u64 = 32;
/// How often it is asked again whether the names are free.
const AGAIN: Duration = Duration::from_millis(50);

/// Takes the names, for as long as this process lives: an instance that does not end has its name until then. The kernel lets
/// go of them with the process, however that ends; no child has them, since each executes a program of its own. Waits for
/// `patience` until who has them lets go.
pub(super) async fn hold(state_dir: &Path, patience: Duration) -> Result<(), AppError> {
    let path = state_dir.join(LOCK_FILE);
    let failed = |what: &str| {
        AppError::io(format!(
            "cannot {what} {} (plugins.state_dir)",
            path.display()
        ))
    };
    let mut lock = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&path)
        .map_err(failed("open"))?;
    let until = Instant::now() + patience;
    let tried = loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                tokio::time::sleep(AGAIN).await;
            }
            tried => break tried,
        }
    };
    match tried {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(AppError::InUse {
                state_dir: state_dir.to_owned(),
                holder: holder(&lock),
            });
        }
        Err(TryLockError::Error(error)) if has_no_locks(&error) => {
            tracing::warn!(dir = %state_dir.display(), %error, "the file system of plugins.state_dir has no locks: see to it that no other gateway has this directory");
        }
        Err(TryLockError::Error(error)) => return Err(failed("lock")(error)),
    }
    // Only so that a refusal can name who holds it.
    let _unnamed = write_holder(&mut lock);
    std::mem::forget(lock);
    Ok(())
}

/// Whether another program has them now, and which. Makes nothing and takes nothing.
pub(super) fn in_use(state_dir: &Path) -> Option<String> {
    let lock = File::options()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(state_dir.join(LOCK_FILE))
        .ok()?;
    if !matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return None;
    }
    let number = holder(&lock).map_or_else(String::new, |id| format!(" (process {id})"));
    Some(format!("another skillgate{number}"))
}

fn has_no_locks(error: &std::io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOLCK | Errno::NOTSUP | Errno::NOSYS)
    )
}

fn write_holder(lock: &mut File) -> std::io::Result<()> {
    lock.set_len(0)?;
    writeln!(lock, "{}", std::process::id())
}

/// The number of the process that has it, as far as that is written.
fn holder(lock: &File) -> Option<u32> {
    let mut text = String::new();
    lock.take(HOLDER_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_state_directory_is_one_programs() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join(LOCK_FILE);
        assert!(in_use(dir.path()).is_none() && !lock.exists());
        hold(dir.path(), Duration::ZERO).await.unwrap();
        let who = format!("another skillgate (process {})", std::process::id());
        assert_eq!(in_use(dir.path()), Some(who));
        let mode = lock.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        // Another open file is as another program.
        let refused = hold(dir.path(), Duration::ZERO).await.unwrap_err();
        assert_eq!(refused.exit_code(), 4);
        let said = refused.to_string();
        for part in [
            dir.path().to_str().unwrap(),
            &format!("process {}", std::process::id()),
            "stop it, or give this one another",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // Nor is one held where the name of the lock leads elsewhere.
        let other = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(&lock, other.path().join(LOCK_FILE)).unwrap();
        let refused = hold(other.path(), Duration::ZERO).await;
        let said = refused.unwrap_err().to_string();
        assert!(said.contains("cannot open"), "{said}");
    }

    /// A `skill list` that was just on its way.
    #[tokio::test(start_paused = true)]
    async fn who_has_it_may_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let patience = Duration::from_secs(5);
        let other = File::create(dir.path().join(LOCK_FILE)).unwrap();
        other.lock().unwrap();
        hold(dir.path(), patience).await.unwrap_err();
        let mut held = std::pin::pin!(hold(dir.path(), patience));
        assert!(held.as_mut().now_or_never().is_none(), "it waits");
        other.unlock().unwrap();
        held.await.unwrap();
    }

    #[test]
    fn where_there_are_no_locks_is_known() {
        for (errno, is_without) in [
            (Errno::NOLCK, true),
            (Errno::OPNOTSUPP, true),
            (Errno::NOSYS, true),
            (Errno::IO, false),
        ] {
            assert_eq!(has_no_locks(&errno.into()), is_without, "{errno}");
        }
    }
}
