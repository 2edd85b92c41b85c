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
        let fresh = dir.join(format!(".{name}.new"));
        // Left by a start that was cut short. With a hidden file in it the directory is no skill.
        remove(&fresh)?;
        if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        let put = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &path));
        if put.is_err() {
            // What could not be written is what to tell; the next start tries this again.
            let _ = remove(&fresh);
        }
        put?;
    }
    Ok(())
}

/// A file that need not be there.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
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

    /// A directory with a hidden file in it is no skill.
    #[test]
    fn what_a_start_that_was_cut_short_has_left_goes() {
        let root = tempfile::tempdir().unwrap();
        write(root.path()).unwrap();
        let dir = root.path().join(NAME);
        let files = || std::fs::read_dir(&dir).unwrap().count();
        // Before the rename, of which another start has made one.
        std::fs::write(dir.join(".SKILL.md.new"), "---\nname: Ski").unwrap();
        write(root.path()).unwrap();
        assert_eq!(files(), 2, "beside a sound copy");

        std::fs::remove_file(dir.join("SKILL.md")).unwrap();
        std::fs::create_dir_all(dir.join("SKILL.md/in-the-way")).unwrap();
        write(root.path()).unwrap_err();
        assert_eq!(files(), 2, "after an error");
    }
}
