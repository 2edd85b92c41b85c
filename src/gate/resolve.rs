//! Names to addresses. The gate asks once per connection and dials what it was told, so that an answer that changes
//! (DNS rebinding) has nothing to change.
//!
//! The system's resolver is asked: it is the one that the operator has set up (name servers, DNS over TLS, split
//! horizons), and it needs no further code in the program. What it does beyond DNS is kept away: the name is asked for
//! as an absolute one, so that no search domain is tried, and /etc/hosts is read here, since the resolver finds no
//! absolute name in it.

use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use crate::slots::Slots;

/// Questions under way at the same time: each takes a thread, for as long as the name's servers let the resolver wait.
const LOOKUPS_MAX: usize = 32;
/// Longest /etc/hosts that is read, in bytes.
const HOSTS_BYTES_MAX: u64 = 4 << 20;
const HOSTS: &str = "/etc/hosts";

/// Finds the addresses of a host. Tests put their own in its place.
pub trait Resolver: fmt::Debug + Send + Sync + 'static {
    /// All addresses of `host`, which is in canonical form, for a run of this tenant. `turn` is one of the questions that the run
    /// may have under way, for as long as this one is, which may be longer than somebody waits for the answer.
    fn resolve(
        &self,
        host: &str,
        tenant: &str,
        turn: OwnedSemaphorePermit,
    ) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The system's resolver. Questions are divided between tenants as connections are: names that nobody answers for, however
/// many one tenant asks for, hold up no other's.
#[derive(Debug)]
pub struct SystemResolver {
    lookups: Arc<Slots>,
}

impl Default for SystemResolver {
    fn default() -> Self {
        SystemResolver {
            lookups: Slots::new(LOOKUPS_MAX),
        }
    }
}

impl Resolver for SystemResolver {
    fn resolve(
        &self,
        host: &str,
        tenant: &str,
        turn: OwnedSemaphorePermit,
    ) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let lookups = self.lookups.clone();
        let (host, tenant) = (host.to_owned(), tenant.to_owned());
        Box::pin(async move {
            let slot = lookups.wait(&tenant).await;
            tokio::task::spawn_blocking(move || {
                // The thread's, not those of who waits for it: a question that nobody waits for any more still runs.
                let (_slot, _turn) = (slot, turn);
                look_up(HOSTS.as_ref(), &host, |name| {
                    let found = (name, 0).to_socket_addrs()?;
                    Ok(found.map(|address| address.ip()).collect())
                })
            })
            .await
            .map_err(io::Error::other)?
        })
    }
}

/// In hosts(5), then by asking for the name with a dot at its end: so it is whole, and no domain of resolv.conf(5) is tried
/// behind it.
fn look_up(
    hosts: &Path,
    host: &str,
    ask: impl FnOnce(&str) -> io::Result<Vec<IpAddr>>,
) -> io::Result<Vec<IpAddr>> {
    let listed = in_hosts(&read_hosts(hosts)?, host);
    match listed.is_empty() {
        true => ask(&format!("{host}.")),
        false => Ok(listed),
    }
}

/// The text of hosts(5). Without the file there is DNS; one that is there and cannot be read is an error, since it may keep
/// a name away from what DNS says of it.
fn read_hosts(path: &Path) -> io::Result<Vec<u8>> {
    let about = match std::fs::metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if !about.is_file() || about.len() > HOSTS_BYTES_MAX {
        return Err(io::Error::other(format!(
            "{}: not a file of at most {HOSTS_BYTES_MAX} bytes",
            path.display()
        )));
    }
    std::fs::read(path)
}

