//! Whether the files that a store names of a skill are those that its digest is of. By the digest a skill is decided about; by
//! its files' own digests what is read of it is checked. A store of somebody else may have the one without the other.

use skillgate_plugin_sdk::model;
use skillgate_skill::{SKILL_MD, SKILL_TOML, SkillPath, tree_digest};

/// An error says how they are not, as a sentence. Also of the operator's own skills: he changes files as he likes, and a record
/// is of one moment.
pub(super) fn of_its_digest(record: &model::Skill) -> Result<(), String> {
    for file in &record.files {
        // A path with a line's end in it would pass for two files: the digest is over lines.
        SkillPath::parse(&file.path).map_err(|error| format!("its list of files: {error}"))?;
    }
    let is_after = |pair: &[model::SkillFile]| pair[0].path < pair[1].path;
    if !record.files.windows(2).all(is_after) {
        return Err("its list of files is not sorted by path, each once".into());
    }
    for needed in [SKILL_MD, SKILL_TOML] {
        if !record.files.iter().any(|file| file.path == needed) {
            return Err(format!("its list of files has no {needed}"));
        }
    }
    let digests = record.files.iter();
    let digests = digests.map(|file| (file.path.as_str(), file.sha256.as_str()));
    match tree_digest(digests) == record.tree_sha256 {
        true => Ok(()),
        false => Err("its digest is not that of its files".into()),
    }
}

#[cfg(test)]
mod tests {
    use skillgate_skill::file_digest;

    use super::*;

    fn record(files: &[(&str, &str)]) -> model::Skill {
        let files: Vec<_> = files
            .iter()
            .map(|(path, content)| model::SkillFile {
                path: (*path).to_owned(),
                sha256: file_digest(content.as_bytes()),
                size_bytes: content.len() as u64,
            })
            .collect();
        let digests = files
            .iter()
            .map(|file| (file.path.as_str(), file.sha256.as_str()));
        model::Skill {
            tree_sha256: tree_digest(digests),
            files,
            ..model::Skill::default()
        }
    }

    #[test]
    fn a_list_of_files_is_that_of_the_digest() {
        let whole = record(&[
            ("SKILL.md", "1"),
            ("code/main.py", "2"),
            ("skill.toml", "3"),
        ]);
        assert_eq!(of_its_digest(&whole), Ok(()));
        let changed = |change: &dyn Fn(&mut model::Skill)| {
            let mut record = whole.clone();
            change(&mut record);
            of_its_digest(&record).unwrap_err()
        };
        let other = "its digest is not that of its files";
        assert_eq!(changed(&|record| drop(record.files.remove(1))), other);
        assert_eq!(
            changed(&|record| record.files[1].path = "code/more.py".into()),
            other
        );
        assert_eq!(
            changed(&|record| record.files[1].sha256 = file_digest(b"3")),
            other
        );
        assert_eq!(
            changed(&|record| record.tree_sha256 = record.tree_sha256.to_uppercase()),
            other
        );
        let unsorted = "its list of files is not sorted by path, each once";
        assert_eq!(changed(&|record| record.files.reverse()), unsorted);
        let twice = |record: &mut model::Skill| record.files.push(record.files[1].clone());
        assert_eq!(changed(&twice), unsorted);
        // What is read of them would be held against nothing.
        for (there, missing) in [("skill.toml", "SKILL.md"), ("SKILL.md", "skill.toml")] {
            let why = of_its_digest(&record(&[(there, "1")])).unwrap_err();
            assert_eq!(why, format!("its list of files has no {missing}"));
        }
        // Two files in one line: of the digest of both.
        let joined = |record: &mut model::Skill| {
            let first = record.files.remove(0);
            let path = format!("SKILL.md\0{}\n{}", first.sha256, record.files[0].path);
            record.files[0].path = path;
        };
        let why = changed(&joined);
        assert!(why.starts_with("its list of files: path "), "{why}");
        // Kept from when such a path was still taken: this skill is refused, and no other.
        let before = record(&[
            ("SKILL.md", "1"),
            ("code /main.py", "2"),
            ("skill.toml", "3"),
        ]);
        let why = of_its_digest(&before).unwrap_err();
        let said = "its list of files: path \"code /main.py\" has a component that begins or ends with a space";
        assert!(why.starts_with(said), "{why}");
    }
}
