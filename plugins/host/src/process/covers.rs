//! What a later life of a plugin's process has to be able to do: at least what the first one could, by which the gateway has
//! decided.

use std::cmp::Ordering;
use std::collections::VecDeque;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::SandboxCaps;
use skillgate_plugin_sdk::wire::Malformed;

use super::start::Kind;
use crate::wire::{In, Read, Wire};

/// What a life that says `now` cannot do of what the first one said; `None`: it can do all of it. More is no harm: nobody
/// asks for it.
pub(super) fn lacks(kind: Kind, first: &[u8], now: &[u8]) -> Option<String> {
    let lacks = match kind {
        Kind::Storage => of_store(first, now),
        Kind::Sandbox => of_sandbox(first, now),
    };
    lacks.unwrap_or_else(|Malformed(why)| Some(why))
}

fn read<T: Wire>(caps: &[u8]) -> Read<T> {
    let mut nothing = VecDeque::new();
    let mut from = In::new(caps, &mut nothing);
    let caps = T::take(&mut from)?;
    from.end().map(|()| caps)
}

fn of_store(first: &[u8], now: &[u8]) -> Read<Option<String>> {
    let (first, now) = (read::<u32>(first)?, read::<u32>(now)?);
    // The one bit that takes something away.
    let forgets = now & !first & abi::ST_VOLATILE != 0;
    let lacks = bits("caps", first & !abi::ST_VOLATILE, now);
    Ok(lacks.or_else(|| forgets.then(|| "caps says SKG_ST_VOLATILE, and did not".to_owned())))
}

fn of_sandbox(first: &[u8], now: &[u8]) -> Read<Option<String>> {
    let (first, now) = (read::<SandboxCaps>(first)?, read::<SandboxCaps>(now)?);
    // All of them: what is new has to have its place here.
    let SandboxCaps {
        egress,
        max_concurrent,
        isolation,
        max_memory_bytes,
        max_timeout_ms,
        enforces,
    } = now;
    let lacks = bits("caps.egress", first.egress, egress)
        .or_else(|| bits("caps.enforces", first.enforces, enforces))
        .or_else(|| {
            let is_other = isolation != first.isolation;
            is_other.then(|| said("caps.isolation", first.isolation, isolation))
        })
        .or_else(|| {
            let (was, is) = (first.max_concurrent.into(), max_concurrent.into());
            bound("caps.max_concurrent", was, is)
        })
        .or_else(|| bound("caps.max_timeout_ms", first.max_timeout_ms, max_timeout_ms))
        .or_else(|| {
            // 0 is the least here: it cannot.
            let (was, is) = (first.max_memory_bytes, max_memory_bytes);
            (is < was).then(|| said("caps.max_memory_bytes", was, is))
        });
    Ok(lacks)
}

fn said(what: &str, was: impl std::fmt::Display, is: impl std::fmt::Display) -> String {
    format!("{what} is {is}, and was {was}")
}

fn bits(what: &str, was: u32, is: u32) -> Option<String> {
    let has_all = is & was == was;
    (!has_all).then(|| format!("{what} is {is:#x}, and was {was:#x}"))
}

/// Of a bound of which 0 is none.
fn bound(what: &str, was: u64, is: u64) -> Option<String> {
    let order = match (was, is) {
        (_, 0) => Ordering::Greater,
        (0, _) => Ordering::Less,
        _ => is.cmp(&was),
    };
    (order == Ordering::Less).then(|| said(what, was, is))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Out;

    fn bytes(caps: &impl Wire) -> Vec<u8> {
        let mut out = Out::default();
        caps.put(&mut out);
        out.bytes
    }

    const FIRST: SandboxCaps = SandboxCaps {
        egress: abi::EGRESS_CAN_DENY,
        max_concurrent: 9,
        isolation: abi::ISO_PROCESS,
        max_memory_bytes: 100,
        max_timeout_ms: 1000,
        enforces: abi::LIMIT_WALL | abi::LIMIT_MEMORY,
    };

    fn sandbox(change: impl FnOnce(&mut SandboxCaps)) -> Option<String> {
        let mut now = FIRST;
        change(&mut now);
        lacks(Kind::Sandbox, &bytes(&FIRST), &bytes(&now))
    }

    fn store(first: u32, now: u32) -> Option<String> {
        lacks(Kind::Storage, &bytes(&first), &bytes(&now))
    }

    #[test]
    fn the_same_and_more_is_enough() {
        assert_eq!(sandbox(|_| ()), None);
        let more = sandbox(|now| {
            now.egress |= abi::EGRESS_GATE_LISTENER;
            now.enforces |= abi::LIMIT_PIDS;
            now.max_concurrent = 10;
            now.max_memory_bytes = 101;
            now.max_timeout_ms = 1001;
        });
        assert_eq!(more, None);
        // Of these two it is no bound.
        let unbound = sandbox(|now| (now.max_concurrent, now.max_timeout_ms) = (0, 0));
        assert_eq!(unbound, None);
        let (first, more) = (abi::ST_SKILLS, abi::ST_SKILLS | abi::ST_BLOBS);
        assert_eq!(store(first, more), None);
        assert_eq!(store(first | abi::ST_VOLATILE, more), None);
    }

    #[test]
    fn what_is_less_is_named() {
        type Change = fn(&mut SandboxCaps);
        let less: [(Change, &str); 7] = [
            (
                |now| now.egress = abi::EGRESS_GATE_LISTENER,
                "caps.egress is 0x2, and was 0x1",
            ),
            (
                |now| now.enforces = abi::LIMIT_WALL,
                "caps.enforces is 0x1, and was 0x5",
            ),
            (
                |now| now.isolation = abi::ISO_MICROVM,
                "caps.isolation is 3, and was 1",
            ),
            (
                |now| now.max_concurrent = 8,
                "caps.max_concurrent is 8, and was 9",
            ),
            (
                |now| now.max_timeout_ms = 999,
                "caps.max_timeout_ms is 999, and was 1000",
            ),
            (
                |now| now.max_memory_bytes = 99,
                "caps.max_memory_bytes is 99, and was 100",
            ),
            (
                |now| now.max_memory_bytes = 0,
                "caps.max_memory_bytes is 0, and was 100",
            ),
        ];
        for (change, what) in less {
            assert_eq!(sandbox(change).as_deref(), Some(what));
        }
        // What had no bound has one now.
        let unbound = SandboxCaps {
            max_concurrent: 0,
            ..FIRST
        };
        let bounded = lacks(Kind::Sandbox, &bytes(&unbound), &bytes(&FIRST));
        assert_eq!(
            bounded.as_deref(),
            Some("caps.max_concurrent is 9, and was 0")
        );
        assert!(store(abi::ST_SKILLS | abi::ST_BLOBS, abi::ST_SKILLS).is_some());
        let forgets = abi::ST_SKILLS | abi::ST_VOLATILE;
        assert!(store(abi::ST_SKILLS, forgets).is_some());
        // What makes no sense.
        assert!(lacks(Kind::Storage, &bytes(&1_u32), b"").is_some());
    }
}
