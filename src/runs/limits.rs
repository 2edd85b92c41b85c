//! What one run may use: as asked for, and never more than the operator or the policy lets it have.

use skillgate_plugin_sdk::model::Limits;

use super::{OUTPUT_BYTES_MAX, Settings};
use crate::policy::Permit;

pub(super) fn limits(settings: &Settings, permit: &Permit, asked_ms: Option<u64>) -> Limits {
    let asked_ms = asked_ms.unwrap_or(settings.default_timeout_ms);
    let of_permit = |ceiling: Option<u64>| ceiling.unwrap_or(u64::MAX);
    Limits {
        wall_ms: asked_ms
            .min(settings.timeout_ms_max)
            .min(of_permit(permit.timeout_ms)),
        cpu_ms: 0,
        memory_bytes: settings.memory_bytes.min(of_permit(permit.memory_bytes)),
        disk_bytes: settings.workspace_bytes,
        disk_inodes: settings.workspace_inodes,
        output_bytes: OUTPUT_BYTES_MAX as u64,
        max_pids: settings.pids_max,
    }
}

/// What a caller can do whose run has reached its time: the sandbox knows the limit, and not who has set it. `name` is that of the
/// parameter.
pub(super) fn longer(
    name: &str,
    settings: &Settings,
    permit: &Permit,
    asked_ms: Option<u64>,
) -> String {
    let wall_ms = limits(settings, permit, asked_ms).wall_ms;
    // What rules answer to a wish may be their ceiling, or no more than the wish.
    let is_echo = asked_ms.is_some() && permit.timeout_ms == asked_ms;
    let of_permit = permit.timeout_ms.filter(|_| !is_echo);
    let most_ms = settings.timeout_ms_max.min(of_permit.unwrap_or(u64::MAX));
    match asked_ms {
        Some(asked_ms) if asked_ms > wall_ms => {
            format!("; {name} was {asked_ms}, and a run gets no more here: do less in one")
        }
        _ if wall_ms < most_ms && is_echo => {
            format!("; {name} may be larger, up to {most_ms} or what the policy lets it be")
        }
        _ if wall_ms < most_ms => format!("; {name} may be larger, up to {most_ms}"),
        _ => "; a run gets no more here: do less in one".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No two numbers are the same, so that none can stand for another.
    fn settings() -> Settings {
        Settings {
            default_timeout_ms: 300,
            timeout_ms_max: 1000,
            concurrent_max: 1,
            tenant_concurrent_max: 2,
            queued_max: 3,
            memory_bytes: 6000,
            pids_max: 7,
            workspace_bytes: 8000,
            workspace_inodes: 9,
            output_blobs_max: 4,
            kill_on_disconnect: true,
        }
    }

    fn permit(timeout_ms: Option<u64>, memory_bytes: Option<u64>) -> Permit {
        let mut permit = Permit::for_tests(0, Vec::new());
        (permit.timeout_ms, permit.memory_bytes) = (timeout_ms, memory_bytes);
        permit
    }

    #[test]
    fn a_caller_is_told_whether_more_time_can_be_had() {
        for (asked, of_permit, told) in [
            (None, None, "; t may be larger, up to 1000"),
            (None, Some(500), "; t may be larger, up to 500"),
            (None, Some(300), "; a run gets no more here: do less in one"),
            (
                Some(200),
                Some(200),
                "; t may be larger, up to 1000 or what the policy lets it be",
            ),
            (Some(200), Some(300), "; t may be larger, up to 300"),
            (
                Some(500),
                Some(500),
                "; t may be larger, up to 1000 or what the policy lets it be",
            ),
            (
                Some(1000),
                Some(1000),
                "; a run gets no more here: do less in one",
            ),
            (
                Some(1000),
                None,
                "; a run gets no more here: do less in one",
            ),
            (
                Some(2000),
                None,
                "; t was 2000, and a run gets no more here: do less in one",
            ),
            (
                Some(900),
                Some(500),
                "; t was 900, and a run gets no more here: do less in one",
            ),
        ] {
            let permit = permit(of_permit, None);
            assert_eq!(longer("t", &settings(), &permit, asked), told, "{asked:?}");
        }
    }

    #[test]
    fn the_least_of_what_is_asked_for_and_what_may_be_counts() {
        for (asked, of_permit, expected) in [
            (None, None, 300),
            (Some(200), None, 200),
            (Some(999), None, 999),
            (Some(60_000), None, 1000),
            (Some(u64::MAX), None, 1000),
            (Some(60_000), Some(500), 500),
            (Some(60_000), Some(2000), 1000),
            (Some(200), Some(500), 200),
            (None, Some(100), 100),
            (None, Some(500), 300),
        ] {
            let of = limits(&settings(), &permit(of_permit, None), asked);
            assert_eq!(of.wall_ms, expected, "{asked:?} {of_permit:?}");
        }
        // Nobody asks for memory.
        for (of_permit, expected) in [(None, 6000), (Some(5999), 5999), (Some(u64::MAX), 6000)] {
            let of = limits(&settings(), &permit(None, of_permit), None);
            assert_eq!(of.memory_bytes, expected, "{of_permit:?}");
        }
    }

    #[test]
    fn what_the_policy_has_no_ceiling_for_is_the_operators() {
        let expected = Limits {
            wall_ms: 1,
            cpu_ms: 0,
            memory_bytes: 2,
            disk_bytes: 8000,
            disk_inodes: 9,
            output_bytes: 4096,
            max_pids: 7,
        };
        let of = limits(&settings(), &permit(Some(1), Some(2)), None);
        assert_eq!(of, expected);
    }
}
