//! Packages that are asked for as a whole where their rules are in several files.
//!
//! The interpreter takes a package for evaluated once it is through with the first of its files: a rule of another file finds
//! nothing of its own package that nobody has asked for before, and a `deny` of which a name is undefined does not fire. The
//! virtual machine asks for each rule and is right. So the second opinion would be none, or a test would hold that must not.
//! Rules that are asked for one by one are right on both.

use std::collections::BTreeMap;

use super::silent::{absolute, paths};
use super::words::Sheet;

/// Refuses rules that ask so; of tests it is what a warning says.
///
/// # Errors
/// Each place, and what to write.
pub(super) fn asked(served: &[Sheet<'_>], tests: &[Sheet<'_>]) -> Result<Vec<String>, Vec<String>> {
    let several = in_several_files(served);
    let refused = places(served, &several);
    match refused.is_empty() {
        true => Ok(places(tests, &several)),
        false => Err(refused),
    }
}

/// Packages with rules in more than one file; and what is above them, since who asks for that asks for them.
fn in_several_files(sheets: &[Sheet<'_>]) -> BTreeMap<String, String> {
    let mut files: BTreeMap<&str, usize> = BTreeMap::new();
    for sheet in sheets {
        *files.entry(&sheet.package).or_default() += 1;
    }
    let several = files.into_iter().filter(|(_, files)| *files > 1);
    let and_above = several.flat_map(|(package, _)| {
        let ends = package.match_indices('.').map(|(at, _)| at);
        let paths = ends.chain([package.len()]);
        let below = paths.map(|end| format!("data.{}", &package[..end]));
        let paths = below.chain(["data".to_owned()]);
        paths.map(|path| (path, package.to_owned()))
    });
    and_above.collect()
}

fn places(sheets: &[Sheet<'_>], several: &BTreeMap<String, String>) -> Vec<String> {
    let mut places = Vec::new();
    for sheet in sheets {
        for path in paths(&sheet.words) {
            let is_behind = |word: &str| path.begin > 0 && sheet.words[path.begin - 1].is(word);
            let import = sheet.imports.iter().find(|it| it.name == path.root);
            let is_told = import.is_some_and(|it| several.contains_key(&it.path));
            // `with data.x as y` asks for nothing; what uses a whole import was told with that.
            if is_behind("with") || (is_told && !is_behind("import")) {
                continue;
            }
            // As far as it is known here: what is behind that may be any of it.
            let steps = absolute(sheet, &path).into_iter().map_while(|step| step);
            let asked = steps.collect::<Vec<_>>().join(".");
            if let Some(package) = several.get(&asked) {
                places.push(format!(
                    "{}: {asked} is asked for as a whole, and the rules of {package} are in several files, which the interpreter does not evaluate as the virtual machine does: name the rule, such as `import data.{package}.deny`",
                    sheet.place(path.line)
                ));
            }
        }
    }
    places
}
