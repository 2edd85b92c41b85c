//! Publishing: what came is checked whole, decided about, and then stored for good.

use std::sync::{Arc, Weak};

use serde_json::Value;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, PutSkill};
use skillgate_skill::{
    Bundle, Code, Manifest, PathError, Problem, SKILL_MD, SKILL_TOML, SkillPath, some_of_each,
};

use super::trees::Turn;
use super::{Catalog, Error, Skill, broken, content};
use crate::auth::Caller;

/// Problems that one answer to `create_skill` names.
const PROBLEMS_TOLD_MAX: usize = 8;

/// A skill to publish, as it came.
#[derive(Debug)]
pub struct NewSkill {
    /// skill.toml as JSON text.
    pub manifest: String,
    /// SKILL.md.
    pub skill_md: String,
    /// Path and content of the others.
    pub files: Vec<(String, Vec<u8>)>,
}

/// A skill that has been checked and is not yet published.
#[derive(Debug)]
pub struct Draft {
    skill: Arc<Skill>,
    put: PutSkill,
    warnings: Vec<String>,
}

impl Draft {
    /// As it would be.
    pub fn skill(&self) -> Arc<Skill> {
        self.skill.clone()
    }
    /// What does not refuse it, and is hardly what was meant: a version that is published stays as it is.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
    /// Files, skill.toml and SKILL.md included.
    pub fn file_count(&self) -> usize {
        self.put.files.len()
    }
    /// Bytes of all files.
    pub fn bytes(&self) -> usize {
        self.put
            .files
            .iter()
            .map(|(_, content)| content.len())
            .sum()
    }
}

impl Catalog {
    /// Checks a new skill whole, before anybody decides about it. `room` is what keeps the room of what came, which may be
    /// large.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::PathEscape`], [`Error::LanguageUnsupported`], [`Error::TooLarge`].
    pub async fn draft(
        &self,
        caller: &Caller,
        new: NewSkill,
        room: impl Send + 'static,
    ) -> Result<Draft, Error> {
        let (files_max, bytes_max) = (self.0.files_max, self.0.bytes_max);
        let bundle = with_room(room, move || assemble(new, files_max, bytes_max)).await?;
        let warnings = warnings(&bundle.skill);
        let skillgate_skill::Skill {
            manifest,
            frontmatter,
            files,
            tree_sha256,
            ..
        } = bundle.skill;
        let manifest_json = manifest.to_json();
        let put = PutSkill {
            tenant: caller.tenant().to_owned(),
            name: manifest.name().to_string(),
            version: manifest.version().to_string(),
            namespace: manifest.namespace().to_string(),
            kind: manifest.kind().as_str().to_owned(),
            description: manifest.description().to_owned(),
            publisher: caller.subject().id.clone(),
            tree_sha256,
            manifest_json: manifest_json.to_string().into_bytes(),
            files: bundle
                .files
                .into_iter()
                .map(|(path, content)| (path.to_string(), content))
                .collect(),
        };
        let described = |file: skillgate_skill::SkillFile| model::SkillFile {
            path: file.path.to_string(),
            sha256: file.sha256,
            size_bytes: file.size_bytes,
        };
        let record = model::Skill {
            read_only: false,
            name: put.name.clone(),
            version: put.version.clone(),
            namespace: put.namespace.clone(),
            kind: put.kind.clone(),
            description: put.description.clone(),
            tree_sha256: put.tree_sha256.clone(),
            publisher: put.publisher.clone(),
            manifest_json: Vec::new(),
            files: files.into_iter().map(described).collect(),
        };
        Ok(Draft {
            skill: Arc::new(Skill {
                record,
                manifest,
                manifest_json,
                frontmatter: Value::Object(frontmatter),
                store: Weak::new(),
                turn: Turn::default(),
                is_unread: false,
            }),
            put,
            warnings,
        })
    }

    /// Publishes a draft: durable when this returns (REQUIREMENTS K7, R9). `room` as before: the store may have it for longer than
    /// its caller is there.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] for a name of the operator's and when the version is there with other content,
    /// [`Error::TooLarge`] when the store says so, [`Error::ReadOnly`], [`Error::NoSkills`], [`Error::Store`].
    pub async fn publish(
        &self,
        draft: Draft,
        room: impl Send + 'static,
    ) -> Result<model::Skill, Error> {
        let (name, version) = (draft.put.name.clone(), draft.put.version.clone());
        // Not told by the draft: it would say to everybody which names the operator uses.
        if self.is_operators(&draft.put.tenant, &name).await? {
            let message =
                format!("{name} is one of the operator's own skills: publish under another name");
            return Err(Error::AlreadyExists { message });
        }
        let store = self.0.store.get().await.map_err(Error::Store)?;
        if !store.keeps_skills() {
            return Err(Error::NoSkills);
        }
        let put = store.skill_put_with(draft.put, room).await;
        let there = put.map_err(|error| not_stored(error, &name, &version))?;
        match there.name == name && there.version == version {
            true => Ok(there),
            false => Err(broken(&there, "the store answered with another skill")),
        }
    }

