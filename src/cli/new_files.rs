//! What `skill new` and `plugin new` share: a directory that was not there before, with files to start from.

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
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| failed(parent, error))?;
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|error| failed(&path, error))?;
        file.write_all(text.as_bytes())
            .map_err(|error| failed(&path, error))?;
    }
    Ok(())
}
