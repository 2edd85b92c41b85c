//! Pieces of the isolation left out, one at a time: the rest still works, and the launcher says so.

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_sandbox_process::Guard;

use crate::support::*;

/// Those that an ordinary user's launcher can do without: it can make no /proc of a pid namespace that is not its own, and
/// one of another's network namespace neither.
pub(crate) fn removable() -> Vec<Guard> {
    let roots = [Guard::PidNamespace, Guard::NetNamespace, Guard::OwnUser];
    Guard::ALL
        .into_iter()
        .filter(|guard| is_root() || !roots.contains(guard))
        .collect()
}

#[test]
fn a_launcher_that_leaves_a_piece_out_says_so() {
    let mode = &fresh();
    for guard in removable() {
        let instance = Instance::without(&mode.config, &[guard]);
        assert_eq!(
            instance.output("def main(args): return 1\n"),
            1,
            "{guard:?}"
        );
        let health = instance.plugin.health().unwrap();
        assert_eq!(health.state, abi::HEALTH_DEGRADED);
        let said = format!("left out [{guard:?}]");
        assert!(health.report_json.contains(&said), "{}", health.report_json);
    }
}
