//! What the configuration promises of runs and a sandbox does not keep, as far as it says itself what it enforces.

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Health, SandboxCaps};

use crate::config::Runs;

/// Each in words for the operator. Of processor time nothing is promised.
pub(super) fn unkept(caps: &SandboxCaps, runs: &Runs) -> Vec<String> {
    let mut said = Vec::new();
    if caps.egress & (abi::EGRESS_CAN_DENY | abi::EGRESS_GATE_LISTENER) == 0 {
        said.push("this sandbox does not say that it keeps runs from the network: whatever policy decides, a run may reach what the sandbox reaches".to_owned());
    }
    // The contract: where the largest limit on memory is 0, it enforces none.
    let memory = match caps.max_memory_bytes {
        0 => 0,
        _ => abi::LIMIT_MEMORY,
    };
    let enforces = caps.enforces & (memory | !abi::LIMIT_MEMORY);
    let not_enforced: Vec<&str> = [
        (abi::LIMIT_WALL, "runs.max_timeout_ms"),
        (abi::LIMIT_MEMORY, "runs.memory_bytes"),
        (abi::LIMIT_PIDS, "runs.max_pids"),
        (abi::LIMIT_DISK, "runs.workspace_bytes"),
    ]
    .into_iter()
    .filter_map(|(limit, key)| (enforces & limit == 0).then_some(key))
    .collect();
    if !not_enforced.is_empty() {
        said.push(format!(
            "this sandbox does not say that it enforces {}: a run may take more, so bound it where it runs, or use a sandbox that does",
            not_enforced.join(", ")
        ));
    }
    if enforces & abi::LIMIT_NONROOT == 0 {
        said.push("this sandbox does not say that no run is root in it".to_owned());
    }
    let concurrent = u64::try_from(runs.max_concurrent).unwrap_or(u64::MAX);
    for (key, configured, most) in [
        (
            "runs.max_timeout_ms",
            runs.max_timeout_ms,
            caps.max_timeout_ms,
        ),
        (
            "runs.memory_bytes",
            runs.memory_bytes,
            caps.max_memory_bytes,
        ),
        (
            "runs.max_concurrent",
            concurrent,
            u64::from(caps.max_concurrent),
        ),
    ] {
        // 0: it names none.
        if most > 0 && configured > most {
            said.push(format!(
                "{key} is {configured}, and this sandbox takes at most {most}: write no more than that"
            ));
        }
    }
    said
}

/// A sandbox that does not keep all of it works, and something should be done about it, whatever it says of itself.
pub(super) fn with(health: Health, unkept: &[String]) -> Health {
    if unkept.is_empty() {
        return health;
    }
    let own = Some(&health.message).filter(|text| !text.is_empty());
    let message: Vec<&str> = own.into_iter().chain(unkept).map(String::as_str).collect();
    Health {
        message: message.join("; "),
        state: match health.state {
            abi::HEALTH_OK => abi::HEALTH_DEGRADED,
            other => other,
        },
        ..health
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OnDisconnect;

    const RUNS: Runs = Runs {
        default_timeout_ms: 300_000,
        max_timeout_ms: 600_000,
        max_concurrent: 64,
        max_concurrent_per_tenant: 0,
        max_queued: 256,
        memory_bytes: 512 << 20,
        max_pids: 64,
        workspace_bytes: 256 << 20,
        workspace_inodes: 16384,
        max_output_blobs: 1000,
        on_disconnect: OnDisconnect::Kill,
    };
    /// All that is asked of a sandbox; processor time is not.
    const ALL: SandboxCaps = SandboxCaps {
        egress: abi::EGRESS_CAN_DENY,
        max_concurrent: 64,
        isolation: abi::ISO_CONTAINER,
        max_memory_bytes: 512 << 20,
        max_timeout_ms: 600_000,
        enforces: abi::LIMIT_WALL
            | abi::LIMIT_MEMORY
            | abi::LIMIT_PIDS
            | abi::LIMIT_DISK
            | abi::LIMIT_NONROOT,
    };

    #[test]
    fn what_a_sandbox_does_not_enforce_is_said() {
        let said = |change: &dyn Fn(&mut SandboxCaps)| {
            let mut caps = ALL;
            change(&mut caps);
            unkept(&caps, &RUNS).join("\n")
        };
        assert_eq!(said(&|_| ()), "");
        assert_eq!(
            said(&|caps| {
                caps.egress = abi::EGRESS_GATE_LISTENER;
                caps.max_concurrent = 0;
                caps.max_timeout_ms = 0;
            }),
            ""
        );
        let without = |limits: u32| said(&|caps| caps.enforces &= !limits);
        let keys = without(abi::LIMIT_MEMORY | abi::LIMIT_PIDS);
        assert!(
            keys.contains("that it enforces runs.memory_bytes, runs.max_pids:"),
            "{keys}"
        );
        assert!(without(abi::LIMIT_WALL).contains("enforces runs.max_timeout_ms:"));
        assert!(without(abi::LIMIT_DISK).contains("enforces runs.workspace_bytes:"));
        assert!(without(abi::LIMIT_NONROOT).contains("no run is root"));
        assert!(said(&|caps| caps.max_memory_bytes = 0).contains("enforces runs.memory_bytes:"));
        assert!(said(&|caps| caps.egress = abi::EGRESS_GATE_URL).contains("from the network"));
        let less = said(&|caps| {
            caps.max_timeout_ms = 5000;
            caps.max_memory_bytes = 1 << 20;
            caps.max_concurrent = 2;
        });
        let lines: Vec<&str> = less.lines().collect();
        let most = "and this sandbox takes at most";
        assert_eq!(
            lines,
            [
                format!("runs.max_timeout_ms is 600000, {most} 5000: write no more than that"),
                format!("runs.memory_bytes is 536870912, {most} 1048576: write no more than that"),
                format!("runs.max_concurrent is 64, {most} 2: write no more than that"),
            ]
        );
    }

    #[test]
    fn a_sandbox_that_lacks_something_is_not_well() {
        let health = |state, message: &str| Health {
            state,
            message: message.into(),
            ..Health::default()
        };
        let lacks = ["a".to_owned(), "b".to_owned()];
        let told = with(health(abi::HEALTH_OK, ""), &lacks);
        assert_eq!(
            (told.state, told.message.as_str()),
            (abi::HEALTH_DEGRADED, "a; b")
        );
        let told = with(health(abi::HEALTH_DOWN, "gone"), &lacks);
        assert_eq!(
            (told.state, told.message.as_str()),
            (abi::HEALTH_DOWN, "gone; a; b")
        );
        assert_eq!(with(health(abi::HEALTH_OK, "x"), &[]).state, abi::HEALTH_OK);
    }
}
