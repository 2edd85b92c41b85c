//! What was found: for people, for programs (JSON), for build servers (JUnit).

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use skillgate_plugin_host::{on_one_line, visible_json};
use skillgate_plugin_sdk::abi;

/// Version of the JSON report's form.
const FORMAT: u32 = 1;

/// What a plugin says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Stable, reverse-DNS.
    pub id: String,
    /// SemVer.
    pub version: String,
    /// It offers storage.
    pub storage: bool,
    /// It offers a sandbox.
    pub sandbox: bool,
}

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As the header demands.
    Passed,
    /// Not as the header demands.
    Failed,
    /// Nothing to check, or left out as asked.
    Skipped,
}

/// Something measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What, with its unit as the end of the name.
    pub name: String,
    /// How much.
    pub value: f64,
}

/// One case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// `group/name`.
    pub name: &'static str,
    /// How it ended.
    pub status: Status,
    /// How long it took.
    pub took_ms: u64,
    /// Failed: what was seen. Skipped: why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub seen: String,
    /// Failed: the function (or rule) of the header that it is about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub function: String,
    /// What the header demands.
    pub demands: &'static str,
    /// What to do about a failure.
    pub advice: &'static str,
    /// What was measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    /// What its process had written to standard error when it ended without a verdict: 64 KiB at most, cut in the middle.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
}

impl CaseReport {
    /// For a person: a line, and for what did not pass, why.
    pub fn write_row(&self, out: &mut dyn Write) -> io::Result<()> {
        let word = match self.status {
            Status::Passed => "pass",
            Status::Failed => "FAIL",
            Status::Skipped => "skip",
        };
        writeln!(out, "{word}  {:<36} {:>6} ms", self.name, self.took_ms)?;
        for figure in &self.figures {
            writeln!(
                out,
                "        {} = {}",
                on_one_line(&figure.name),
                figure.value
            )?;
        }
        match self.status {
            Status::Passed => Ok(()),
            Status::Skipped => writeln!(out, "        {}", on_one_line(&self.seen)),
            Status::Failed => {
                let (function, demands) = (on_one_line(&self.function), self.demands);
                writeln!(out, "        seen:    {}", on_one_line(&self.seen))?;
                writeln!(out, "        demanded ({function}): {demands}")?;
                writeln!(out, "        to do:   {}", self.advice)
            }
        }
    }
}

/// The whole.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Version of this form.
    pub format: u32,
    /// The kit's release.
    pub kit: &'static str,
    /// Major and minor of the contract that it holds plugins to.
    pub contract: String,
    /// The plugin's file.
    pub file: String,
    /// Of the file, 64 hex digits; empty: it could not be read.
    pub sha256: String,
    /// What the plugin says of itself; empty when it did not load.
    pub plugin: About,
    /// `gateway` or `process`.
    pub isolation: &'static str,
    /// Also the long cases.
    pub full: bool,
    /// The machine's architecture.
    pub machine: &'static str,
    /// Release of its kernel; empty: it does not say.
    pub kernel: String,
    /// How many of each.
    pub passed: usize,
    /// See `passed`.
    pub failed: usize,
    /// See `passed`.
    pub skipped: usize,
    /// Each case.
    pub cases: Vec<CaseReport>,
}

impl Report {
    pub(crate) fn new(file: String, isolation: &'static str, full: bool) -> Self {
        Report {
            format: FORMAT,
            kit: env!("CARGO_PKG_VERSION"),
            contract: format!("{}.{}", abi::ABI_MAJOR, abi::ABI_MINOR),
            file,
            sha256: String::new(),
            plugin: About::default(),
            isolation,
            full,
            machine: std::env::consts::ARCH,
            kernel: kernel(),
            passed: 0,
            failed: 0,
            skipped: 0,
            cases: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, case: CaseReport) {
        match case.status {
            Status::Passed => self.passed += 1,
            Status::Failed => self.failed += 1,
            Status::Skipped => self.skipped += 1,
        }
        self.cases.push(case);
    }

    /// Nothing failed, and something passed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }

    /// For a person: a row for each case, and the sum.
    pub fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.cases.iter().try_for_each(|case| case.write_row(out))?;
        self.write_sum(out)
    }

    /// What was checked, and how many cases ended how.
    pub fn write_sum(&self, out: &mut dyn Write) -> io::Result<()> {
        let name = if self.plugin.id.is_empty() {
            "a plugin that does not load".to_owned()
        } else {
            format!(
                "{} {}",
                on_one_line(&self.plugin.id),
                on_one_line(&self.plugin.version)
            )
        };
        writeln!(out, "\n{name} ({})", on_one_line(&self.file))?;
        writeln!(out, "sha256 {}", self.sha256)?;
        let (passed, failed, skipped) = (self.passed, self.failed, self.skipped);
        writeln!(out, "{passed} passed, {failed} failed, {skipped} skipped")?;
        let other = if self.isolation == "process" {
            "gateway"
        } else {
            "process"
        };
        writeln!(
            out,
            "checked with --isolation {}; how it is with --isolation {other} has not been tried",
            self.isolation
        )
    }