/// The addresses that hosts(5) gives to a name. A comment in another encoding costs no line.
fn in_hosts(file: &[u8], host: &str) -> Vec<IpAddr> {
    String::from_utf8_lossy(file)
        .lines()
        .filter_map(|line| {
            let mut words = line.split('#').next()?.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words
                .any(|name| name.eq_ignore_ascii_case(host))
                .then_some(address)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::Semaphore;

    use super::*;

    fn turn(of: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        of.clone().try_acquire_owned().unwrap()
    }

    #[test]
    fn hosts_file() {
        let text = b"# caf\xe9\n127.0.0.1 localhost # x.test\n\n# 9.9.9.9 x.test\n10.0.0.1\tX.test  y.test\n::1 localhost x.test\nfe80::1%lo z.test\n10.0.0.2 x.test.evil\nx.test 1.1.1.1\n";
        let of = |host| {
            in_hosts(text, host)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(of("x.test"), ["10.0.0.1", "::1"]);
        assert_eq!(of("y.test"), ["10.0.0.1"]);
        assert!(of("z.test").is_empty() && of("test").is_empty() && of("").is_empty());
    }

    #[test]
    fn a_hosts_file_that_is_there_is_read_or_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        assert_eq!(read_hosts(&path).unwrap(), b"");
        std::fs::write(&path, "10.0.0.1 x.test\n").unwrap();
        assert_eq!(read_hosts(&path).unwrap(), b"10.0.0.1 x.test\n");
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(HOSTS_BYTES_MAX).unwrap();
        read_hosts(&path).unwrap();
        file.set_len(HOSTS_BYTES_MAX + 1).unwrap();
        for wrong in [path.as_path(), dir.path()] {
            let error = read_hosts(wrong).unwrap_err().to_string();
            let told = format!("{}: not a file of at most 4194304 bytes", wrong.display());
            assert_eq!(error, told);
        }
        // Not that it is not there: it cannot be looked for.
        read_hosts(&path.join("hosts")).unwrap_err();
    }

    #[test]
    fn what_no_file_names_is_asked_for_as_a_whole_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        std::fs::write(&path, "10.0.0.1 x.test\n").unwrap();
        let there: IpAddr = "10.0.0.1".parse().unwrap();
        let asked = look_up(&path, "x.test", |_| panic!("it is in the file"));
        assert_eq!(asked.unwrap(), [there]);
        let asked = look_up(&path, "y.test", |name| {
            assert_eq!(name, "y.test.");
            Ok(vec![there])
        });
        assert_eq!(asked.unwrap(), [there]);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let asked = look_up(&path, "x.test", |_| panic!("the file may name it"));
        asked.unwrap_err();
    }

    #[tokio::test]
    async fn the_system_knows_localhost() {
        let turns = Arc::new(Semaphore::new(1));
        let found = SystemResolver::default()
            .resolve("localhost", "a", turn(&turns))
            .await
            .unwrap();
        assert!(found.iter().all(IpAddr::is_loopback) && !found.is_empty());
    }

    /// Questions that nobody answers are a tenant's own trouble.
    #[tokio::test]
    async fn one_tenants_questions_hold_up_no_others() {
        let resolver = SystemResolver::default();
        let mut unanswered: Vec<_> = std::iter::from_fn(|| resolver.lookups.take("a")).collect();
        assert_eq!(unanswered.len(), LOOKUPS_MAX * 3 / 4);
        let turns = Arc::new(Semaphore::new(2));
        let mut own = resolver.resolve("localhost", "a", turn(&turns));
        assert!(own.as_mut().now_or_never().is_none(), "it waits");
        let other = resolver.resolve("localhost", "b", turn(&turns));
        other.await.unwrap();
        unanswered.pop();
        own.await.unwrap();
    }

    /// Else a run that gives up on names that nobody answers would ask for ever more of them.
    #[test]
    fn a_question_that_nobody_waits_for_is_under_way_until_it_is_answered() {
        let one_thread = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        one_thread.block_on(async {
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || gone.recv().unwrap_err());
            let (resolver, turns) = (SystemResolver::default(), Arc::new(Semaphore::new(1)));
            let mut asked = resolver.resolve("localhost", "a", turn(&turns));
            assert!(asked.as_mut().now_or_never().is_none(), "it waits");
            drop(asked);
            assert_eq!(turns.available_permits(), 0);
            drop(go);
            busy.await.unwrap();
            let next = turns.clone().acquire_owned().await.unwrap();
            resolver.resolve("localhost", "a", next).await.unwrap();
        });
    }
}
