//! The skill that every runtime has (REQUIREMENTS D7), whatever directories an operator names.

use std::io;
use std::path::Path;

const NAME: &str = "skills.protocol.guide";
const FILES: [(&str, &str); 2] = [
    (
        "skill.toml",
        include_str!("../../skills/skills.protocol.guide/skill.toml"),
    ),
    (
        "SKILL.md",
        include_str!("../../skills/skills.protocol.guide/SKILL.md"),
    ),
];

/// Writes it below `root`, the first directory of the operator's shelf. A file is replaced whole, so that a reader
/// never sees half of one.
///
/// # Errors
/// What the file system says.
pub(super) fn write(root: &Path) -> io::Result<()> {
    let dir = root.join(NAME);
    std::fs::create_dir_all(&dir)?;
    for (name, text) in FILES {
        let path = dir.join(name);
        if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        let fresh = dir.join(format!(".{name}.new"));
        std::fs::write(&fresh, text)?;
        std::fs::rename(&fresh, &path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{NAME, write};

    #[test]
    fn a_damaged_copy_is_mended() {
        let root = tempfile::tempdir().unwrap();
        write(root.path()).unwrap();
        let file = root.path().join(NAME).join("SKILL.md");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("---\nname: Skills Protocol Guide\n"));
        std::fs::write(&file, "do evil").unwrap();
        write(root.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        assert_eq!(
            std::fs::read_dir(root.path().join(NAME)).unwrap().count(),
            2,
            "no leftovers"
        );
    }
}