    /// Also where no version of it could be put on the shelf: it will be there again after a restart.
    async fn is_operators(&self, tenant: &str, name: &str) -> Result<bool, Error> {
        if self.0.shelf_latest.contains_key(name) {
            return Ok(true);
        }
        match self.0.shelf.skill_get(tenant, name, "").await {
            Err(error) if error.code == abi::E_NOT_FOUND => Ok(false),
            Err(error) if error.code != abi::E_CORRUPT => Err(Error::Store(error)),
            _ => Ok(true),
        }
    }
}

fn not_stored(error: model::Error, name: &str, version: &str) -> Error {
    match error.code {
        abi::E_ALREADY_EXISTS => Error::AlreadyExists {
            message: format!(
                "{name} {version} is already published with other content, and a version never changes: choose a higher version"
            ),
        },
        abi::E_OUT_OF_RANGE => Error::TooLarge {
            message: format!("{name} {version} is larger than what the store keeps of one skill"),
        },
        abi::E_UNIMPLEMENTED => Error::ReadOnly,
        _ => Error::Store(error),
    }
}

/// Hashing and parsing up to a body's worth of files is work for a thread that may take its time. The thread has the room, too: a
/// caller that goes away does not end what it has begun, and that is as large as before.
async fn with_room<T: Send + 'static>(
    room: impl Send + 'static,
    check: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let checked = tokio::task::spawn_blocking(move || {
        let _room = room;
        check()
    });
    checked.await.unwrap_or_else(|_| {
        Err(Error::Invalid {
            pointer: String::new(),
            message: "the skill could not be checked".into(),
        })
    })
}

fn assemble(new: NewSkill, files_max: usize, bytes_max: u64) -> Result<Bundle, Error> {
    if new.files.len() + 2 > files_max {
        return Err(Error::TooLarge {
            message: format!("a skill has at most {files_max} files (skills.max_files)"),
        });
    }
    let manifest =
        Manifest::from_json(&new.manifest).map_err(|error| refused(error.problems(), bytes_max))?;
    let mut files = Vec::with_capacity(new.files.len());
    for (index, (file, content)) in new.files.into_iter().enumerate() {
        let path = SkillPath::parse(&file)
            .map_err(|error| misplaced(error, &format!("/files/{index}/path")))?;
        // Nobody could read it afterwards.
        if content.len() as u64 > content::BYTES_MAX {
            let (bytes, most) = (content.len(), content::BYTES_MAX);
            let message =
                format!("{path} has {bytes} bytes, and a file of a skill has at most {most}");
            return Err(Error::TooLarge { message });
        }
        files.push((path, content));
    }
    skillgate_skill::assemble(&manifest, &new.skill_md, files, bytes_max)
        .map_err(|problems| refused(&problems, bytes_max))
}

/// A path that is none: out of the skill, or outside the grammar.
pub(super) fn misplaced(error: PathError, pointer: &str) -> Error {
    match error.is_escape() {
        true => Error::PathEscape {
            why: error.to_string(),
        },
        false => Error::Invalid {
            pointer: pointer.to_owned(),
            message: error.to_string(),
        },
    }
}

/// The problems of a refused skill as one error: the first decides its kind, all are told.
fn refused(problems: &[Problem], bytes_max: u64) -> Error {
    let errors: Vec<Problem> = problems
        .iter()
        .filter(|problem| problem.is_error())
        .map(as_sent)
        .collect();
    let message = told(&errors).join("\n");
    let Some(first) = errors.first() else {
        return Error::Invalid {
            pointer: String::new(),
            message: "the skill was refused".into(),
        };
    };
    match first.code {
        Code::PathEscape => Error::PathEscape {
            why: first.message.clone(),
        },
        Code::LanguageUnsupported => Error::LanguageUnsupported {
            message: first.message.clone(),
        },
        Code::TooLarge if first.file == ALL_FILES => Error::TooLarge {
            message: format!("{message} (skills.max_bytes = {bytes_max})"),
        },
        Code::TooLarge => Error::TooLarge { message },
        _ => Error::Invalid {
            pointer: pointer(first),
            message,
        },
    }
}