    /// For a program; a terminal has nothing to obey in it either.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        writeln!(out, "{}", visible_json(&text))
    }

    /// For a build server.
    pub fn write_junit(&self, out: &mut dyn Write) -> io::Result<()> {
        let all: f64 = self.cases.iter().map(|c| seconds(c.took_ms)).sum();
        writeln!(out, r#"<?xml version="1.0" encoding="UTF-8"?>"#)?;
        writeln!(
            out,
            r#"<testsuites tests="{0}" failures="{1}" time="{all:.3}">
  <testsuite name="skillgate plugin check" tests="{0}" failures="{1}" skipped="{2}" time="{all:.3}">
    <properties>"#,
            self.cases.len(),
            self.failed,
            self.skipped
        )?;
        let properties = [
            ("plugin.id", self.plugin.id.as_str()),
            ("plugin.version", &self.plugin.version),
            ("file", &self.file),
            ("sha256", &self.sha256),
            ("contract", &self.contract),
            ("kit", self.kit),
            ("isolation", self.isolation),
            ("machine", self.machine),
            ("kernel", &self.kernel),
        ];
        for (name, value) in properties {
            writeln!(
                out,
                r#"      <property name="{name}" value="{}"/>"#,
                xml(value)
            )?;
        }
        writeln!(out, "    </properties>")?;
        for case in &self.cases {
            let (group, name) = case.name.split_once('/').unwrap_or(("", case.name));
            write!(
                out,
                r#"    <testcase classname="{group}" name="{name}" time="{:.3}""#,
                seconds(case.took_ms)
            )?;
            match case.status {
                Status::Passed => writeln!(out, "/>")?,
                Status::Skipped => writeln!(
                    out,
                    ">\n      <skipped message=\"{}\"/>\n    </testcase>",
                    xml(&case.seen)
                )?,
                Status::Failed => {
                    writeln!(
                        out,
                        ">\n      <failure message=\"{}\">demanded ({}): {}\nto do: {}</failure>",
                        xml(&case.seen),
                        xml(&case.function),
                        xml(case.demands),
                        xml(case.advice)
                    )?;
                    if !case.stderr.is_empty() {
                        writeln!(out, "      <system-err>{}</system-err>", xml(&case.stderr))?;
                    }
                    writeln!(out, "    </testcase>")?;
                }
            }
        }
        writeln!(out, "  </testsuite>\n</testsuites>")
    }
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.unwrap_or_default().trim().to_owned()
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}

/// Text and attributes; what XML cannot have at all is replaced.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push('\t'),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("/p/<x>.so".into(), "gateway", false);
        report.plugin.id = "com.acme.\u{1b}[2Jx".into();
        for (name, status) in [
            ("file/loads", Status::Passed),
            ("contract/older-host", Status::Failed),
            ("storage/sizes", Status::Skipped),
        ] {
            report.add(CaseReport {
                name,
                status,
                took_ms: 1500,
                seen: "a \"quoted\" <thing>\u{1}\nand more".into(),
                function: "create".into(),
                demands: "SKG_HAS & more",
                advice: "do it",
                figures: Vec::new(),
                stderr: String::new(),
            });
        }
        report
    }

    #[test]
    fn a_failure_says_what_was_seen_what_is_demanded_and_what_to_do() {
        let mut out = Vec::new();
        let mut report = report();
        report.cases[1].seen = "is\u{9b}2J\u{202e}\u{feff}\n".into();
        report.write_table(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            !text.contains('\u{1b}'),
            "nothing of a plugin's reaches the terminal"
        );
        let is_hidden =
            |c: char| matches!(c, '\u{202e}' | '\u{feff}') || c != '\n' && c.is_control();
        assert!(!text.contains(is_hidden), "{text:?}");
        assert!(text.contains(r"is\u{9b}2J\u{202e}\u{feff}\n"), "{text}");
        assert!(text.contains("FAIL  contract/older-host"), "{text}");
        assert!(text.contains("demanded (create): SKG_HAS & more"), "{text}");
        assert!(text.contains("\n1 passed, 1 failed, 1 skipped\n"), "{text}");
        let last = "checked with --isolation gateway; how it is with --isolation process has not been tried\n";
        assert!(text.ends_with(last), "{text}");
    }

    #[test]
    fn junit_is_xml_whatever_the_plugin_says() {
        let mut out = Vec::new();
        report().write_junit(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains(r#"message="a &quot;quoted&quot; &lt;thing&gt;\u{1}&#10;and more""#),
            "{text}"
        );
        assert!(text.contains(r#"<testsuite name="skillgate plugin check" tests="3" failures="1" skipped="1" time="4.500">"#));
        assert!(!text.contains('\u{1}') && !text.contains('\u{1b}'));
    }

    #[test]
    fn only_a_report_without_failures_is_good() {
        let mut report = report();
        assert!(!report.is_good());
        report.failed = 0;
        assert!(report.is_good());
        report.passed = 0;
        assert!(!report.is_good(), "nothing was checked");
    }

    #[test]
    fn json_has_the_hash_and_each_case() {
        let mut out = Vec::new();
        let mut report = report();
        let said = "\u{7f}\u{9b}2J\u{202e}\u{3164}é漢🙂";
        report.cases[1].seen = said.into();
        report.write_json(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["cases"][1]["seen"], said);
        assert!(text.contains(r"\u007f\u009b2J\u202e\u3164é漢🙂"), "{text}");
        assert_eq!(
            (&json["format"], &json["contract"]),
            (&1.into(), &"1.0".into())
        );
        assert_eq!(json["cases"][1]["status"], "failed");
        assert!(json["sha256"].is_string());
    }
}
