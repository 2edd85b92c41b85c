//! Whether the oldest compiler that a package names (`rust-version`) is enough for what it is made of.

use std::path::Path;
use std::process::Command;

/// It is none too old for any package that cargo lists for the one in `dir`; `args` say more to `cargo metadata`. Returns it.
pub(crate) fn is_enough(dir: &Path, args: &[&str]) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--offline", "--format-version", "1"]);
    let output = cargo.args(args).current_dir(dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let needs = |package: &serde_json::Value| {
        let version = package["rust_version"].as_str()?;
        let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap());
        Some((numbers.next()?, numbers.next()?))
    };
    let packages = found["packages"].as_array().unwrap();
    let its_own = packages
        .iter()
        .find(|it| it["id"] == found["resolve"]["root"])
        .unwrap();
    let named = needs(its_own).expect("it names one");
    for package in packages {
        let (name, version) = (&package["name"], &package["rust_version"]);
        assert!(
            needs(package) <= Some(named),
            "{dir:?}: {name} needs {version}"
        );
    }
    format!("{}.{}", named.0, named.1)
}
