//! Bundled plugins are the program's: what is installed under a gateway that serves is for the next start.

use std::fs;
use std::process::Command;

use serde_json::json;

use super::{TAKEN, reload};
use crate::alone;
use crate::examples::{changed, instead};
use crate::installed::{PLUGINS, Prefix};
use crate::support::gateway::{House, Settings, is_root, must_not_start};

/// Writes a configuration in which both plugins' sections are others than with another of these.
fn configure(house: &House, isolation: &str, number: u64) {
    let more = if is_root() {
        String::new()
    } else {
        r#", downgrades = ["cgroup"]"#.to_owned()
    };
    house.configure(Settings {
        server: "reload_watch_ms = 0",
        store: &format!(", reserve_inodes = {number}"),
        sandbox: Some(&format!("{{ pool_max = {number}{more} }}")),
        ..Settings::default()
    });
    let mut text = fs::read_to_string(house.config()).unwrap();
    for name in ["storage-fs", "sandbox-process"] {
        let named = format!("name = {name:?}");
        text = text.replace(&named, &format!("{named}\nisolation = {isolation:?}"));
    }
    fs::write(house.config(), text).unwrap();
}

/// A reload in the middle of an upgrade, as for a key that is withdrawn: it runs nothing of another version, and is not refused
/// either, whichever half is there.
#[test]
fn a_reload_keeps_the_bundled_plugins_that_the_program_has_begun_with() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let prefix = Prefix::whole(&house);
    configure(&house, "gateway", 4);
    let gateway = house.start_as(house.command_of(&prefix.program));
    let loaded = || -> Vec<String> {
        let log = gateway.log();
        let lines = log.lines().filter(|line| line.contains("plugin loaded"));
        lines.map(str::to_owned).collect()
    };
    let first = loaded();
    assert_eq!(first.len(), PLUGINS.len(), "{first:?}");
    for name in PLUGINS {
        let mut bytes = fs::read(prefix.plugin(name)).unwrap();
        bytes.extend_from_slice(b"the next version");
        prefix.install(name, &bytes);
    }
    for (round, isolation) in [
        (1, "gateway"),
        (2, "process"),
        (3, "process"),
        (4, "gateway"),
    ] {
        configure(&house, isolation, 4 + round);
        reload(&gateway, TAKEN);
        let log = gateway.log();
        for exchanged in [
            "the new plugin has the store",
            "new runs go to the new plugin",
        ] {
            assert_eq!(log.matches(exchanged).count() as u64, round, "{exchanged}");
        }
        assert_eq!(loaded(), first, "{isolation}");
        let code = "def main(args):\n    return 'it runs'\n";
        let ran = gateway.client().run(code, json!({})).unwrap();
        assert_eq!(ran["output"], "it runs", "{ran}");
        // From now on nothing is there.
        for name in PLUGINS.map(|name| prefix.plugin(name)) {
            let _gone_already = fs::remove_file(name);
        }
    }
    gateway.stop();
}

/// The program is the new one, and a plugin still the old one: it would isolate runs, or be believed, as that version was.
#[test]
fn half_an_upgrade_does_not_start() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let prefix = Prefix::whole(&house);
    let text = fs::read_to_string(house.config()).unwrap();
    let store = changed(&house, "store", &[]);
    let sandbox = changed(&house, "echo", &[]);
    let vendors = instead(&text, r#"name = "storage-fs""#, &store);
    assert!(store.contains("changed-store.so") && sandbox.contains("changed-echo.so"));
    for (name, other, text) in [
        (PLUGINS[1], "changed-echo.so", &text),
        (PLUGINS[0], "changed-store.so", &text),
        // The shelf is the bundled store's, too.
        (PLUGINS[0], "changed-store.so", &vendors),
    ] {
        fs::write(house.config(), text).unwrap();
        let right = fs::read(prefix.plugin(name)).unwrap();
        prefix.install(name, &fs::read(house.path().join(other)).unwrap());
        let (code, refused) = must_not_start(house.command_of(&prefix.program));
        assert_eq!(code, Some(3), "{refused}");
        let mut doctor = Command::new(&prefix.program);
        doctor.args(["doctor", "--config"]).arg(house.config());
        house.clean(&mut doctor);
        let output = doctor.output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        let versions = concat!(
            r#"is of version "1.0.0", and the program of version ""#,
            env!("CARGO_PKG_VERSION")
        );
        for words in [name, versions, "install both"] {
            assert!(refused.contains(words), "{words}: {refused}");
            assert!(told.contains(words), "{words}: {told}");
        }
        prefix.install(name, &right);
    }
    fs::write(house.config(), text).unwrap();
    house.start_as(house.command_of(&prefix.program)).stop();
}
