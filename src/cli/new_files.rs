//! What `skill new` and `plugin new` share: a directory that was not there before, with files to start from, and how it is
//! named in a command.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::Exit;
use super::failure::Failure;

/// Makes `dir`, and all that is above it, and writes the files (path below it, text). Nothing that is there is written over.
pub(super) fn write<N: AsRef<Path>>(
    dir: &Path,
    files: impl IntoIterator<Item = (N, String)>,
) -> Result<(), Failure> {
    let failed = |path: &Path, error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::new(
            Exit::Runtime,
            format!("{} is there already", path.display()),
        )
        .hint("choose another name, or another --dir"),
        _ => Failure::new(
            Exit::Runtime,
            format!("cannot make {}: {error}", path.display()),
        ),
    };
    if let Some(above) = dir.parent() {
        fs::create_dir_all(above).map_err(|error| failed(above, error))?;
    }
    fs::create_dir(dir).map_err(|error| failed(dir, error))?;
    for (name, text) in files {
        let path = dir.join(name);
        if let Err(error) = write_one(&path, &text) {
            // A half would be in the way of a second try, and nobody else has had anything in it.
            let _nothing_left_to_say = fs::remove_dir_all(dir);
            return Err(failed(&path, error));
        }
    }
    Ok(())
}

fn write_one(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// A path as a shell takes it for one word.
pub(super) fn in_shell(path: &str) -> String {
    let bare = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !path.starts_with('-') && path.chars().all(bare) {
        return path.to_owned();
    }
    // `./`: nor for an option.
    let dot = if path.starts_with('-') { "./" } else { "" };
    format!("'{dot}{}'", path.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::in_shell;

    #[test]
    fn a_path_is_one_word_for_the_shell() {
        for name in [
            "a b",
            "it's",
            "$HOME",
            "a;b",
            "*",
            "`x`",
            "a\"b",
            "plain/päth-1.so",
        ] {
            let echo = format!("printf %s {}", in_shell(name));
            let said = std::process::Command::new("sh")
                .args(["-c", &echo])
                .output();
            assert_eq!(String::from_utf8_lossy(&said.unwrap().stdout), name);
        }
        assert_eq!(in_shell("plain/päth-1.so"), "plain/päth-1.so");
        assert_eq!(in_shell("-f/x"), "'./-f/x'");
    }
}
