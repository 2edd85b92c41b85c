//! Which skill of a refused call the caller must not know of (contract, section 2): it is answered like one that is not there.

use regorus::Value;

use super::decision::Decision;
use super::{Active, Facts, Policy};

/// The first one that the decision does not show, or one that is not there. Publishing names what the caller has brought
/// itself.
pub(super) fn of_refused(facts: &Facts, decision: &Decision) -> Option<String> {
    if facts.publishes {
        return None;
    }
    let mut names = facts.skills.iter().map(|skill| skill.name());
    let hidden = names.find(|name| !decision.shows(name));
    hidden.map(str::to_owned).or_else(|| facts.missing.clone())
}

impl Policy {
    /// The same where there is no decision, which a caller can bring about: the arguments are too long for the rules, or their
    /// names too many for the budget. `raw`: what the rules have said nevertheless.
    pub(super) fn hidden_at_fault(
        &self,
        active: &Active,
        facts: &Facts,
        raw: Option<&Value>,
    ) -> Option<String> {
        if facts.publishes || facts.skills.is_empty() {
            return None;
        }
        match raw.map(Decision::parse) {
            // What it may use it may know.
            Some(Ok(decision)) if decision.allow => return None,
            Some(Ok(decision)) => return of_refused(facts, &decision),
            Some(Err(_)) | None => {}
        }
        // What a listing shows depends on nothing but the caller. Nothing is done by that, so it is not on record.
        let about = Facts::new("list_skills", facts.caller.clone(), facts.id.clone())
            .with("namespace", ())
            .with("detail", "names")
            .with("limit", 1);
        match self.evaluate_guarded(active, &about).decision {
            Ok(decision) => of_refused(facts, &decision),
            // Rules that do not say what may be seen show nothing.
            Err(_) => Some(facts.skills[0].name().to_owned()),
        }
    }
}
