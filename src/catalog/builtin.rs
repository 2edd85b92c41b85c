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

/// Writes it below `root`, the first directory of the operator's shelf, and nothing else stays there. A file is replaced whole,
/// so that a reader never sees half of one.
///
/// # Errors
/// What the file system says.
pub(super) fn write(root: &Path) -> io::Result<()> {
    let dir = root.join(NAME);
    for dir in [root, &dir] {
        // What it leads to is somebody else's.
        if dir.is_symlink() {
            return Err(io::Error::other(format!(
                "{} is a link: remove it, since what else is in it would be removed",
                dir.display()
            )));
        }
    }
    std::fs::create_dir_all(&dir)?;
    // What another version has written would be served as the operator's own; what a start that was cut short has left is hidden,
    // and with a hidden file in it the directory is no skill.
    keep_only(root, &[NAME])?;
    keep_only(&dir, &FILES.map(|(name, _)| name))?;
    for (name, text) in FILES {
        let path = dir.join(name);
        let fresh = dir.join(format!(".{name}.new"));
        if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        let put = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &path));
        if put.is_err() {
            // What could not be written is what to tell; the next start tries this again.
            let _ = std::fs::remove_file(&fresh);
        }
        put?;
    }
    Ok(())
}

/// Removes what has another name than these.
fn keep_only(dir: &Path, names: &[&str]) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if names.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let path = entry.path();
        // A start that was cut short has left it, and that is no news.
        let is_ours = FILES
            .iter()
            .any(|(name, _)| entry.file_name() == *format!(".{name}.new"));
        if !is_ours {
            tracing::warn!(
                path = %path.display(),
                "what is not of this version is removed from the gateway's own directory; skills of yours belong into [skills].paths"
            );
        }
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(path)?,
            false => std::fs::remove_file(path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::{FILES, NAME, write};

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

    /// It would be on the operator's shelf.
    #[test]
    fn what_another_version_has_written_goes() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join(NAME);
        for old in [
            dir.join("references"),
            root.path().join("skills.protocol.older"),
        ] {
            std::fs::create_dir_all(&old).unwrap();
            std::fs::write(old.join("SKILL.md"), "as it was").unwrap();
        }
        std::fs::write(dir.join("NOTES.md"), "as it was").unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), root.path().join("link")).unwrap();
        write(root.path()).unwrap();
        let names = |dir: &Path| {
            let names = std::fs::read_dir(dir).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect::<BTreeSet<_>>()
        };
        assert_eq!(names(root.path()), BTreeSet::from([NAME.to_owned()]));
        assert_eq!(names(&dir), FILES.map(|(name, _)| name.to_owned()).into());
        assert!(elsewhere.path().is_dir(), "a link is not followed");
        // Nor where the directory itself is one.
        let linked = root.path().join("linked");
        std::fs::write(elsewhere.path().join("kept"), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &linked).unwrap();
        let why = write(&linked).unwrap_err().to_string();
        assert!(why.contains("linked is a link"), "{why}");
        assert!(elsewhere.path().join("kept").exists());
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