/// What an author should look at, of what came.
fn warnings(skill: &skillgate_skill::Skill) -> Vec<String> {
    let warnings: Vec<Problem> = skill.warnings.iter().map(as_sent).collect();
    told(&warnings)
}

/// A line for each, with what to do about it; of many some of each kind, and how many more there are of which.
pub(super) fn told(problems: &[Problem]) -> Vec<String> {
    let line = |problem: &Problem| format!("{problem:#}").replace("\n  ", "; ");
    let (shown, left) = some_of_each(problems.to_vec(), PROBLEMS_TOLD_MAX);
    let mut lines: Vec<String> = shown.iter().map(line).collect();
    if !left.is_empty() {
        let mut kinds: Vec<(Code, usize)> = Vec::new();
        for problem in &left {
            match kinds.iter_mut().find(|(code, _)| *code == problem.code) {
                Some((_, number)) => *number += 1,
                None => kinds.push((problem.code, 1)),
            }
        }
        let kinds = kinds
            .iter()
            .map(|(code, number)| format!("{number} {}", code.as_str()));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        lines.push(format!("and {} more: {kinds}", left.len()));
    }
    lines
}

/// What problems of all files together are said of.
const ALL_FILES: &str = "files";
/// What problems of a manifest are said of that came as JSON.
const MANIFEST: &str = "manifest";

/// The skill.toml that was made of the manifest has been seen by nobody else: what is said of it is about what came.
fn as_sent(problem: &Problem) -> Problem {
    let mut problem = problem.clone();
    if problem.file == SKILL_TOML {
        problem.file = MANIFEST.to_owned();
        (problem.line, problem.column) = (None, None);
    }
    problem
}

