//! Numbers of a call, as rules see them.

use super::*;

/// A reader that is not exact takes one of seven of these for its neighbour, which an amount in a rule is not equal to.
#[tokio::test]
async fn decimals_of_rules_and_arguments_are_the_same() {
    let digits = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 1_000_000_000_000_000;
    let decimals: Vec<_> = (1..200)
        .map(|n| format!("{}.{:015}", n % 90, digits(n)))
        .collect();
    let decimals = decimals.join(",\n");
    let rules = format!("decision := {{\"allow\": input.request.args.x == [{decimals}]}}");
    let policy = seeing_args("salesforce.leads.sync", &rules, Confirm::Always);
    let mut asked = facts("execute_skill", vec![salesforce()]);
    asked.args = Some(format!("{{\"x\": [{decimals}]}}").into());
    assert!(policy.decide(&asked).await.is_ok());
}
