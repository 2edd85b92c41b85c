//! What cargo tells of a package and of what it is made of.

use std::path::Path;
use std::process::Command;

/// What `cargo metadata` says for the package in `dir`; `args` say more to it.
pub(crate) fn metadata(dir: &Path, args: &[&str]) -> serde_json::Value {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--offline", "--format-version", "1"]);
    let output = cargo.args(args).current_dir(dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the oldest compiler that the package of `found` names (`rust-version`); it is none too old for any package there.
pub(crate) fn oldest_compiler(found: &serde_json::Value) -> String {
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
            "{}: {name} needs {version}",
            its_own["name"]
        );
    }
    format!("{}.{}", named.0, named.1)
}
