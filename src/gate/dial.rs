//! From a granted name to a connection: one question, every answer vetted, the vetted address dialled.

use std::cell::LazyCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use ipnet::IpNet;
use rustix::io::Errno;
use tokio::net::TcpStream;

use super::Run;
use super::address::{Unfit, vet};
use super::refusal::Refusal;
use super::routes::Routes;
use super::target::Target;

/// Addresses of one host that are looked at without a pause: whoever answers for the name says how many there are, and others wait
/// for this thread.
const VETTED_AT_ONCE: usize = 64;
/// Addresses of one host that are tried.
const DIALS_MAX: usize = 8;
/// Of these, at once: each has a socket of the gateway's, of which a host that never answers is to take no more.
const DIALS_AT_ONCE_MAX: usize = 2;
/// How long an address is waited for before the next is tried beside it (RFC 8305, 5).
const NEXT_DIAL: Duration = Duration::from_millis(250);

/// Connects, within `connect_timeout` for the name and the connection together.
pub(super) async fn dial(run: &Run, target: &Target) -> Result<(TcpStream, SocketAddr), Refusal> {
    tokio::time::timeout(run.gate.settings.connect_timeout, dial_now(run, target))
        .await
        .unwrap_or_else(|_| {
            // What was waited for is not known any more: a turn to look the name up, the name, or its addresses.
            if run.tells_a_failure() {
                let grant = run.grant();
                let (run_id, host) = (&grant.run_id, grant.plain(target.host()));
                tracing::warn!(run_id, %host, "a granted host was not reached in time (gate.connect_timeout_ms): its addresses, its name, or a turn to look that up");
            }
            Err(Refusal::Timeout(target.clone()))
        })
}

async fn dial_now(run: &Run, target: &Target) -> Result<(TcpStream, SocketAddr), Refusal> {
    let settings = &run.gate.settings;
    // Nobody closes it: a run that is over has its tasks ended.
    let turn = run.lookups.clone().acquire_owned().await;
    let turn = turn.map_err(|_| Refusal::Busy)?;
    let addresses = run
        .gate
        .resolver
        .resolve(target.host(), &run.grant().tenant, turn)
        .await
        .map_err(|error| {
            failed(run, target, None, &error);
            if is_out_of_files(&error) {
                Refusal::Busy
            } else {
                Refusal::NoSuchHost(target.clone())
            }
        })?;
    let grant = run.grant();
    if let Err((address, unfit)) = vetted(&addresses, &settings.allow_private, grant.deny()).await {
        if run.tells_a_failure() {
            tracing::warn!(
                run_id = grant.run_id,
                host = %grant.plain(target.host()),
                %address,
                ?unfit,
                "a granted name leads to an address that is not dialled"
            );
        }
        return Err(match unfit {
            Unfit::Unknown(Errno::MFILE | Errno::NFILE) => Refusal::Busy,
            _ => Refusal::Address(target.clone()),
        });
    }
    let addresses = by_turns(&addresses);
    let patience = patience(settings.connect_timeout, addresses.len());
    first(addresses, Refusal::NoSuchHost(target.clone()), |address| {
        let address = SocketAddr::new(address, target.port());
        async move {
            match connect(address, patience).await {
                Ok(stream) => Ok((stream, address)),
                Err(error) => {
                    failed(run, target, Some(address), &error);
                    Err(if is_out_of_files(&error) {
                        Refusal::Busy
                    } else {
                        Refusal::Unreachable(target.clone())
                    })
                }
            }
        }
    })
    .await
}

