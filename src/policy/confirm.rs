//! The second opinion: an allow of the virtual machine is decided again on the interpreter (`policy.confirm`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;

use regorus::Value;

use super::decision::Decision;
use super::engine::Fault;
use super::outcome::Outcome;
use super::{Active, Facts, Policy};
use crate::config::Confirm;

/// Of so many allowed calls one is decided again with `policy.confirm = "sample"`.
const SAMPLE_EVERY: u64 = 16;
/// And not more often than this, in milliseconds: however many calls there are, the interpreter takes less than a hundredth of
/// one processor, and its threads do not take turns with those of the calls.
const SAMPLE_PAUSE_MS: u64 = 100;

impl Policy {
    /// Asks the interpreter for its opinion of an allow, before the call goes on or behind it.
    pub(super) async fn confirm(
        &self,
        active: &Arc<Active>,
        facts: &Facts,
        decision_id: &str,
        outcome: &mut Outcome,
    ) {
        let Some(set) = outcome.set.clone() else {
            return;
        };
        let allowed = self.0.allowed.fetch_add(1, Ordering::Relaxed);
        let Some(first) = comes_first(active.confirm, facts.method, has_args(&outcome.input))
        else {
            return;
        };
        let Ok(decision) = outcome.decision.clone() else {
            return;
        };
        let input = outcome.input.clone();
        let second = move || agree(&decision, set.interpret(input));
        if first {
            if let Err(fault) = self.in_turn(facts.caller.tenant(), second).await {
                self.disagree(active, decision_id, facts.method, &fault);
                outcome.fail(fault);
            }
        } else if allowed.is_multiple_of(SAMPLE_EVERY) && self.sample_is_due() {
            let Ok(waiting) = self.0.samples.clone().try_acquire_owned() else {
                self.0.unsampled.fetch_add(1, Ordering::Relaxed);
                return;
            };
            let (policy, active) = (self.clone(), active.clone());
            let (id, method) = (decision_id.to_owned(), facts.method);
            let tenant = facts.caller.tenant().to_owned();
            tokio::spawn(async move {
                let _waiting = waiting;
                if let Err(fault) = policy.in_turn(&tenant, second).await {
                    policy.disagree(&active, &id, method, &fault);
                }
            });
        }
    }

    /// Asks the interpreter on a thread of its own, of which there are so many; tenants have them in turn, so that one who wants
    /// thousands holds up no other. The turn is the thread's and not that of who waits for it: a caller that goes away does not end
    /// what it has begun.
    async fn in_turn(
        &self,
        tenant: &str,
        second: impl FnOnce() -> Result<(), Fault> + Send + 'static,
    ) -> Result<(), Fault> {
        let turn = self.0.confirmations.wait(tenant).await;
        let asked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            second()
        });
        asked.await.unwrap_or(Err(Fault::Panic))
    }

    fn sample_is_due(&self) -> bool {
        let now = (self.0.clock)().duration_since(UNIX_EPOCH);
        let now_ms = u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
        let last_ms = self.0.sampled_ms.load(Ordering::Relaxed);
        // A clock that was set back must not end the sampling.
        let is_due = now_ms.abs_diff(last_ms) >= SAMPLE_PAUSE_MS;
        is_due
            && self
                .0
                .sampled_ms
                .compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// The alarm: one of the engines is wrong, or a rule means two things.
    pub(super) fn disagree(&self, active: &Active, decision_id: &str, method: &str, fault: &Fault) {
        // Of the rules that decided, which may not be in force any more.
        active.mismatches.fetch_add(1, Ordering::Relaxed);
        self.0.mismatches.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            decision_id,
            method,
            reason = %fault,
            "the policy's two engines disagree on an allowed call; set policy.confirm = \"always\" until the rule is found"
        );
    }
}

/// Whether a call waits for the second opinion; none: nobody gives one. Publishing is rare and stays; and arguments are of whatever type their caller
/// likes, which Rego can compare with any other, where the virtual machine fails the rule: a deny does not fire. Both are always
/// confirmed, unless nothing is.
pub(super) fn comes_first(confirm: Confirm, method: &str, has_args: bool) -> Option<bool> {
    match confirm {
        Confirm::Off => None,
        Confirm::Always => Some(true),
        Confirm::Sample => Some(method == "create_skill" || has_args),
    }
}

/// Whether the rules have seen arguments of the call.
fn has_args(input: &Value) -> bool {
    input["request"]["args"] != Value::Undefined
}

/// Whether the interpreter says the same.
fn agree(decision: &Decision, second: Result<Value, Fault>) -> Result<(), Fault> {
    let second = second
        .and_then(|value| Decision::parse(&value))
        .map_err(|fault| Fault::EngineMismatch(without_values(&fault)))?;
    match second == *decision {
        true => Ok(()),
        false => Err(Fault::EngineMismatch(
            "they came to different decisions".into(),
        )),
    }
}

/// For the logs: of an error the place alone. Its words quote the value that a function did not like, and that may be
/// an argument of the call or what `log.mask` names.
fn without_values(fault: &Fault) -> String {
    match fault {
        Fault::Error(why) => {
            let place = why.split_once("\nerror: ").map(|(place, _)| place);
            Fault::Error(place.unwrap_or("at no known place").to_owned()).to_string()
        }
        other => other.to_string(),
    }
}
