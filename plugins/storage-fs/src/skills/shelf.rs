//! The operator's own directories of skills: read once at the start, the same for every tenant, never written.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use skillgate_plugin_sdk::model::{Skill, SkillFile};
use skillgate_plugin_sdk::{Host, Level};
use skillgate_skill::{SKILL_TOML, SkillPath, Version};

use super::index::Index;
use super::{MAX_FILE_BYTES, MAX_SKILL_BYTES, no_file};
use crate::beneath::{self, MAX_DEPTH};
use crate::fault::{Fault, Result};
use crate::ground::TARGET;

/// Of a skill that is not valid so many errors are logged.
const MAX_ERRORS_LOGGED: usize = 5;

/// What a fresh file system comes with, for root alone: nobody misses a skill in it.
const OF_FILE_SYSTEM: &str = "lost+found";

/// Where a skill of the shelf is, and what of it is not in a listing.
#[derive(Debug)]
pub(crate) struct Shelved {
    /// Which of the configured directories.
    root: usize,
    /// Below it.
    path: String,
    manifest_json: Vec<u8>,
    files: Vec<SkillFile>,
}

impl Shelved {
    /// With manifest and files.
    pub(crate) fn skill(&self, head: &Skill) -> Skill {
        Skill {
            manifest_json: self.manifest_json.clone(),
            files: self.files.clone(),
            ..head.clone()
        }
    }
}

/// All skills of all configured directories.
#[derive(Debug)]
pub(crate) struct Shelf {
    index: Index<Shelved>,
    roots: Vec<OwnedFd>,
    unread: usize,
    /// Names of directories of which something was left off, as far as an operator names them after their skills.
    incomplete: BTreeSet<String>,
}

/// A configured directory while it is read.
struct Reading<'a> {
    root: &'a OwnedFd,
    /// Which of the configured directories.
    at: usize,
    shown: String,
    host: &'a Host,
}

impl Reading<'_> {
    fn full(&self, path: &str) -> String {
        match path {
            "." => self.shown.clone(),
            _ => format!("{}/{path}", self.shown),
        }
    }
}

/// Why a skill is left off.
enum Unfit {
    /// What it is cannot be known.
    Unread(Fault),
    Invalid(Vec<String>),
}

