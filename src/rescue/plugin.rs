//! What a caller is told of an error of a plugin.

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::Error;

use crate::rpc::ErrorObject;
use crate::rpc::code::Code;

/// What a caller is told to wait where a plugin has no advice, and at least for room of its tenant's, in milliseconds.
const RETRY_AFTER_MS_MIN: u32 = 1000;
/// The most that a caller is told: who obeys a plugin that took seconds for microseconds would be gone for weeks.
const RETRY_AFTER_MS_MAX: u32 = 3_600_000;

/// An error of a plugin: the caller learns only whether trying again makes sense, and what else it can do when something has
/// run out. The plugin's own text is for the log: it may name places of this host.
pub(super) fn plugin(which: &'static str, when_full: &'static str, error: &Error) -> ErrorObject {
    match error.code {
        // Nothing that an operator need look at, and as often as the tenant tries.
        abi::E_EXHAUSTED if error.of_tenant => {
            tracing::debug!(
                which,
                reason = error.message,
                "a tenant has used up what it may have"
            );
            let until = if error.retryable {
                ", wait until some of what it has there expires,"
            } else {
                ","
            };
            let message = format!(
                "your tenant has used up what it may have in the {which}: {when_full}{until} or ask its operator for more"
            );
            let refused = ErrorObject::new(Code::Unavailable, "unavailable", message);
            match error.retryable {
                true => refused.with(
                    "retry_after_ms",
                    error
                        .retry_after_ms
                        .clamp(RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX)
                        .into(),
                ),
                false => refused,
            }
        }
        // As often as it tries, too: others are served.
        abi::E_UNAVAILABLE if error.of_tenant => {
            tracing::debug!(which, reason = error.message, "a tenant has its share");
            let message = format!(
                "your tenant has as much under way in the {which} as it may have at once: wait until some of that has ended"
            );
            let wait = error
                .retry_after_ms
                .clamp(RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX);
            ErrorObject::new(Code::Unavailable, "unavailable", message)
                .with("retry_after_ms", wait.into())
        }
        // Stale is what a process had that has ended.
        abi::E_UNAVAILABLE | abi::E_CRASHED | abi::E_STALE | abi::E_EXHAUSTED | abi::E_ABORTED => {
            tracing::warn!(
                which,
                code = error.code,
                reason = error.message,
                "plugin is not available"
            );
            let wait = match error.retry_after_ms {
                0 => RETRY_AFTER_MS_MIN,
                // Less is a plugin's own affair: one that comes back at once says so.
                said => said.min(RETRY_AFTER_MS_MAX),
            };
            let message = if error.code == abi::E_EXHAUSTED {
                format!(
                    "the {which} is full or out of a resource: {when_full}, try again later, and tell the gateway's operator if it lasts"
                )
            } else {
                format!("the {which} is not available now")
            };
            ErrorObject::new(Code::Unavailable, "unavailable", message)
                .with("retry_after_ms", wait.into())
        }
        code => {
            tracing::error!(which, code, reason = error.message, "plugin failed");
            ErrorObject::internal()
        }
    }
}
