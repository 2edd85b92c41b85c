//! The set of a skill's files: what is checked of it before any of them is read.
//!
//! Of a set that has passed one may rely on this: at most [`FILES_MAX`] files, within the limit of bytes given; no two paths that
//! are the same file where case, or a dot at the end of a name, does not count; no path that is both a file and a directory;
//! nothing hidden at the top, no `.git` anywhere. So it can be written to any file system without one file hiding another.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::path::{SkillPath, fold};
use crate::problem::{Code, PROBLEMS_MAX, Problem};
use crate::text::quoted;
use crate::{SKILL_MD, SKILL_TOML};

/// Most files of one skill, `skill.toml` and `SKILL.md` included.
pub const FILES_MAX: usize = 1000;

/// Checks the files of a whole skill: (path, size in bytes).
pub fn check<'a>(
    files: impl IntoIterator<Item = (&'a SkillPath, u64)>,
    total_bytes_max: u64,
) -> Result<(), Vec<Problem>> {
    looked_at(files, total_bytes_max, false)
}

/// Checks the files that somebody sends beside the manifest and SKILL.md: as [`check`], and neither of those two may be
/// among them, in any spelling.
pub fn check_sent<'a>(
    files: impl IntoIterator<Item = (&'a SkillPath, u64)>,
    total_bytes_max: u64,
) -> Result<(), Vec<Problem>> {
    looked_at(files, total_bytes_max, true)
}

