//! The bundled skills are valid skills.

use std::fs;
use std::path::Path;

use skillgate_skill::path::SkillPath;

/// All files of one skill: far under what a gateway takes.
const BYTES_MAX: u64 = 16 << 20;

#[test]
fn bundled_skills_are_valid() {
    let skills = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../skills");
    let mut count = 0;
    for entry in fs::read_dir(skills).expect("the bundled skills are readable") {
        let directory = entry.expect("a readable entry").path();
        if !directory.is_dir() {
            continue;
        }
        let name = directory
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a UTF-8 name")
            .to_owned();
        let mut files = Vec::new();
        collect(&directory, &directory, &mut files);
        let skill = skillgate_skill::bundle::validate(&files, BYTES_MAX)
            .unwrap_or_else(|problems| panic!("{name}: {problems:#?}"));
        assert!(skill.warnings.is_empty(), "{name}: {:#?}", skill.warnings);
        assert_eq!(
            skill.manifest.name().as_str(),
            name,
            "a skill's directory has its name"
        );
        count += 1;
    }
    assert!(count >= 6, "only {count} bundled skills found");
}

fn collect(root: &Path, directory: &Path, into: &mut Vec<(SkillPath, Vec<u8>)>) {
    for entry in fs::read_dir(directory).expect("a readable skill directory") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            collect(root, &path, into);
            continue;
        }
        let relative = path
            .strip_prefix(root)
            .ok()
            .and_then(Path::to_str)
            .expect("a UTF-8 path below the skill");
        let name =
            SkillPath::parse(relative).unwrap_or_else(|problem| panic!("{relative}: {problem}"));
        into.push((name, fs::read(&path).expect("a readable file")));
    }
}
