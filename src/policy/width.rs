//! Widths in formats: `%1000000000d` makes a gigabyte in one step, which no instruction counter sees.

use super::bundle::Bundle;
use super::words::{self, Kind};

/// Each width in a string of the rules that are served, with its place.
///
/// # Errors
/// Why the engine cannot read a file.
pub(super) fn widths(bundle: &Bundle) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for module in bundle.modules().iter().filter(|module| !module.is_test()) {
        for word in words::words(module)? {
            let lines_before = match word.kind {
                Kind::Text => |_: &str| 0,
                Kind::Raw => |text: &str| text.matches('\n').count(),
                Kind::Name | Kind::Other => continue,
            };
            if let Some(at) = width(&word.text) {
                wrong.push(format!(
                    "{}:{}: a width in a format (`%10d`) is not allowed; use %v, %d or %s",
                    module.path,
                    word.line + lines_before(&word.text[..at])
                ));
            }
        }
    }
    Ok(wrong)
}

/// Where a text has `%` and a number of two or more digits, or `*`, as `sprintf` takes it: before a letter, or at the end, where another
/// text may follow. A percent sign behind a number (`80 % 100 times`) is none.
fn width(text: &str) -> Option<usize> {
    let mut signs = text.match_indices('%');
    let found = signs.find(|(at, _)| {
        let behind = &text[at + 1..];
        let number = behind.trim_start_matches(['+', '-', '#', ' ', '.']);
        let has_space = behind[..behind.len() - number.len()].contains(' ');
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        let rest = number.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '*');
        let is_number = number.starts_with('*') || digits >= 2;
        let ends = rest.is_empty() && !has_space;
        is_number && (ends || rest.starts_with(char::is_alphabetic))
    });
    found.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::bundle::Files;
    use crate::policy::engine::PolicySet;
    use crate::policy::trial::check_builtins;

    #[test]
    fn a_width_is_one_of_a_format() {
        for text in [
            "%10d",
            "%v of %-20s",
            "%010d",
            "%.30f",
            "%10.3f",
            "%*d",
            "% 10d",
            "%%10d",
            "%.%%10d",
            "a %1000000000",
            "%+ 12v",
        ] {
            assert!(width(text).is_some(), "{text}");
        }
        for text in [
            "",
            "%",
            "%v, %d and %s",
            "100 %",
            "below 75 %  20 are left",
            "below 80 % 100 times",
            "80 % 100",
            "100%% 20",
            "%5d",
        ] {
            assert!(width(text).is_none(), "{text}");
        }
        let tried = |text: &str| {
            let mut files = Files::default();
            let text = format!("package skills.authz\n\n{text}\n\ndecision := true\n");
            files.add("a.rego".into(), text.into_bytes()).unwrap();
            let bundle = Bundle::new(&files, "policies").unwrap();
            let set = PolicySet::compile(&bundle).unwrap();
            check_builtins(&set, &bundle).err().unwrap_or_default()
        };
        let none: Vec<String> = vec![];
        assert_eq!(
            tried(
                "# below 80 %100d times\nhour := floor((input.time.now_s % 86400) / 3600)\nodd := 7 %86400 # %10d"
            ),
            none
        );
        for (text, line) in [
            (r#"a := sprintf("%20d", [1])"#, 3),
            (r#"a := sprintf("\u002520d", [1])"#, 3),
            ("a := sprintf(`\n\n%20d`, [1])", 5),
        ] {
            let why = format!(
                "policies/a.rego:{line}: a width in a format (`%10d`) is not allowed; use %v, %d or %s"
            );
            assert_eq!(tried(text), [why], "{text}");
        }
    }
}
