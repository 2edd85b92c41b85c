//! A whole skill: its files together.

use crate::digest::{file_digest, tree_digest};
use crate::files;
use crate::manifest::{Manifest, Runtime, place_in_toml};
use crate::path::SkillPath;
use crate::problem::{Code, PROBLEMS_MAX, Problem, some_of_each};
use crate::python::{FunctionName, broken, is_module_of, seems_to_define};
use crate::skill_md::SkillMd;
use crate::text::{is_deceptive, line_column, quoted, small};
use crate::{SKILL_MD, SKILL_TOML};

/// So many bytes of the modules beside and below an entrypoint are looked at, together; a module that is more than what is left
/// is passed over.
pub const MODULES_BYTES_MAX: usize = 4 * 1024 * 1024;
/// So many of the modules are named to whoever names one as entrypoint that is not there.
const MODULES_NAMED_MAX: usize = 5;
/// Of so many of them it is said that Python cannot read them: who sees these looks at the others too.
const MODULES_WARNED_MAX: usize = 10;

/// One file of a valid skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillFile {
    /// Where.
    pub path: SkillPath,
    /// See [`file_digest`].
    pub sha256: String,
    /// Bytes.
    pub size_bytes: u64,
}

/// A valid skill, without the bytes of its files.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    /// `skill.toml`.
    pub manifest: Manifest,
    /// The front matter of `SKILL.md`; empty when there is none.
    pub frontmatter: serde_json::Map<String, serde_json::Value>,
    /// All files, by path.
    pub files: Vec<SkillFile>,
    /// See [`tree_digest`].
    pub tree_sha256: String,
    /// What the author should look at; none of it refuses the skill.
    pub warnings: Vec<Problem>,
}

/// Checks a whole skill: the set of files, the manifest, SKILL.md, the entrypoint. `files` are all
/// files of it with their bytes, in any order. On failure every problem, warnings included, at
/// least one of them an error.
pub fn validate<B: AsRef<[u8]>>(
    files: &[(SkillPath, B)],
    total_bytes_max: u64,
) -> Result<Skill, Vec<Problem>> {
    let sizes = files
        .iter()
        .map(|(path, bytes)| (path, size_of(bytes.as_ref())));
    // What is in a set that cannot be written down is not worth reading.
    files::check(sizes, total_bytes_max)?;
    let mut problems = Vec::new();
    let find = |name: &str| {
        files
            .iter()
            .find(|(path, _)| path.as_str() == name)
            .map(|(_, bytes)| bytes.as_ref())
    };
    let manifest = read(find(SKILL_TOML), SKILL_TOML, &mut problems).and_then(|text| {
        Manifest::from_toml(text)
            .map_err(|e| problems.extend(e.into_problems()))
            .ok()
    });
    let frontmatter = read(find(SKILL_MD), SKILL_MD, &mut problems).and_then(|text| {
        warn_of_hidden(text, &mut problems);
        SkillMd::parse(text)
            .map(|md| md.frontmatter)
            .map_err(|e| problems.push(e.into()))
            .ok()
    });
    if let Some(manifest) = &manifest {
        problems.extend(manifest.warnings().iter().cloned());
        if let Some(runtime) = manifest.runtime() {
            let path = runtime.entrypoint.as_str();
            match find(path) {
                None => {
                    let message = format!("entrypoint {} is not among the files", quoted(path));
                    let pointer = "/runtime/entrypoint";
                    let problem = Problem::error(SKILL_TOML, Code::FileMissing, message)
                        .at(pointer)
                        .help(instead(files));
                    let text = find(SKILL_TOML).and_then(|bytes| std::str::from_utf8(bytes).ok());
                    let place = text.and_then(|text| place_in_toml(text, pointer));
                    problems.push(place.into_iter().fold(problem, Problem::place));
                }
                Some(bytes) => {
                    utf8(bytes, path, &mut problems);
                    problems.extend(code_warnings(runtime, files));
                }
            }
        }
    }
    let paths = files.iter().map(|(path, _)| path.as_str());
    let compiled = paths.filter(|path| path.ends_with(".pyc")).map(|path| {
        let message = "compiled code may differ from the source beside it";
        let problem = Problem::warning(path, Code::CompiledCode, message);
        problem.help("leave __pycache__ out of the skill")
    });
    problems.extend(compiled.take(PROBLEMS_MAX));
    let (problems, _) = some_of_each(problems, PROBLEMS_MAX);
    match (manifest, frontmatter) {
        (Some(manifest), Some(frontmatter)) if !problems.iter().any(Problem::is_error) => {
            let mut list: Vec<SkillFile> = files
                .iter()
                .map(|(path, bytes)| SkillFile {
                    path: path.clone(),
                    sha256: file_digest(bytes.as_ref()),
                    size_bytes: size_of(bytes.as_ref()),
                })
                .collect();
            list.sort_by(|a, b| a.path.cmp(&b.path));
            let tree_sha256 =
                tree_digest(list.iter().map(|f| (f.path.as_str(), f.sha256.as_str())));
            Ok(Skill {
                manifest,
                frontmatter,
                files: list,
                tree_sha256,
                warnings: problems,
            })
        }
        _ => Err(problems),
    }
}

