//! Who reads what is printed, and leaves before its end.

use super::*;

/// A stdout whose reader has gone, or whose disk is full.
struct Gone(io::ErrorKind);

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Err(self.0.into())
    }
}

/// Runs one command line whose output goes there: exit code and stderr.
fn read_by(gone: io::ErrorKind, command: &[&str]) -> (Exit, String) {
    let mut err = Vec::new();
    let args = std::iter::once("skillgate")
        .chain(command.iter().copied())
        .map(OsString::from);
    let exit = run(args, &mut Gone(gone), &mut err);
    (exit, String::from_utf8(err).unwrap())
}

#[test]
fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is_one() {
    for command in [
        &["version"][..],
        &["version", "--output", "json"],
        &["--help"],
        &["completions", "bash"],
    ] {
        assert_eq!(
            read_by(io::ErrorKind::BrokenPipe, command),
            (Exit::Fine, String::new()),
            "{command:?}"
        );
        let full = read_by(io::ErrorKind::StorageFull, command);
        assert_eq!(full.0, Exit::Runtime, "{command:?}");
        assert!(
            full.1.starts_with("error: cannot write the output: "),
            "{command:?}: {}",
            full.1
        );
    }
}

/// Else `skillgate audit verify | head -1` would say of any log that it is fine.
#[test]
fn what_was_found_does_not_hang_on_who_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.jsonl");
    std::fs::write(&log, "no record\n".repeat(1000)).unwrap();
    let rules = dir.path().join("rules");
    std::fs::create_dir(&rules).unwrap();
    std::fs::write(rules.join("a.rego"), "package skills.authz\n\nx := {").unwrap();
    std::fs::write(rules.join(".manifest"), "{").unwrap();
    for command in [
        &["audit", "verify", text(&log)][..],
        &["audit", "verify", text(&log), "--output", "json"],
        // Several files are one log.
        &["audit", "verify", text(&log), text(&log)],
        &["policy", "check", text(&rules)],
        &["policy", "check", text(&rules), "--output", "json"],
    ] {
        assert_eq!(skillgate(command).0, Exit::Findings, "{command:?}");
        let gone = read_by(io::ErrorKind::BrokenPipe, command);
        assert_eq!(gone, (Exit::Findings, String::new()), "{command:?}");
    }
    // What is no finding keeps its own code, too.
    let (exit, err) = read_by(
        io::ErrorKind::BrokenPipe,
        &["audit", "verify", "/nowhere/audit.jsonl"],
    );
    assert_eq!(exit, Exit::Runtime);
    assert!(err.starts_with("error: /nowhere/audit.jsonl: "), "{err}");
}
