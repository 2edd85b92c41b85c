//! What `skillgate plugin new` writes, from where it is kept for everybody else.

/// The contract.
pub(super) const HEADER: &str = include_str!("../../../plugins/abi/include/skillgate_plugin.h");
/// What the contract and the SDK may be passed on under.
pub(super) const LICENSE: &str = include_str!("../../../LICENSE");
/// The examples in C, which the tests of the host run.
pub(super) const C_STORAGE: &str = include_str!("../../../plugins/example-c/store.c");
pub(super) const C_SANDBOX: &str = include_str!("../../../plugins/example-c/echo.c");
/// To start from in Rust. `{id}`, `{name}` and `{vendor}` are filled in.
pub(super) const RUST_STORAGE: &str = include_str!("storage.rs.in");
pub(super) const RUST_STORAGE_TESTS: &str = include_str!("storage_tests.rs.in");
pub(super) const RUST_SANDBOX: &str = include_str!("sandbox.rs.in");

/// The crates that a plugin in Rust is made with, without their tests: path below `skillgate/`, and text.
pub(super) const SDK: &[(&str, &str)] = &[
    (
        "abi/src/basics.rs",
        include_str!("../../../plugins/abi/src/basics.rs"),
    ),
    (
        "abi/src/consts.rs",
        include_str!("../../../plugins/abi/src/consts.rs"),
    ),
    (
        "abi/src/layout.rs",
        include_str!("../../../plugins/abi/src/layout.rs"),
    ),
    (
        "abi/src/lib.rs",
        include_str!("../../../plugins/abi/src/lib.rs"),
    ),
    (
        "abi/src/sandbox.rs",
        include_str!("../../../plugins/abi/src/sandbox.rs"),
    ),
    (
        "abi/src/storage.rs",
        include_str!("../../../plugins/abi/src/storage.rs"),
    ),
    (
        "sdk/src/blocking.rs",
        include_str!("../../../plugins/sdk/src/blocking.rs"),
    ),
    (
        "sdk/src/blocking/sandbox.rs",
        include_str!("../../../plugins/sdk/src/blocking/sandbox.rs"),
    ),
    (
        "sdk/src/blocking/storage.rs",
        include_str!("../../../plugins/sdk/src/blocking/storage.rs"),
    ),
    (
        "sdk/src/export.rs",
        include_str!("../../../plugins/sdk/src/export.rs"),
    ),
    (
        "sdk/src/glue.rs",
        include_str!("../../../plugins/sdk/src/glue.rs"),
    ),
    (
        "sdk/src/glue/blocking.rs",
        include_str!("../../../plugins/sdk/src/glue/blocking.rs"),
    ),
    (
        "sdk/src/glue/convert.rs",
        include_str!("../../../plugins/sdk/src/glue/convert.rs"),
    ),
    (
        "sdk/src/glue/host_table.rs",
        include_str!("../../../plugins/sdk/src/glue/host_table.rs"),
    ),
    (
        "sdk/src/glue/in_flight.rs",
        include_str!("../../../plugins/sdk/src/glue/in_flight.rs"),
    ),
    (
        "sdk/src/glue/instance.rs",
        include_str!("../../../plugins/sdk/src/glue/instance.rs"),
    ),
    (
        "sdk/src/glue/panics.rs",
        include_str!("../../../plugins/sdk/src/glue/panics.rs"),
    ),
    (
        "sdk/src/glue/sandbox.rs",
        include_str!("../../../plugins/sdk/src/glue/sandbox.rs"),
    ),
    (
        "sdk/src/glue/services.rs",
        include_str!("../../../plugins/sdk/src/glue/services.rs"),
    ),
    (
        "sdk/src/glue/storage.rs",
        include_str!("../../../plugins/sdk/src/glue/storage.rs"),
    ),
    (
        "sdk/src/host.rs",
        include_str!("../../../plugins/sdk/src/host.rs"),
    ),
    (
        "sdk/src/lib.rs",
        include_str!("../../../plugins/sdk/src/lib.rs"),
    ),
    (
        "sdk/src/model.rs",
        include_str!("../../../plugins/sdk/src/model.rs"),
    ),
    (
        "sdk/src/reply.rs",
        include_str!("../../../plugins/sdk/src/reply.rs"),
    ),
    (
        "sdk/src/sandbox.rs",
        include_str!("../../../plugins/sdk/src/sandbox.rs"),
    ),
    (
        "sdk/src/storage.rs",
        include_str!("../../../plugins/sdk/src/storage.rs"),
    ),
    (
        "sdk/src/testing.rs",
        include_str!("../../../plugins/sdk/src/testing.rs"),
    ),
    (
        "sdk/src/testing/reply.rs",
        include_str!("../../../plugins/sdk/src/testing/reply.rs"),
    ),
    (
        "sdk/src/tracing_bridge.rs",
        include_str!("../../../plugins/sdk/src/tracing_bridge.rs"),
    ),
    (
        "sdk/src/wire.rs",
        include_str!("../../../plugins/sdk/src/wire.rs"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_source_of_the_sdk_is_written() {
        let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins");
        let mut there = BTreeSet::new();
        let mut left = vec![plugins.join("abi/src"), plugins.join("sdk/src")];
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.ends_with("tests.rs") || path.ends_with("tests") {
                    continue;
                }
                if path.is_dir() {
                    left.push(path);
                } else {
                    let name = path.strip_prefix(&plugins).unwrap();
                    there.insert(name.to_str().unwrap().to_owned());
                }
            }
        }
        let written: BTreeSet<String> = SDK.iter().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(written, there);
    }
}