fn looked_at<'a>(
    files: impl IntoIterator<Item = (&'a SkillPath, u64)>,
    total_bytes_max: u64,
    sent: bool,
) -> Result<(), Vec<Problem>> {
    let files_max = if sent { FILES_MAX - 2 } else { FILES_MAX };
    let (mut paths, mut total_bytes) = (BTreeSet::new(), 0_u64);
    let mut problems = Vec::new();
    let mut folded: HashMap<String, &SkillPath> = HashMap::new();
    for (count, (path, size)) in files.into_iter().enumerate() {
        if count == files_max {
            problems.push(Problem::error(
                "files",
                Code::TooLarge,
                format!("more than {files_max} files"),
            ));
            break;
        }
        if problems.len() >= PROBLEMS_MAX {
            break;
        }
        problems.extend(refused(path, sent));
        total_bytes = total_bytes.saturating_add(size);
        if !paths.insert(path) {
            problems.push(Problem::error(
                path.as_str(),
                Code::Duplicate,
                "the file is there twice",
            ));
            continue;
        }
        if let Some(other) = folded.insert(path.folded(), path) {
            problems.push(Problem::error(
                path.as_str(),
                Code::PathConflict,
                format!(
                    "is the same file as {} where case or a dot at the end does not count",
                    quoted(other.as_str())
                ),
            ));
        }
    }
    if total_bytes > total_bytes_max {
        problems.push(Problem::error(
            "files",
            Code::TooLarge,
            format!(
                "all files together have {total_bytes} bytes, at most {total_bytes_max} are allowed"
            ),
        ));
    }
    let mut told: HashSet<String> = HashSet::new();
    for path in &paths {
        for parent in path.parents() {
            let parent = fold(parent);
            if let Some(file) = folded.get(&parent)
                && problems.len() < PROBLEMS_MAX
                && told.insert(parent)
            {
                problems.push(Problem::error(
                    file.as_str(),
                    Code::PathConflict,
                    format!(
                        "is a file and also the directory of {}",
                        quoted(path.as_str())
                    ),
                ));
            }
        }
    }
    problems.extend(directories_of_one_spelling(&paths));
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

/// `Code/a.py` beside `code/b.py`: two directories here, one where case does not count.
fn directories_of_one_spelling(paths: &BTreeSet<&SkillPath>) -> Vec<Problem> {
    let mut spelling: HashMap<String, &str> = HashMap::new();
    let mut problems = Vec::new();
    for path in paths {
        for parent in path.parents() {
            let first = *spelling.entry(fold(parent)).or_insert(parent);
            if first != parent && problems.len() < PROBLEMS_MAX {
                problems.push(Problem::error(
                    path.as_str(),
                    Code::PathConflict,
                    format!(
                        "the directory {} is also spelled {}",
                        quoted(parent),
                        quoted(first)
                    ),
                ));
                break;
            }
        }
    }
    problems
}

/// Files that no skill may bring.
fn refused(path: &SkillPath, sent: bool) -> Option<Problem> {
    let refuse = |message: &str| Some(Problem::error(path.as_str(), Code::FileRefused, message));
    if path.as_str().starts_with('.') {
        return refuse("a hidden file or directory at the top of a skill is not allowed");
    }
    if path.components().any(|part| fold(part) == ".git") {
        return refuse("`.git` is not allowed in a skill");
    }
    // `Skill.MD` would be SKILL.md where case does not count, and here a confusing neighbour.
    for (own, from) in [(SKILL_TOML, "manifest"), (SKILL_MD, "skill_md")] {
        if path.folded() == fold(own) {
            if sent {
                return refuse("must not be among the files")
                    .map(|p| p.help(format!("it is made from `{from}`")));
            }
            if path.as_str() != own {
                return refuse(&format!("must be spelled {own}"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(list: &[&str]) -> Vec<SkillPath> {
        list.iter().map(|p| SkillPath::parse(p).unwrap()).collect()
    }

    fn codes(list: &[&str], sent: bool) -> Vec<Code> {
        let paths = paths(list);
        match looked_at(paths.iter().map(|p| (p, 1)), 100, sent) {
            Ok(()) => vec![],
            Err(problems) => problems.into_iter().map(|p| p.code).collect(),
        }
    }

    #[test]
    fn sets() {
        use Code::{Duplicate, FileRefused, PathConflict};
        for (list, sent, want) in [
            (
                &["skill.toml", "SKILL.md", "code/main.py"][..],
                false,
                &[][..],
            ),
            (&["code/main.py", "code/other.py", "codes"], true, &[]),
            (
                &["a/.env", "docs/skill.toml", "docs/SKILL.md", "a/.gitignore"],
                true,
                &[],
            ),
            (&["a", "a"], true, &[Duplicate]),
            (
                &["code/main.py", "CODE/MAIN.PY"],
                true,
                &[PathConflict, PathConflict],
            ),
            (&["code/main.py", "code/Main.py"], true, &[PathConflict]),
            (&["code/a.py", "Code/b.py"], true, &[PathConflict]),
            (&["straße", "STRASSE"], true, &[PathConflict]),
            (&["a", "a."], true, &[PathConflict]),
            (&["code./a.py", "code/b.py"], true, &[PathConflict]),
            (&["code", "code../x"], true, &[PathConflict]),
            (&["a..", "b...", "a.b", "c/..."], true, &[]),
            (&["a/.git."], true, &[FileRefused]),
            (&["skill.toml."], false, &[FileRefused]),
            (&["skill.md.."], true, &[FileRefused]),
            (&["code", "code/x"], true, &[PathConflict]),
            (&["code/x/y", "code", "code/z"], true, &[PathConflict]),
            (&["CODE", "code/x"], true, &[PathConflict]),
            (&[".git/config"], true, &[FileRefused]),
            (&[".hidden"], true, &[FileRefused]),
            (&["a/.git/config"], true, &[FileRefused]),
            (&["a/.GIT"], true, &[FileRefused]),
            (&["skill.toml"], true, &[FileRefused]),
            (&["SKILL.md"], true, &[FileRefused]),
            (&["skill.md"], true, &[FileRefused]),
            (&["Skill.TOML"], false, &[FileRefused]),
        ] {
            assert_eq!(codes(list, sent), want, "{list:?}");
        }
    }

    #[test]
    fn limits() {
        let many = |n: usize| {
            (0..n)
                .map(|i| SkillPath::parse(&format!("d/{i}")).unwrap())
                .collect::<Vec<_>>()
        };
        let run = |paths: &[SkillPath], size: u64, max: u64, sent: bool| {
            looked_at(paths.iter().map(|p| (p, size)), max, sent)
        };
        assert!(run(&many(1000), 1, 1000, false).is_ok());
        assert!(run(&many(998), 1, 998, true).is_ok());
        for (paths, size, max, sent) in [
            (many(1000), 1, 999, false),
            (many(998), 1, 997, true),
            (many(1001), 1, 9999, false),
            (many(999), 1, 9999, true),
            (many(10), 11, 100, false),
            (many(2), u64::MAX, u64::MAX - 1, false),
        ] {
            let problems = run(&paths, size, max, sent).unwrap_err();
            assert_eq!(
                problems.iter().map(|p| p.code).collect::<Vec<_>>(),
                [Code::TooLarge]
            );
        }
        // A hostile set gets a bounded list of complaints.
        let bad = vec![SkillPath::parse("a").unwrap(); 900];
        assert!(run(&bad, 0, 0, true).unwrap_err().len() <= PROBLEMS_MAX + 1);
        let parse = |path: String| SkillPath::parse(&path).unwrap();
        let beneath = |n: usize| [parse(format!("d/{n}")), parse(format!("d/{n}/x"))];
        let spelled = |n: usize| [parse(format!("d{n}/x")), parse(format!("D{n}/y"))];
        for bad in [
            (0..400).flat_map(beneath).collect::<Vec<_>>(),
            (0..400).flat_map(spelled).collect(),
        ] {
            assert_eq!(run(&bad, 0, 0, true).unwrap_err().len(), PROBLEMS_MAX);
        }
    }
}
