//! From what is known of a call to what the rules say of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use regorus::Value;

use super::decision::{Decision, Grant, Log};
use super::engine::Fault;
use super::memo::Said;
use super::outcome::Outcome;
use super::{Active, Facts, Policy, input};
use crate::config::PolicyMode;

/// What came of a question.
struct Asked {
    /// The whole document.
    input: Value,
    raw: Option<Value>,
    decision: Result<Decision, Fault>,
    is_recalled: bool,
}

impl Policy {
    /// A panic is a denial like every other: recorded, counted, told as `policy.panic`.
    pub(super) fn evaluate_guarded(&self, active: &Active, facts: &Facts) -> Outcome {
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            let now = (self.0.clock)();
            match active.mode {
                PolicyMode::Off => self.unasked(facts, now),
                PolicyMode::Enforce | PolicyMode::Shadow => self.evaluate(active, facts, now),
            }
        }));
        evaluated.unwrap_or_else(|_| Outcome {
            set: active.set.clone(),
            input: Value::Null,
            raw: None,
            decision: Err(Fault::Panic),
            log: Log::unsaid(),
            grant: Grant::default(),
            is_recalled: false,
            took_ns: 0,
        })
    }

    /// With `policy.mode = "off"`: everything is allowed, and nothing given.
    fn unasked(&self, facts: &Facts, now: SystemTime) -> Outcome {
        let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let question = self.0.inputs.build(facts, now_s, None);
        Outcome {
            set: None,
            input: input::with_id(question, &facts.id),
            raw: None,
            decision: Ok(Decision::unasked()),
            log: Log::unsaid(),
            grant: Grant::default(),
            is_recalled: false,
            took_ns: 0,
        }
    }

    pub(super) fn evaluate(&self, active: &Active, facts: &Facts, now: SystemTime) -> Outcome {
        let began = Instant::now();
        let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let asked = self.ask(active, facts, now_s);
        let log = match (&asked.decision, &asked.raw) {
            // It says so itself.
            (Ok(_), _) => Log::default(),
            (Err(_), Some(raw)) => Log::of_malformed(raw),
            (Err(_), None) => Log::unsaid(),
        };
        let granted = match &asked.decision {
            Ok(decision) if decision.allow => decision.grant(facts.method, &facts.declared()),
            _ => Ok(Grant::default()),
        };
        let mut outcome = Outcome {
            set: active.set.clone(),
            input: asked.input,
            raw: asked.raw,
            decision: asked.decision,
            log,
            grant: Grant::default(),
            is_recalled: asked.is_recalled,
            took_ns: 0,
        };
        match granted {
            Ok(grant) => outcome.grant = grant,
            Err(fault) => outcome.fail(fault),
        }
        outcome.took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        outcome
    }

    /// Puts the question to the rules, or remembers what they said to it in this second.
    fn ask(&self, active: &Active, facts: &Facts, now_s: u64) -> Asked {
        let (args, unfit) = match input::args(facts, &active.include_args) {
            Ok(args) => (args, None),
            Err(fault) => (None, Some(fault)),
        };
        let is_kept = args.is_none() && unfit.is_none();
        let place = is_kept.then(|| active.memo.place(facts)).flatten();
        let question = self.0.inputs.build(facts, now_s, args);
        if let Some(place) = place
            && let Some(said) = active.memo.recall(place, &question)
        {
            return Asked {
                input: input::with_id(question, &facts.id),
                raw: Some(said.raw),
                decision: Ok(said.decision),
                is_recalled: true,
            };
        }
        let unkept = place.map(|place| (place, question.clone()));
        let input = input::with_id(question, &facts.id);
        let raw = match (&active.set, unfit) {
            (_, Some(fault)) => Err(fault),
            (Some(set), None) => set.decide(input.clone(), active.instructions_max),
            (None, None) => Err(Fault::Unavailable("there is no policy".into())),
        };
        let (raw, decision) = match raw {
            Ok(raw) => {
                let decision = Decision::parse(&raw);
                (Some(raw), decision)
            }
            Err(fault) => (None, Err(fault)),
        };
        if let (Some((place, question)), Some(raw), Ok(decision)) = (unkept, &raw, &decision) {
            let (raw, decision) = (raw.clone(), decision.clone());
            active.memo.keep(place, question, Said { raw, decision });
        }
        Asked {
            input,
            raw,
            decision,
            is_recalled: false,
        }
    }
}