/// That all may be dialled. One bad answer spoils all: a name that leads inside now and then is not to be trusted at other times.
async fn vetted(
    addresses: &[IpAddr],
    allow: &[IpNet],
    deny: &[IpNet],
) -> Result<(), (IpAddr, Unfit)> {
    for some in addresses.chunks(VETTED_AT_ONCE) {
        all_fit(some, allow, deny)?;
        if some.len() == VETTED_AT_ONCE {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

fn all_fit(addresses: &[IpAddr], allow: &[IpNet], deny: &[IpNet]) -> Result<(), (IpAddr, Unfit)> {
    let routes = LazyCell::new(Routes::open);
    let is_own = |address| match &*routes {
        Ok(routes) => routes.lead_here(address),
        Err(error) => Err(*error),
    };
    addresses
        .iter()
        .try_for_each(|at| vet(is_own, *at, allow, deny).map_err(|unfit| (*at, unfit)))
}

/// Those that are tried: the two families by turns, each in the resolver's order. One that leads nowhere, as IPv6 does on many
/// a host, holds up the other by one address.
fn by_turns(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let begins = addresses.first().is_some_and(IpAddr::is_ipv6);
    let (one, other): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.iter().partition(|it| it.is_ipv6() == begins);
    (0..addresses.len())
        .flat_map(|turn| [one.get(turn), other.get(turn)])
        .flatten()
        .take(DIALS_MAX)
        .copied()
        .collect()
}

/// For each of so many addresses, so that all have their turn within the whole time.
fn patience(whole: Duration, addresses: usize) -> Duration {
    whole * DIALS_AT_ONCE_MAX as u32 / addresses.max(DIALS_AT_ONCE_MAX) as u32
}

/// The first of these to answer. One is dialled when another has failed, or has not answered for a moment; who is late is let go.
/// Beside one that does not answer the other family has its turn, as long as it has addresses.
async fn first<T, F: Future<Output = Result<T, Refusal>>>(
    mut waiting: Vec<IpAddr>,
    without_any: Refusal,
    dial: impl Fn(IpAddr) -> F,
) -> Result<T, Refusal> {
    let mut refusal = without_any;
    let mut dials = FuturesUnordered::new();
    let mut under_way: Vec<IpAddr> = Vec::new();
    loop {
        let is_other = |it: &IpAddr| under_way.iter().all(|at| at.is_ipv6() != it.is_ipv6());
        let next = waiting.iter().position(is_other).unwrap_or(0);
        if next < waiting.len() {
            let address = waiting.remove(next);
            under_way.push(address);
            let dialled = dial(address);
            dials.push(async move { (address, dialled.await) });
        }
        let is_next_wanted = !waiting.is_empty() && dials.len() < DIALS_AT_ONCE_MAX;
        tokio::select! {
            ended = dials.next() => {
                let Some((address, outcome)) = ended else {
                    return Err(refusal);
                };
                under_way.retain(|it| *it != address);
                match outcome {
                    Ok(dialled) => return Ok(dialled),
                    // That passes, whatever the others say.
                    Err(_) if matches!(refusal, Refusal::Busy) => {}
                    Err(why) => refusal = why,
                }
            }
            () = tokio::time::sleep(NEXT_DIAL), if is_next_wanted => {}
        }
    }
}

async fn connect(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(patience, TcpStream::connect(address)).await??;
    // A relay must not hold back the last piece of a message. A socket that refuses is slower, no more.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// The gateway's own trouble, which says nothing of a host.
fn is_out_of_files(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

/// The operator's part: a run is told of no address, and nothing of the gateway's host.
fn failed(run: &Run, target: &Target, address: Option<SocketAddr>, error: &io::Error) {
    if !run.tells_a_failure() {
        return;
    }
    let grant = run.grant();
    let (run_id, host) = (&grant.run_id, grant.plain(target.host()));
    match address {
        Some(address) => {
            tracing::warn!(run_id, %host, %address, %error, "a granted host cannot be reached");
        }
        None => tracing::warn!(run_id, %host, %error, "a granted name cannot be resolved"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures_util::FutureExt as _;
    use skillgate_skill::network::Scheme;
    use tokio::time::Instant;

    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn others_have_a_turn_while_many_addresses_are_looked_at() {
        let vetted = |count| {
            let all = vec!["1.1.1.1".parse().unwrap(); count];
            vetted(&all, &[], &[]).now_or_never()
        };
        assert_eq!(vetted(0), Some(Ok(())));
        assert_eq!(vetted(VETTED_AT_ONCE - 1), Some(Ok(())));
        assert_eq!(vetted(VETTED_AT_ONCE), None);
        // All are looked at.
        let mut all = vec!["1.1.1.1".parse().unwrap(); 3 * VETTED_AT_ONCE];
        all.push("127.0.0.2".parse().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let said = runtime.block_on(super::vetted(&all, &[], &[]));
        assert_eq!(said, Err((all[all.len() - 1], Unfit::NotPublic)));
    }

    #[test]
    fn families_take_turns() {
        let check = |given: &[&str], expected: &[&str]| {
            assert_eq!(by_turns(&ips(given)), ips(expected), "{given:?}");
        };
        check(&[], &[]);
        check(&["::1", "::2", "1.1.1.1"], &["::1", "1.1.1.1", "::2"]);
        check(
            &["1.1.1.1", "1.1.1.2", "::1"],
            &["1.1.1.1", "::1", "1.1.1.2"],
        );
        check(&["::2", "::1"], &["::2", "::1"]);
        // The later family is among those that are tried.
        let v6 = [
            "::1", "::2", "::3", "::4", "::5", "::6", "::7", "::8", "::9",
        ];
        let v4 = ["1.1.1.1", "1.1.1.2"];
        check(
            &[&v6[..], &v4[..]].concat(),
            &[
                "::1", "1.1.1.1", "::2", "1.1.1.2", "::3", "::4", "::5", "::6",
            ],
        );
    }

    #[test]
    fn all_have_their_turn_in_time() {
        let whole = Duration::from_secs(8);
        for (addresses, each) in [(0, 8), (1, 8), (2, 8), (4, 4), (8, 2)] {
            assert_eq!(patience(whole, addresses), Duration::from_secs(each));
        }
    }

    /// Dials addresses of which the last byte says what comes of them; what came of all, what was dialled, and how long it took.
    async fn dialled(texts: &[&str]) -> (Result<IpAddr, Refusal>, Vec<u8>, Duration) {
        let (begun, dialled) = (Instant::now(), RefCell::new(Vec::new()));
        let under_way = RefCell::new(0);
        let target = Target::parse(Scheme::Https, "a.example").unwrap();
        let none = Refusal::NoSuchHost(target.clone());
        let found = first(ips(texts), none, |ip| {
            let last = match ip {
                IpAddr::V4(ip) => ip.octets()[3],
                IpAddr::V6(ip) => ip.octets()[15],
            };
            dialled.borrow_mut().push(last);
            *under_way.borrow_mut() += 1;
            assert!(*under_way.borrow() <= DIALS_AT_ONCE_MAX);
            let (under_way, target) = (&under_way, target.clone());
            async move {
                let said = match last {
                    0 => std::future::pending().await,
                    1 => Ok(ip),
                    2 => Err(Refusal::Busy),
                    3 => Err(Refusal::Unreachable(target)),
                    ms => {
                        tokio::time::sleep(Duration::from_millis(ms.into())).await;
                        Err(Refusal::Unreachable(target))
                    }
                };
                *under_way.borrow_mut() -= 1;
                said
            }
        });
        let found = tokio::time::timeout(Duration::from_secs(60), found).await;
        let found = found.expect("it comes to an end");
        (found, dialled.into_inner(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_does_not_answer_holds_up_the_next_for_a_moment() {
        let (found, tried, took) = dialled(&["9.9.9.0", "9.9.9.1", "9.9.9.1"]).await;
        assert_eq!((found.unwrap(), tried), (ips(&["9.9.9.1"])[0], vec![0, 1]));
        assert_eq!(took, NEXT_DIAL);
        // One that has failed is waited for no longer.
        let (found, tried, took) = dialled(&["9.9.9.3", "9.9.9.100", "9.9.9.1"]).await;
        assert_eq!((found.is_ok(), tried), (true, vec![3, 100, 1]));
        assert_eq!(took, Duration::from_millis(100));
        // The third waits for the second's end.
        let (found, _, took) = dialled(&["9.9.9.0", "9.9.9.200", "9.9.9.1"]).await;
        assert!(found.is_ok());
        assert_eq!(took, NEXT_DIAL + Duration::from_millis(200));
        // However many of a family lead nowhere.
        let dead = ["2001:db8::", "9.9.9.3", "2001:db8::100", "9.9.9.1"];
        let (found, tried, took) = dialled(&dead).await;
        assert_eq!(
            (found.is_ok(), tried, took),
            (true, vec![0, 3, 1], NEXT_DIAL)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_where_none_answers() {
        let (found, ..) = dialled(&[]).await;
        assert!(matches!(found, Err(Refusal::NoSuchHost(_))), "{found:?}");
        let (found, ..) = dialled(&["9.9.9.3", "9.9.9.100"]).await;
        assert!(matches!(found, Err(Refusal::Unreachable(_))), "{found:?}");
        let (found, tried, _) = dialled(&["9.9.9.2", "9.9.9.3"]).await;
        assert!(matches!(found, Err(Refusal::Busy)), "{found:?}");
        assert_eq!(tried, [2, 3]);
    }
}
