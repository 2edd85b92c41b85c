//! Reads a skill's directory for the author's tools, with limits and without following links.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use skillgate_skill::files::FILES_MAX;
use skillgate_skill::{Code, Problem, SKILL_TOML, SkillPath};

/// More directories than files can fill.
const DIRECTORIES_MAX: usize = 2 * FILES_MAX;

/// Every file of the skill in `root`, or what keeps it from being read, all of it. `files_max`: `skills.max_files`; `bytes_max`:
/// `skills.max_bytes`.
pub(super) fn read(
    root: &Path,
    files_max: usize,
    bytes_max: u64,
) -> Result<Vec<(SkillPath, Vec<u8>)>, Vec<Problem>> {
    let mut reader = Reader {
        files_max,
        bytes_max,
        bytes_left: bytes_max,
        ..Reader::default()
    };
    reader.waiting.push((root.to_owned(), String::new()));
    for _ in 0..DIRECTORIES_MAX {
        let Some((dir, prefix)) = reader.waiting.pop() else {
            break;
        };
        reader.directory(&dir, &prefix);
    }
    if !reader.waiting.is_empty() {
        reader.refuse(
            SKILL_TOML,
            Code::TooLarge,
            format!("the skill has more than {DIRECTORIES_MAX} directories"),
        );
    }
    if reader.problems.is_empty() {
        Ok(reader.files)
    } else {
        Err(reader.problems)
    }
}

#[derive(Default)]
struct Reader {
    /// Directories yet to be read, and what the paths in them begin with.
    waiting: Vec<(PathBuf, String)>,
    files: Vec<(SkillPath, Vec<u8>)>,
    files_max: usize,
    bytes_max: u64,
    bytes_left: u64,
    problems: Vec<Problem>,
}

impl Reader {
    fn refuse(&mut self, file: &str, code: Code, message: impl Into<String>) {
        self.problems.push(Problem::error(file, code, message));
    }

    fn directory(&mut self, dir: &Path, prefix: &str) {
        let entries = match fs::read_dir(dir).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => entries,
            Err(error) => {
                return self.refuse(
                    prefix,
                    Code::Invalid,
                    format!("cannot read the directory: {error}"),
                );
            }
        };
        let mut entries: Vec<_> = entries
            .into_iter()
            .map(|entry| (entry.file_name(), entry))
            .collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, entry) in entries {
            let path = format!("{prefix}{}", name.to_string_lossy());
            if name.to_str().is_none() {
                self.refuse(&path, Code::PathInvalid, "the name is not UTF-8");
                continue;
            }
            match entry.file_type() {
                Err(error) => {
                    self.refuse(&path, Code::Invalid, format!("cannot look at it: {error}"))
                }
                Ok(kind) if kind.is_dir() => self.waiting.push((entry.path(), path + "/")),
                Ok(kind) if kind.is_file() => self.file(&entry.path(), &path),
                Ok(kind) => {
                    let what = if kind.is_symlink() {
                        "a symbolic link"
                    } else {
                        "neither a file nor a directory"
                    };
                    self.refuse(
                        &path,
                        Code::FileRefused,
                        format!("is {what}, and a skill has files only"),
                    );
                }
            }
        }
    }

    fn file(&mut self, file: &Path, path: &str) {
        let parsed = match SkillPath::parse(path) {
            Ok(parsed) => parsed,
            Err(error) => return self.problems.push(error.to_problem(path)),
        };
        if self.files.len() == self.files_max {
            // Said once: what follows is not read.
            self.waiting.clear();
            if !self
                .problems
                .iter()
                .any(|problem| problem.code == Code::TooLarge)
            {
                self.refuse(
                    path,
                    Code::TooLarge,
                    format!(
                        "the skill has more than {} files (skills.max_files)",
                        self.files_max
                    ),
                );
            }
            return;
        }
        let mut bytes = Vec::new();
        let read = fs::File::open(file)
            .and_then(|file| file.take(self.bytes_left + 1).read_to_end(&mut bytes));
        match read {
            Err(error) => self.refuse(
                path,
                Code::Invalid,
                format!("cannot read the file: {error}"),
            ),
            Ok(_) => match self.bytes_left.checked_sub(bytes.len() as u64) {
                Some(left) => {
                    self.bytes_left = left;
                    self.files.push((parsed, bytes));
                }
                None => {
                    let message = format!(
                        "the skill's files have more than {} bytes together (skills.max_bytes)",
                        self.bytes_max
                    );
                    self.refuse(path, Code::TooLarge, message);
                }
            },
        }
    }
}
