//! Packages that are asked for as a whole where their rules are in several files.
//!
//! The interpreter takes a package for evaluated once it is through with the first of its files: a rule of another file finds
//! nothing of its own package that nobody has asked for before, and a `deny` of which a name is undefined does not fire. The
//! virtual machine asks for each rule and is right. So the second opinion would be none, or a test would hold that must not.
//! Rules that are asked for one by one are right on both.

use std::collections::BTreeMap;

use super::bundle::{Bundle, Module};
use super::trial::{code_of, is_of_word};
use super::words::Sheet;

/// Refuses rules that ask so; of tests it is what a warning says.
///
/// # Errors
/// Each place, and what to write.
pub(super) fn asked(bundle: &Bundle, sheets: &[Sheet<'_>]) -> Result<Vec<String>, Vec<String>> {
    let several = in_several_files(sheets);
    let (tests, served): (Vec<_>, Vec<_>) = bundle.modules().iter().partition(|it| it.is_test());
    let refused = places(&served, &several);
    match refused.is_empty() {
        true => Ok(places(&tests, &several)),
        false => Err(refused),
    }
}

/// Packages with rules in more than one file; and what is above them but `data`, since who asks for that asks for them.
fn in_several_files(sheets: &[Sheet<'_>]) -> BTreeMap<String, String> {
    let mut files: BTreeMap<&str, usize> = BTreeMap::new();
    for sheet in sheets {
        *files.entry(&sheet.package).or_default() += 1;
    }
    let several = files.into_iter().filter(|(_, files)| *files > 1);
    let and_above = several.flat_map(|(package, _)| {
        let ends = package.match_indices('.').map(|(at, _)| at);
        let paths = ends.chain([package.len()]);
        paths.map(|end| (package[..end].to_owned(), package.to_owned()))
    });
    and_above.collect()
}

fn places(modules: &[&Module], several: &BTreeMap<String, String>) -> Vec<String> {
    let mut places = Vec::new();
    for module in modules {
        for (index, line) in module.text.lines().enumerate() {
            let code = without_texts(line);
            for (asked, package) in several.iter().filter(|(it, _)| asks_whole(&code, it)) {
                let (path, line) = (&module.path, index + 1);
                places.push(format!(
                    "{path}:{line}: data.{asked} is asked for as a whole, and the rules of {package} are in several files, which the interpreter does not evaluate as the virtual machine does: name the rule, such as `import data.{package}.deny`"
                ));
            }
        }
    }
    places
}

/// A line's code with nothing in its strings.
fn without_texts(line: &str) -> String {
    let (mut quote, mut escaped) = (None, false);
    let outside = |c: &char| {
        let was = quote;
        match quote {
            _ if escaped => escaped = false,
            Some('"') if *c == '\\' => escaped = true,
            Some(open) if *c == open => quote = None,
            None if *c == '"' || *c == '`' => quote = Some(*c),
            _ => {}
        }
        was.is_none()
    };
    code_of(line).chars().filter(outside).collect()
}

/// Whether `data.PACKAGE` stands in the code without a name behind it.
fn asks_whole(code: &str, package: &str) -> bool {
    let path = format!("data.{package}");
    code.match_indices(&path).any(|(at, _)| {
        let behind = &code[at + path.len()..];
        let before = &code[..at];
        // `with data.x as y` asks for nothing.
        let begins = !before.ends_with(|c| is_of_word(c) || c == '.') && !before.ends_with("with ");
        let named = behind
            .strip_prefix('.')
            .is_some_and(|it| it.starts_with(is_of_word));
        begins && !named && !behind.starts_with(is_of_word)
    })
}