/// A valid skill with the bytes of its files, ready to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    /// What it is.
    pub skill: Skill,
    /// All files with their bytes, by path; `skill.toml` and `SKILL.md` included.
    pub files: Vec<(SkillPath, Vec<u8>)>,
}

/// Makes a whole skill from what `create_skill` takes: a manifest, the text of SKILL.md, the other
/// files. Those must not bring a `skill.toml` or `SKILL.md` of their own.
pub fn assemble(
    manifest: &Manifest,
    skill_md: &str,
    files: Vec<(SkillPath, Vec<u8>)>,
    total_bytes_max: u64,
) -> Result<Bundle, Vec<Problem>> {
    files::check_sent(
        files.iter().map(|(path, bytes)| (path, size_of(bytes))),
        total_bytes_max,
    )?;
    let mut all = files;
    for (name, bytes) in [
        (SKILL_TOML, manifest.to_toml().into_bytes()),
        (SKILL_MD, skill_md.as_bytes().to_vec()),
    ] {
        let path = SkillPath::parse(name).map_err(|e| vec![e.to_problem(name)])?;
        all.push((path, bytes));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    validate(&all, total_bytes_max).map(|skill| Bundle { skill, files: all })
}

fn size_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn read<'b>(bytes: Option<&'b [u8]>, name: &str, problems: &mut Vec<Problem>) -> Option<&'b str> {
    match bytes {
        Some(bytes) => utf8(bytes, name, problems),
        None => {
            problems.push(
                Problem::error(name, Code::FileMissing, "the file is missing")
                    .help(format!("every skill has a {name} at its top")),
            );
            None
        }
    }
}

fn utf8<'b>(bytes: &'b [u8], name: &str, problems: &mut Vec<Problem>) -> Option<&'b str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(e) => {
            let good = e.valid_up_to();
            let line = bytes[..good].iter().filter(|b| **b == b'\n').count() + 1;
            let mut problem = Problem::error(name, Code::NotUtf8, "the file is not UTF-8 text");
            problem.line = Some(small(line));
            problems.push(problem);
            None
        }
    }
}

/// What can be seen of a skill's code without Python: of its entrypoint, and of the modules that this can import from the skill.
/// `files` are those of it, or more, in any order.
pub fn code_warnings<B: AsRef<[u8]>>(runtime: &Runtime, files: &[(SkillPath, B)]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let path = runtime.entrypoint.as_str();
    let entrypoint = files.iter().find(|(file, _)| file.as_str() == path);
    let source = entrypoint.and_then(|(_, bytes)| std::str::from_utf8(bytes.as_ref()).ok());
    if let Some(source) = source {
        warn_of_code(source, path, &runtime.export, &mut problems);
    }
    warn_of_modules(files, path, &mut problems);
    problems
}

/// What can be seen of an entrypoint without Python. Of one that it cannot read nothing else is worth a word.
fn warn_of_code(source: &str, path: &str, export: &FunctionName, problems: &mut Vec<Problem>) {
    let help = "Python cannot read the file, so no run of the skill can begin: correct it";
    if let Some(problem) = unreadable(source, path, help) {
        problems.push(problem);
    } else if !seems_to_define(source, export) {
        let message = format!("no definition of `{export}` was found at the top level");
        let help = format!("define `def {export}(args):`, or correct runtime.export");
        problems.push(Problem::warning(path, Code::ExportNotFound, message).help(help));
    }
}

