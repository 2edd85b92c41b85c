//! A whole skill: its files together.

use crate::digest::{file_digest, tree_digest};
use crate::files::FileSet;
use crate::manifest::Manifest;
use crate::path::SkillPath;
use crate::problem::{Code, PROBLEMS_MAX, Problem};
use crate::python::seems_to_define;
use crate::skill_md::SkillMd;
use crate::text::{is_deceptive, line_column, quoted, small};
use crate::{SKILL_MD, SKILL_TOML};

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
    let mut problems = Vec::new();
    let sizes = files
        .iter()
        .map(|(path, bytes)| (path, size_of(bytes.as_ref())));
    if let Err(found) = FileSet::check(sizes, total_bytes_max) {
        problems.extend(found);
        // What is in a set that cannot be written down is not worth reading.
        return Err(problems);
    }
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
                None => problems.push(
                    Problem::error(
                        SKILL_TOML,
                        Code::FileMissing,
                        format!("entrypoint {} is not among the files", quoted(path)),
                    )
                    .at("/runtime/entrypoint"),
                ),
                Some(bytes) => {
                    if let Some(source) = utf8(bytes, path, &mut problems)
                        && !seems_to_define(source, &runtime.export)
                    {
                        let message = format!(
                            "no definition of `{}` was found at the top level",
                            runtime.export
                        );
                        problems.push(Problem::warning(path, Code::ExportNotFound, message).help(
                            format!(
                                "define `def {}(args):`, or correct runtime.export",
                                runtime.export
                            ),
                        ));
                    }
                }
            }
        }
    }
    for (path, _) in files {
        if path.as_str().ends_with(".pyc") && problems.len() < PROBLEMS_MAX {
            problems.push(
                Problem::warning(
                    path.as_str(),
                    Code::CompiledCode,
                    "compiled code may differ from the source beside it",
                )
                .help("leave __pycache__ out of the skill"),
            );
        }
    }
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
    FileSet::check_sent(
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
