//! Plugins whose accesses a sanitizer looks at: what it has found is told, and not only that the process has ended.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{changed_c_with, program};
use crate::tools;

/// The sanitizer's library, which a program has to have from its start; `None`: the compiler has none.
fn library() -> Option<String> {
    let asked = Command::new("cc")
        .arg("-print-file-name=libasan.so")
        .output();
    let path = String::from_utf8(asked.unwrap().stdout).unwrap();
    let path = path.trim();
    // One that is not there is a bare name.
    Path::new(path).is_absolute().then(|| path.to_owned())
}

/// The one case of a store in C with such a change.
fn checked(library: &str, change: (&str, &str), case: &str, options: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let plugin = changed_c_with(dir.path(), &[change], &["-g", "-fsanitize=address"]);
    let output = Command::new(program())
        .arg("check")
        .arg(plugin)
        .args(["{}", case])
        .env("LD_PRELOAD", library)
        .env("ASAN_OPTIONS", options)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).expect(&said);
    let cases = report["cases"].as_array().unwrap();
    cases.iter().find(|of| of["name"] == case).unwrap().clone()
}

#[test]
fn what_a_sanitizer_finds_is_told_with_its_place() {
    let Some(library) = library() else {
        return tools::left_out_but_in_ci("what a sanitizer finds: this cc has no libasan.so");
    };
    let reads = (
        "    b = named_blob(s, op, tenant, id);\n    if (b == NULL) return SKG_OK;\n    answer(s, op, &b->stat);\n",
        "    { volatile char *p = malloc(5); if (p[id.len] == 1) return SKG_OK; }\n    b = named_blob(s, op, tenant, id);\n    if (b == NULL) return SKG_OK;\n    answer(s, op, &b->stat);\n",
    );
    let case = checked(&library, reads, "operations/exactly-once", "detect_leaks=0");
    assert_eq!(case["status"], "failed", "{case}");
    let seen = case["seen"].as_str().unwrap();
    for part in [
        "AddressSanitizer has ended the process, with code 1; it was at: blob_stat",
        "ERROR: AddressSanitizer: heap-buffer-overflow",
        " | #0 ",
        "in blob_stat ",
        "SUMMARY: AddressSanitizer: heap-buffer-overflow",
    ] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    assert!(
        !seen.contains("exit()") && !seen.contains("Shadow bytes"),
        "{seen}"
    );
    let whole = case["stderr"].as_str().unwrap();
    assert!(
        whole.contains("Shadow bytes") && whole.contains("is located"),
        "{whole}"
    );
}

/// With leaks looked for a plugin without any passes, and one struct that is kept by nobody is found.
#[test]
fn what_an_instance_leaks_is_told_with_its_place() {
    let Some(library) = library() else {
        return tools::left_out_but_in_ci("what a sanitizer finds: this cc has no libasan.so");
    };
    let same = (
        "    s = calloc(1, sizeof *s);\n",
        "    s = calloc(1, sizeof *s);\n",
    );
    let leaks = (
        same.0,
        "    { volatile char *lost = malloc(77); if (lost != NULL) *lost = 1; }\n    s = calloc(1, sizeof *s);\n",
    );
    let case = "contract/many-lives";
    let clean = checked(&library, same, case, "detect_leaks=1");
    assert_eq!(clean["status"], "passed", "{clean}");
    let found = checked(&library, leaks, case, "detect_leaks=1");
    assert_eq!(found["status"], "failed", "{found}");
    let seen = found["seen"].as_str().unwrap();
    for part in [
        "LeakSanitizer has ended the process",
        "ERROR: LeakSanitizer: detected memory leaks",
        "in create ",
        "SUMMARY: ",
    ] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
}