/// What can be seen of the modules that an entrypoint can import from its own skill.
fn warn_of_modules<B: AsRef<[u8]>>(
    files: &[(SkillPath, B)],
    entrypoint: &str,
    problems: &mut Vec<Problem>,
) {
    let mut modules: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(path, bytes)| (path.as_str(), bytes.as_ref()))
        .filter(|(path, _)| is_module_of(entrypoint, path))
        .collect();
    modules.sort_unstable_by_key(|(path, _)| *path);
    let help = "Python cannot read the file, so a run that imports it fails: correct it, or keep what is no code in resources/";
    let mut left = MODULES_BYTES_MAX;
    let found = modules.into_iter().filter_map(|(path, bytes)| {
        left = left.checked_sub(bytes.len())?;
        // In another encoding it can be read all the same.
        unreadable(std::str::from_utf8(bytes).ok()?, path, help)
    });
    problems.extend(found.take(MODULES_WARNED_MAX));
}

fn unreadable(source: &str, path: &str, help: &str) -> Option<Problem> {
    let broken = broken(source)?;
    let mut problem = Problem::warning(path, Code::PythonSyntax, broken.what).help(help);
    problem.line = Some(small(broken.line));
    Some(problem)
}

/// A reader of SKILL.md sees something else than a model does.
fn warn_of_hidden(text: &str, problems: &mut Vec<Problem>) {
    let hidden = text
        .char_indices()
        .find(|(_, c)| is_deceptive(*c) && !matches!(c, '\n' | '\r' | '\t'));
    if let Some((at, c)) = hidden {
        let message = format!(
            "has the character U+{:04X}, which a reader cannot see",
            u32::from(c)
        );
        problems.push(
            Problem::warning(SKILL_MD, Code::HiddenCharacters, message)
                .place(line_column(text, at))
                .help("remove control, bidirectional and zero-width characters"),
        );
    }
}