impl Shelf {
    /// Reads the directories. What is not a valid skill is left out and named in the log; what cannot be read is counted, too.
    pub(crate) fn scan(dirs: &[PathBuf], host: &Host) -> Result<Shelf> {
        let mut shelf = Shelf {
            index: Index::default(),
            roots: Vec::new(),
            unread: 0,
            incomplete: BTreeSet::new(),
        };
        for dir in dirs {
            let shown = dir.display().to_string();
            // The configured directory itself may be a symbolic link: the operator has named it.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            match rustix::fs::open(dir, flags, Mode::empty()) {
                Ok(root) => {
                    let reading = Reading {
                        root: &root,
                        at: shelf.roots.len(),
                        shown,
                        host,
                    };
                    shelf.scan_dir(&reading)?;
                    shelf.roots.push(root);
                }
                // Without it names that are the operator's could be published over.
                Err(Errno::NOENT) => {
                    return Err(Fault::Precondition(format!(
                        "the directory of skills {shown:?} is not there: make it, or take it out of read_only_skills (the gateway's skills.paths)"
                    )));
                }
                Err(errno) => return Err(Fault::os("open", &shown)(errno)),
            }
        }
        Ok(shelf)
    }

    /// Skills, and directories in which some may be, that are there and could not be read at the start: nobody sees them until
    /// the next one.
    pub(crate) fn unread(&self) -> usize {
        self.unread
    }

    /// Configured directories that have been removed since: nothing of what was in them can be run or read.
    pub(crate) fn gone(&self) -> usize {
        let is_gone =
            |root: &&OwnedFd| rustix::fs::fstat(root).is_ok_and(|stat| stat.st_nlink == 0);
        self.roots.iter().filter(is_gone).count()
    }

    /// The operator has something of this name that is not on the shelf: it is his, too.
    pub(crate) fn is_incomplete(&self, name: &str) -> bool {
        self.incomplete.contains(name)
    }

    pub(crate) fn index(&self) -> &Index<Shelved> {
        &self.index
    }

    pub(crate) fn read(&self, skill: &Shelved, path: &str) -> Result<Vec<u8>> {
        if !skill.files.iter().any(|file| file.path == path) {
            return Err(no_file(
                path,
                skill.files.iter().map(|file| file.path.as_str()),
            ));
        }
        let full = format!("{}/{path}", skill.path);
        beneath::read_file(self.root(skill)?, &full, MAX_FILE_BYTES).map_err(|fault| {
            match fault.or_not_found(|| format!("the skill has no file {path:?} any more")) {
                damage if damage.is_damage() => Fault::Corrupt(damage.to_string()),
                other => other,
            }
        })
    }

    pub(crate) fn tree(&self, skill: &Shelved) -> Result<OwnedFd> {
        beneath::open_dir(self.root(skill)?, &skill.path)
    }

    fn root(&self, skill: &Shelved) -> Result<&OwnedFd> {
        self.roots
            .get(skill.root)
            .ok_or_else(|| Fault::NotFound("the skill's directory is not open".to_owned()))
    }

    fn scan_dir(&mut self, reading: &Reading<'_>) -> Result<()> {
        let entries = beneath::entries(reading.root, &reading.shown)?;
        // The directory is a skill itself: what is in it belongs to that skill.
        if has_manifest(&entries) {
            return self.take(reading, ".");
        }
        for (name, kind) in entries {
            if !self.is_to_be_read(reading, &name, kind) {
                continue;
            }
            let below = self.list(reading, &name)?;
            if has_manifest(&below) {
                self.take(reading, &name)?;
                continue;
            }
            for (version, kind) in below {
                let path = format!("{name}/{version}");
                if self.is_to_be_read(reading, &path, kind)
                    && has_manifest(&self.list(reading, &path)?)
                {
                    self.take(reading, &path)?;
                }
            }
        }
        Ok(())
    }

    /// Is it a directory that may be a skill's? A link to one is told: somebody has meant something by it.
    fn is_to_be_read(&mut self, reading: &Reading<'_>, path: &str, kind: FileType) -> bool {
        if kind == FileType::Symlink {
            self.leave_off(reading, path, "it is a symbolic link, and none is followed");
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        kind == FileType::Directory && !name.starts_with('.') && path != OF_FILE_SYSTEM
    }

    /// What is in a directory; nothing when it cannot be read, which counts.
    fn list(&mut self, reading: &Reading<'_>, path: &str) -> Result<Vec<(String, FileType)>> {
        let listed =
            beneath::open_dir(reading.root, path).and_then(|fd| beneath::entries(fd, path));
        listed.or_else(|fault| self.miss(reading, path, fault).map(|()| Vec::new()))
    }

    /// Puts the skill in `path` on the shelf, or says why not.
    fn take(&mut self, reading: &Reading<'_>, path: &str) -> Result<()> {
        let full = reading.full(path);
        let (version, skill, mut place) = match examine(reading.root, path, &full) {
            Ok(examined) => examined,
            Err(Unfit::Unread(fault)) => return self.miss(reading, path, fault),
            Err(Unfit::Invalid(errors)) => {
                for error in errors.iter().take(MAX_ERRORS_LOGGED) {
                    self.leave_off(reading, path, error);
                }
                return Ok(());
            }
        };
        place.root = reading.at;
        let what = format!(
            "{} {} is on the shelf already, from another directory",
            skill.name, skill.version
        );
        let there = self.index.get(&skill.name, &version);
        let same = there.is_some_and(|there| there.skill.tree_sha256 == skill.tree_sha256);
        if !self.index.insert(version, skill, place) && !same {
            self.leave_off(reading, path, &what);
        }
        Ok(())
    }

    /// Goes on without what could not be read. A start that is short of descriptors or memory must not go on as if nothing were
    /// there.
    fn miss(&mut self, reading: &Reading<'_>, path: &str, fault: Fault) -> Result<()> {
        if fault.is_shortage() {
            return Err(fault);
        }
        self.unread += 1;
        self.leave_off(reading, path, &fault.to_string());
        Ok(())
    }

    fn leave_off(&mut self, reading: &Reading<'_>, path: &str, why: &str) {
        warn(reading.host, "left off the shelf", &reading.full(path), why);
        let name = path.split('/').next().unwrap_or(path);
        self.incomplete.insert(name.to_owned());
    }
}

