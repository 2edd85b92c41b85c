//! The layer with the bundled policy.

use std::path::Path;

use super::bundle::{Bundle, Files};
use super::trial;

/// The bundled policy.
fn bundled() -> Bundle {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    Bundle::new(&Files::read(&path).unwrap(), "policies").unwrap()
}

#[test]
fn the_bundled_policy_passes_its_trial() {
    let report = trial::run(&bundled(), 250_000).unwrap_or_else(|why| panic!("{}", why.join("\n")));
    assert!(report.tests >= 40 && report.goldens >= 15, "{report:?}");
}