/// What to do about an entrypoint that is not among the files.
fn instead<B>(files: &[(SkillPath, B)]) -> String {
    let modules = files.iter().map(|(path, _)| path.as_str());
    let mut modules: Vec<&str> = modules.filter(|path| path.ends_with(".py")).collect();
    modules.sort_unstable();
    let named = modules.iter().take(MODULES_NAMED_MAX);
    let named: Vec<String> = named.map(|path| quoted(path)).collect();
    match named.is_empty() {
        true => "add that file: there is no module at all".into(),
        false => format!("it is a path among the files, such as {}", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "name = \"a.b\"\nversion = \"0.1.0\"\ndescription = \"x\"\nkind = \"action\"\n[runtime]\nlanguage = \"python\"\nentrypoint = \"code/main.py\"\nexport = \"main\"\n";
    const MAX: u64 = 10_000;

    fn files(list: &[(&str, &[u8])]) -> Vec<(SkillPath, Vec<u8>)> {
        list.iter()
            .map(|(path, bytes)| (SkillPath::parse(path).unwrap(), bytes.to_vec()))
            .collect()
    }

    fn whole() -> Vec<(SkillPath, Vec<u8>)> {
        files(&[
            ("skill.toml", MANIFEST.as_bytes()),
            ("code/main.py", b"def main(args):\n    return args\n"),
            ("SKILL.md", b"---\nname: A\n---\n# A\n"),
            ("resources/logo.png", b"\x89PNG\xff\0"),
        ])
    }

    #[test]
    fn a_whole_skill() {
        let skill = validate(&whole(), MAX).unwrap();
        assert!(skill.warnings.is_empty(), "{:?}", skill.warnings);
        assert_eq!(skill.frontmatter["name"], "A");
        let paths: Vec<&str> = skill.files.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "SKILL.md",
                "code/main.py",
                "resources/logo.png",
                "skill.toml"
            ]
        );
        let mut backwards = whole();
        backwards.reverse();
        assert_eq!(
            validate(&backwards, MAX).unwrap().tree_sha256,
            skill.tree_sha256
        );
        backwards[0].1.push(b' ');
        assert_ne!(
            validate(&backwards, MAX).unwrap().tree_sha256,
            skill.tree_sha256
        );
    }

    #[test]
    fn problems() {
        use Code::*;
        /// A file and what to make of it; none: leave it out.
        type Change<'a> = (&'a str, Option<&'a [u8]>);
        let no_export = MANIFEST.replace("export = \"main\"", "");
        let rows: &[(Change, &[(Code, &str)])] = &[
            (
                ("skill.toml", None),
                &[(FileMissing, "skill.toml: error: the file is missing")],
            ),
            (
                ("SKILL.md", None),
                &[(FileMissing, "SKILL.md: error: the file is missing")],
            ),
            (
                ("code/main.py", None),
                &[(
                    FileMissing,
                    "skill.toml:7:14: error: entrypoint \"code/main.py\" is not among the files",
                )],
            ),
            (
                ("skill.toml", Some(b"a = ")),
                &[(
                    Syntax,
                    "skill.toml:1:5: error: string values must be quoted, expected literal string",
                )],
            ),
            (
                ("skill.toml", Some(b"a = 1\n\xff")),
                &[(NotUtf8, "skill.toml:2: error: the file is not UTF-8 text")],
            ),
            (
                ("skill.toml", Some(no_export.as_bytes())),
                &[(
                    Missing,
                    "skill.toml:5:2: error: export is missing in [runtime]",
                )],
            ),
            (
                ("SKILL.md", Some(b"---\na: 1\na: 2\n---\n")),
                &[(Duplicate, "SKILL.md:3:1: error: duplicate key \"a\"")],
            ),
            (
                ("SKILL.md", Some(b"\xff")),
                &[(NotUtf8, "SKILL.md:1: error: the file is not UTF-8 text")],
            ),
            (
                ("code/main.py", Some(b"\n\n\xff")),
                &[(NotUtf8, "code/main.py:3: error: the file is not UTF-8 text")],
            ),
            (
                ("CODE/main.py", Some(b"")),
                &[(PathConflict, ""), (PathConflict, "")],
            ),
            (
                (".env", Some(b"")),
                &[(
                    FileRefused,
                    ".env: error: a hidden file or directory at the top of a skill is not allowed",
                )],
            ),
            (("big", Some(&[0; 10_000])), &[(TooLarge, "")]),
            // Warnings refuse nothing.
            (
                ("code/main.py", Some(b"def other(args): ...")),
                &[(
                    ExportNotFound,
                    "code/main.py: warning: no definition of `main` was found at the top level",
                )],
            ),
            (
                ("code/main.py", Some(b"def main(args):\n    return {\n")),
                &[(PythonSyntax, "code/main.py:2: warning: `{` is never closed")],
            ),
            (
                ("code/a/other.py", Some(b"def f():\n    return f(\n")),
                &[(
                    PythonSyntax,
                    "code/a/other.py:2: warning: `(` is never closed",
                )],
            ),
            (
                ("code/other.py", Some(b"# -*- coding: latin-1 -*-\n\xe9(")),
                &[],
            ),
            (("resources/form.py", Some(b"{{")), &[]),
            (
                ("SKILL.md", Some("# A\nb\u{202e}c".as_bytes())),
                &[(
                    HiddenCharacters,
                    "SKILL.md:2:2: warning: has the character U+202E, which a reader cannot see",
                )],
            ),
            (
                ("code/__pycache__/main.cpython-312.pyc", Some(b"\0")),
                &[(CompiledCode, "")],
            ),
        ];
        for ((path, bytes), want) in rows {
            let mut files: Vec<_> = whole()
                .into_iter()
                .filter(|(p, _)| p.as_str() != *path)
                .collect();
            if let Some(bytes) = bytes {
                files.push((SkillPath::parse(path).unwrap(), bytes.to_vec()));
            }
            let (problems, refused) = match validate(&files, MAX) {
                Ok(skill) => (skill.warnings, false),
                Err(problems) => (problems, true),
            };
            assert_eq!(problems.iter().any(Problem::is_error), refused, "{path}");
            assert_eq!(
                problems.iter().map(|p| p.code).collect::<Vec<_>>(),
                want.iter().map(|w| w.0).collect::<Vec<_>>(),
                "{path}"
            );
            for (problem, (_, text)) in problems.iter().zip(*want) {
                assert!(text.is_empty() || problem.to_string() == *text, "{problem}");
            }
        }
    }

    #[test]
    fn an_entrypoint_that_is_not_there_may_be_another_file() {
        let help = |files: &[(SkillPath, Vec<u8>)]| {
            let problems = validate(files, MAX).unwrap_err();
            problems.into_iter().find_map(|problem| problem.help)
        };
        let mut files = whole();
        files.retain(|(path, _)| path.as_str() != "code/main.py");
        let said = help(&files).unwrap();
        assert_eq!(said, "add that file: there is no module at all");
        for n in 0..=MODULES_NAMED_MAX {
            let path = SkillPath::parse(&format!("m{n}.py")).unwrap();
            files.push((path, Vec::new()));
        }
        assert_eq!(
            help(&files).unwrap(),
            r#"it is a path among the files, such as "m0.py", "m1.py", "m2.py", "m3.py", "m4.py""#
        );
    }

    #[test]
    fn modules_are_looked_at_within_bounds() {
        let warned = |modules: &[(String, usize)]| {
            let mut files = whole();
            for (path, bytes) in modules {
                let source = "$".to_owned() + &" ".repeat(bytes - 1);
                files.push((SkillPath::parse(path).unwrap(), source.into()));
            }
            let skill = validate(&files, u64::MAX).unwrap();
            let warnings = skill.warnings.into_iter();
            warnings.map(|problem| problem.file).collect::<Vec<_>>()
        };
        let name = |n: usize| format!("code/m{n:02}.py");
        let many: Vec<_> = (0..=MODULES_WARNED_MAX)
            .rev()
            .map(|n| (name(n), 1))
            .collect();
        let first: Vec<_> = (0..MODULES_WARNED_MAX).map(name).collect();
        assert_eq!(warned(&many), first);
        let large = [
            (name(0), MODULES_BYTES_MAX - 2),
            (name(1), 3),
            (name(2), 2),
            (name(3), 1),
        ];
        assert_eq!(warned(&large), [name(0), name(2)]);
        assert_eq!(warned(&[(name(0), MODULES_BYTES_MAX + 1)]), [""; 0]);
    }

    #[test]
    fn many_warnings_of_one_kind_leave_room_for_the_others() {
        let unknown: String = (0..PROBLEMS_MAX)
            .map(|n| format!("network{n} = 1\n"))
            .collect();
        let manifest = format!("{unknown}{}", MANIFEST.replace("a.b", "a.class"));
        let mut files = whole();
        files[0].1 = manifest.into_bytes();
        for n in 0..PROBLEMS_MAX {
            for (file, content) in [("py", "$"), ("pyc", "")] {
                let path = SkillPath::parse(&format!("code/m{n}.{file}")).unwrap();
                files.push((path, content.into()));
            }
        }
        let warnings = validate(&files, MAX).unwrap().warnings;
        assert_eq!(warnings.len(), PROBLEMS_MAX);
        for code in [
            Code::NameNotImportable,
            Code::UnknownKey,
            Code::PythonSyntax,
            Code::CompiledCode,
        ] {
            let number = warnings.iter().filter(|it| it.code == code).count();
            let all = if code == Code::NameNotImportable {
                1
            } else {
                10
            };
            assert!(number >= all, "{number} {code:?}");
        }
    }

    #[test]
    fn made_from_a_request() {
        // The specification's own create_skill example.
        let manifest = Manifest::from_json(r#"{"name":"user.julaiti.save_sheet_as_csv","version":"0.1.0","description":"x","kind":"action",
            "runtime":{"language":"python","entrypoint":"code/main.py","export":"main"}}"#).unwrap();
        let sent = || {
            files(&[
                ("code/main.py", b"def main(args):\n    ..."),
                ("resources/examples.md", b"Example usage..."),
            ])
        };
        let bundle = assemble(&manifest, "# My New Skill\n\n...", sent(), MAX).unwrap();
        assert!(bundle.skill.warnings.is_empty() && bundle.skill.frontmatter.is_empty());
        let paths: Vec<&str> = bundle.files.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "SKILL.md",
                "code/main.py",
                "resources/examples.md",
                "skill.toml"
            ]
        );
        assert_eq!(bundle.skill.manifest.to_json(), manifest.to_json());
        let again = assemble(&manifest, "# My New Skill\n\n...", sent(), MAX).unwrap();
        assert_eq!(again.skill.tree_sha256, bundle.skill.tree_sha256);

        use Code::{FileRefused, PathConflict};
        for (extra, want) in [
            ("skill.toml", FileRefused),
            ("SKILL.md", FileRefused),
            ("Skill.md", FileRefused),
            (".git/config", FileRefused),
            ("code", PathConflict),
        ] {
            let mut files = sent();
            files.push((SkillPath::parse(extra).unwrap(), vec![]));
            let problems = assemble(&manifest, "x", files, MAX).unwrap_err();
            assert_eq!(problems[0].code, want, "{extra}");
        }
        assert_eq!(
            assemble(&manifest, "x", vec![], MAX).unwrap_err()[0].code,
            Code::FileMissing
        );
        assert_eq!(
            assemble(&manifest, "x", sent(), 100).unwrap_err()[0].code,
            Code::TooLarge
        );
    }
}