/// Where in `create_skill`'s parameters a problem is.
fn pointer(problem: &Problem) -> String {
    match problem.file.as_str() {
        MANIFEST => format!("/manifest{}", problem.pointer),
        SKILL_MD => "/skill_md".into(),
        _ => "/files".into(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn what_a_caller_that_has_gone_had_sent_keeps_its_room_until_it_is_looked_at() {
        let one_thread = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        one_thread.block_on(async {
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || gone.recv().unwrap_err());
            let room = Arc::new(());
            let mut asked = Box::pin(with_room(room.clone(), || Ok(())));
            assert!(asked.as_mut().now_or_never().is_none(), "it waits");
            drop(asked);
            assert_eq!(Arc::strong_count(&room), 2);
            drop(go);
            busy.await.unwrap();
            with_room((), || Ok(())).await.unwrap();
            assert_eq!(Arc::strong_count(&room), 1);
        });
    }

    #[test]
    fn a_refusal_is_about_what_came() {
        let new = |manifest: &str, file: &str| NewSkill {
            manifest: format!(r#"{{"name":"a","version":"1.0.0","description":"x",{manifest}}}"#),
            skill_md: "# A\n".into(),
            files: vec![(file.into(), vec![0; 2000])],
        };
        // The limit that the operator can raise is named where it is the one.
        let tags = format!(r#""kind":"instruction","tags":{:?}"#, ["t"; 65]);
        for (new, named) in [
            (new(&tags, "a"), false),
            (new(r#""kind":"instruction""#, "a"), true),
        ] {
            let error = assemble(new, 10, 2000).map(drop).unwrap_err();
            assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
            assert_eq!(
                error.to_string().contains("skills.max_bytes"),
                named,
                "{error}"
            );
        }
        // Nobody has sent a skill.toml.
        let action = r#""kind":"action","runtime":{"language":"python","entrypoint":"main.py","export":"main"}"#;
        let error = assemble(new(action, "code/main.py"), 10, 9000)
            .map(drop)
            .unwrap_err();
        let Error::Invalid { pointer, message } = error else {
            panic!("{error:?}");
        };
        assert_eq!(pointer, "/manifest/runtime/entrypoint");
        let said = "manifest:/runtime/entrypoint: error: entrypoint \"main.py\" is not among the files; \
             help: it is a path among the files, such as \"code/main.py\"";
        assert!(message.starts_with(said), "{message}");
    }

    #[test]
    fn what_is_hardly_meant_is_told_of_what_came() {
        let manifest = |more: &str| {
            format!(
                r#"{{"name":"a","version":"1.0.0","description":"x","kind":"instruction",{more}}}"#
            )
        };
        let warned = |more: &str| {
            let new = NewSkill {
                manifest: manifest(more),
                skill_md: "# A\n".into(),
                files: Vec::new(),
            };
            warnings(&assemble(new, 10, 9000).unwrap().skill)
        };
        assert!(warned(r#""permissions":{"secrets":["A"]},"mine":1"#).is_empty());
        assert_eq!(
            warned(r#""permision":{"network":[]},"permissions.secrets":["A"]"#),
            [
                "manifest:/permision: warning: \"permision\" is not known here and has no effect; help: did you mean permissions?",
                "manifest:/permissions.secrets: warning: \"permissions.secrets\" is not known here and has no effect; help: write it in permissions"
            ]
        );
        let cut_off = NewSkill {
            manifest: r#"{"name":"a","version":"1.0.0","description":"x","kind":"action",
                "runtime":{"language":"python","entrypoint":"code/main.py","export":"main"}}"#
                .into(),
            skill_md: "# A\n".into(),
            files: vec![(
                "code/main.py".into(),
                b"def main(args):\n    return {".into(),
            )],
        };
        assert_eq!(
            warnings(&assemble(cut_off, 10, 9000).unwrap().skill),
            [
                "code/main.py:2: warning: `{` is never closed; help: Python cannot read the file, so no run of the skill can begin: correct it"
            ]
        );
        let many: Vec<String> = (0..9).map(|n| format!("\"network{n}\":1")).collect();
        let many = warned(&many.join(","));
        assert_eq!(
            (many.len(), many[8].as_str()),
            (9, "and 1 more: 1 unknown_key")
        );
    }

    #[test]
    fn no_kind_of_warning_is_hidden_by_many_of_another() {
        let file = |n: usize, ending: &str| format!("code/m{n}.{ending}");
        let broken = (0..10).map(|n| (file(n, "py"), b"$".to_vec()));
        let compiled = (0..2).map(|n| (file(n, "pyc"), Vec::new()));
        let entry = ("code/main.py".to_owned(), b"x = 1\n".to_vec());
        let new = NewSkill {
            manifest: r#"{"name":"a","version":"1.0.0","description":"x","kind":"action","tag":1,
                "runtime":{"language":"python","entrypoint":"code/main.py","export":"main"}}"#
                .into(),
            skill_md: "# A\n".into(),
            files: broken.chain(compiled).chain([entry]).collect(),
        };
        let told = warnings(&assemble(new, 20, 9000).unwrap().skill);
        assert_eq!(told.len(), PROBLEMS_TOLD_MAX + 1, "{told:#?}");
        let begins = [
            "manifest:/tag: warning: \"tag\" is not known",
            "code/main.py: warning: no definition of `main`",
            "code/m0.py:1: warning:",
            "code/m1.py:1: warning:",
            "code/m2.py:1: warning:",
            "code/m3.py:1: warning:",
            "code/m0.pyc: warning: compiled code",
            "code/m1.pyc: warning: compiled code",
            "and 6 more: 6 python_syntax",
        ];
        for (told, begins) in told.iter().zip(begins) {
            assert!(told.starts_with(begins), "{told}");
        }
    }

    #[test]
    fn what_is_too_large_is_told_as_that() {
        let new = |bytes: u64| NewSkill {
            manifest: r#"{"name":"a","version":"1.0.0","description":"x","kind":"instruction"}"#
                .into(),
            skill_md: "---\nname: A\nshort_description: s\n---\n\n# A\n".into(),
            files: vec![("resources/a".into(), vec![0; bytes as usize])],
        };
        let most = content::BYTES_MAX;
        let message = "resources/a has 16777217 bytes, and a file of a skill has at most 16777216";
        let error = assemble(new(most + 1), 10, 4 * most).map(drop).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
        assert_eq!(error.to_string(), message);
        assemble(new(most), 10, 4 * most).map(drop).unwrap();
        // The manifest and SKILL.md are files, too.
        let error = assemble(new(1), 2, most).map(drop).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "a skill has at most 2 files (skills.max_files)"
        );
        assemble(new(1), 3, most).map(drop).unwrap();

        let store = |code| not_stored(model::Error::new(code, "of the store"), "a", "1.0.0");
        let error = store(abi::E_OUT_OF_RANGE);
        assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
        let message = "a 1.0.0 is larger than what the store keeps of one skill";
        assert_eq!(error.to_string(), message);
        assert!(matches!(store(abi::E_UNIMPLEMENTED), Error::ReadOnly));
        assert!(matches!(store(abi::E_INTERNAL), Error::Store(_)));
    }
}
