//! The second opinion.

use futures_util::FutureExt as _;

use super::*;

#[tokio::test]
async fn engines_that_disagree_are_a_denial_and_an_alarm() {
    // Two values for one rule: the virtual machine takes the last, the interpreter fails.
    let rules = "pick := x if { some x in [1, 2] }\ndecision := {\"allow\": true, \"visible\": {\"namespaces\": [\"*\"]}} if pick == 2";
    let ask = || facts("list_skills", vec![]);
    let policy = |confirm| super::policy(&one(rules), PolicyMode::Enforce, confirm);
    assert!(policy(Confirm::Off).decide(&ask()).await.is_ok());
    let always = policy(Confirm::Always);
    assert_eq!(fault(&always, &ask()).await.0, "policy.engine_mismatch");
    assert_eq!(always.status().engine_mismatches, 1);
    // In the background: this call passes, the alarm comes.
    let sample = policy(Confirm::Sample);
    assert!(sample.decide(&ask()).await.is_ok());
    while sample.status().engine_mismatches == 0 {
        tokio::task::yield_now().await;
    }
    // What stays is confirmed before, whatever the sample.
    let mut publish = facts("create_skill", vec![salesforce()]);
    publish.publishes = true;
    assert_eq!(fault(&sample, &publish).await.0, "policy.engine_mismatch");
}

/// Else rules that were put right would be shown as wrong until the gateway is started anew.
#[tokio::test]
async fn a_mismatch_counts_for_the_rules_that_had_it() {
    let pick = "pick := x if { some x in [1, 2] }\ndecision := {\"allow\": true, \"visible\": {\"namespaces\": [\"*\"]}} if pick == 2";
    let of = |rules: &str| prepared(&one(rules), PolicyMode::Enforce, Confirm::Always);
    let policy = in_force(of(pick));
    let counts = || {
        let status = policy.status();
        (status.engine_mismatches, status.engine_mismatches_total)
    };
    let ask = || facts("list_skills", vec![]);
    assert!(policy.decide(&ask()).await.is_err());
    assert_eq!(counts(), (1, 1));
    // The same rules once more, of which callers may be told less.
    let mut same = of(pick);
    same.active.exposure = Exposure::Codes;
    policy.install(same);
    assert_eq!(counts(), (1, 1));
    assert!(policy.decide(&ask()).await.is_err());
    assert_eq!(counts(), (2, 2));
    // One that was decided by the rules before is theirs, however late it is known.
    let before = policy.0.active.load_full();
    policy.install(of("decision := {\"allow\": true}"));
    assert_eq!(counts(), (0, 2));
    let fault = Fault::EngineMismatch("late".into());
    policy.disagree(&before, "dec_late", "list_skills", &fault);
    assert_eq!(counts(), (0, 3));
    policy.install(of(pick));
    assert_eq!(counts(), (0, 3));
}

/// A caller chooses the types of its arguments, and gets round no rule that compares them.
#[tokio::test]
async fn arguments_of_another_type_are_decided_as_rego_says() {
    for (deny, args) in [
        (
            "deny if input.request.args.amount > 1000",
            r#"{"amount": "5000"}"#,
        ),
        (
            "deny if { some item in input.request.args.items; item > 10 }",
            r#"{"items": [null, 11]}"#,
        ),
    ] {
        let rules = format!("decision := {{\"allow\": true}} if not deny\n{deny}");
        let ask = |args: &str| {
            let mut facts = facts("execute_skill", vec![salesforce()]);
            facts.args = Some(args.into());
            facts
        };
        let policy = |confirm| seeing_args("salesforce.leads.sync", &rules, confirm);
        assert!(
            policy(Confirm::Off).decide(&ask(args)).await.is_ok(),
            "if this fails the engine compares as Rego does: good"
        );
        let sample = policy(Confirm::Sample);
        assert_eq!(fault(&sample, &ask(args)).await.0, "policy.engine_mismatch");
        let few = r#"{"amount": 5, "items": [1]}"#;
        assert!(sample.decide(&ask(few)).await.is_ok(), "{deny}");
    }
}

/// One that is asked for is given, whether or not somebody waits for it: so many at once, and no more.
#[test]
fn a_caller_that_goes_away_leaves_its_turn_to_its_thread() {
    let one_thread = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    one_thread.block_on(async {
        let policy = policy(&bundled_files(), PolicyMode::Enforce, Confirm::Always);
        let turns = || policy.0.confirmations.free();
        let ask = facts("list_skills", vec![]);
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || gone.recv().unwrap_err());
        for left in (0..CONFIRMATIONS_MAX).rev() {
            let mut asked = Box::pin(policy.decide(&ask));
            assert!(asked.as_mut().now_or_never().is_none(), "it waits");
            drop(asked);
            assert_eq!(turns(), left);
        }
        drop(go);
        busy.await.unwrap();
        assert!(policy.decide(&ask).await.is_ok());
        assert_eq!(turns(), CONFIRMATIONS_MAX);
    });
}

/// Whoever publishes by the thousand waits for himself.
#[tokio::test]
async fn one_tenants_confirmations_hold_up_no_others() {
    let policy = policy(
        &one("decision := {\"allow\": true}"),
        PolicyMode::Enforce,
        Confirm::Always,
    );
    let of = |tenant: &str| {
        let mut facts = facts("list_skills", vec![]);
        facts.caller = crate::auth::Caller::for_tests(tenant, "alice", &[]);
        facts
    };
    let (flood, other) = (of("a"), of("b"));
    let mut turns: Vec<_> = (0..CONFIRMATIONS_MAX)
        .map(|_| policy.0.confirmations.take("a").unwrap())
        .collect();
    let mut flooding: Vec<_> = (0..10).map(|_| Box::pin(policy.decide(&flood))).collect();
    for asked in &mut flooding {
        assert!(asked.as_mut().now_or_never().is_none(), "it waits");
    }
    let mut asked = Box::pin(policy.decide(&other));
    assert!(asked.as_mut().now_or_never().is_none(), "there is no turn");
    // One is given back: this is the second that has it, whatever goes on of the flood.
    drop(turns.pop());
    let first = flooding.remove(0);
    assert!(first.await.is_ok());
    let next = tokio::time::timeout(Duration::from_secs(10), asked).await;
    assert!(next.expect("its turn has come").is_ok());
}