/// Symbolic links and special files included: they are refused later, by name.
fn has_manifest(entries: &[(String, FileType)]) -> bool {
    entries.iter().any(|(name, _)| name == SKILL_TOML)
}

/// Reads and checks a whole skill. Errors begin with the file, line and column.
fn examine(root: &OwnedFd, path: &str, full: &str) -> Result<(Version, Skill, Shelved), Unfit> {
    let mut files = Vec::new();
    beneath::open_dir(root, path)
        .and_then(|dir| collect(&dir, "", 0, &mut 0, &mut files))
        .map_err(|fault| match fault {
            Fault::Os { .. } => Unfit::Unread(fault),
            other => Unfit::Invalid(vec![format!("{full}: {other}")]),
        })?;
    let valid = skillgate_skill::validate(&files, MAX_SKILL_BYTES).map_err(|problems| {
        let errors = problems.iter().filter(|problem| problem.is_error());
        let errors = errors.map(|problem| format!("{full}/{problem}"));
        Unfit::Invalid(errors.collect())
    })?;
    let manifest = &valid.manifest;
    let skill = Skill {
        read_only: true,
        name: manifest.name().to_string(),
        version: manifest.version().to_string(),
        namespace: manifest.namespace().to_string(),
        kind: manifest.kind().to_string(),
        description: manifest.description().to_owned(),
        tree_sha256: valid.tree_sha256,
        publisher: String::new(),
        manifest_json: Vec::new(),
        files: Vec::new(),
    };
    let file = |file: &skillgate_skill::SkillFile| SkillFile {
        path: file.path.to_string(),
        sha256: file.sha256.clone(),
        size_bytes: file.size_bytes,
    };
    let place = Shelved {
        root: 0,
        path: path.to_owned(),
        manifest_json: manifest.to_json().to_string().into_bytes(),
        files: valid.files.iter().map(file).collect(),
    };
    Ok((manifest.version().clone(), skill, place))
}

/// All files below `dir` with their bytes. Anything that is neither a file nor a directory refuses the skill.
fn collect(
    dir: &OwnedFd,
    above: &str,
    depth: usize,
    total: &mut u64,
    files: &mut Vec<(SkillPath, Vec<u8>)>,
) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Fault::Invalid(format!(
            "{above:?} is nested deeper than {MAX_DEPTH} directories"
        )));
    }
    for (name, kind) in beneath::entries(dir, above)? {
        let path = if above.is_empty() {
            name.clone()
        } else {
            format!("{above}/{name}")
        };
        match kind {
            FileType::Directory => collect(
                &beneath::open_dir(dir, &name)?,
                &path,
                depth + 1,
                total,
                files,
            )?,
            FileType::RegularFile => {
                let parsed =
                    SkillPath::parse(&path).map_err(|why| Fault::Invalid(why.to_string()))?;
                let bytes = beneath::read_file(dir, &name, MAX_FILE_BYTES)?;
                *total += bytes.len() as u64;
                // Before the next one is read: the check of the whole comes only when all of it is in memory.
                if *total > MAX_SKILL_BYTES || files.len() > skillgate_skill::files::FILES_MAX {
                    return Err(Fault::OutOfRange(format!(
                        "more than {MAX_SKILL_BYTES} bytes or {} files",
                        skillgate_skill::files::FILES_MAX
                    )));
                }
                files.push((parsed, bytes));
            }
            FileType::Symlink => {
                return Err(Fault::Invalid(format!(
                    "{path:?} is a symbolic link, and none is followed"
                )));
            }
            _ => return Err(Fault::Invalid(format!("{path:?} is not a regular file"))),
        }
    }
    Ok(())
}

fn warn(host: &Host, message: &str, path: &str, why: &str) {
    host.log(
        Level::Warn,
        TARGET,
        message,
        &[("path", path), ("reason", why)],
    );
}
