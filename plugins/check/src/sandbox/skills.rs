//! Skills that a run calls or imports, as the gateway mounts them: as a directory, or as the tar of one.

use std::fs::{self, File, Permissions};
use std::io::{self, Seek as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use skillgate_plugin_sdk::model::{Mount, RunRequest, RunSkill, Source};

use super::{output_of, request};
use crate::bench::{Bench, Done, demand};

const NAME: &str = "check.called";
/// What a run calls reads a file of its own, imports its neighbour, and is not called `main`.
const FILES: [(&str, &str); 3] = [
    (
        "code/main.py",
        "import neighbour\ndef answer(args):\n    return [args, neighbour.VALUE, open('/skills/check.called/data.txt').read()]\n",
    ),
    ("code/neighbour.py", "VALUE = 'beside it'\n"),
    ("data.txt", "as it was"),
];
const IMPORTS: &str =
    "from skills.check.called import answer\ndef main(args):\n    return answer(args)\n";

/// The skill as a store has it that keeps directories. A sandbox whose user is nobody has to be able to read it.
fn directory(at: &Path) -> io::Result<OwnedFd> {
    let readable = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    for dir in [at.to_owned(), at.join("code")] {
        fs::create_dir(&dir)?;
        readable(&dir, 0o755)?;
    }
    for (path, text) in FILES {
        fs::write(at.join(path), text)?;
        readable(&at.join(path), 0o644)?;
    }
    Ok(File::open(at)?.into())
}

/// As one has it that keeps none.
fn archive() -> io::Result<OwnedFd> {
    let mut tar = tar::Builder::new(tempfile::tempfile()?);
    for (path, text) in FILES {
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, text.as_bytes())?;
    }
    let mut file = tar.into_inner()?;
    file.rewind()?;
    Ok(file.into())
}

/// `code` empty: the skill itself is called.
fn asks(source: Source, code: &str) -> RunRequest {
    let (skill, function) = match code {
        "" => (NAME, "answer"),
        _ => ("", "main"),
    };
    RunRequest {
        skill: skill.into(),
        function: function.into(),
        args_json: br#"{"n":1}"#.to_vec(),
        skills: vec![RunSkill {
            name: NAME.into(),
            version: "1.0.0".into(),
            entrypoint: "code/main.py".into(),
            function: "answer".into(),
        }],
        mounts: vec![Mount {
            target: format!("/skills/{NAME}"),
            read_only: true,
            source,
            sha256: String::new(),
            size_bytes: 0,
        }],
        ..request(code)
    }
}

pub(crate) fn skills(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let kept = directory(&bench.dir.join("skill"))?;
    let kinds = [
        (
            "a directory (SKG_SRC_FD)",
            Source::Fd(kept.try_clone()?),
            Source::Fd(kept),
        ),
        (
            "a tar (SKG_SRC_TAR)",
            Source::Tar(archive()?),
            Source::Tar(archive()?),
        ),
    ];
    let wanted = json!([{"n": 1}, "beside it", "as it was"]);
    for (kind, called, imported) in kinds {
        for (what, source, code) in [
            ("a skill that is called", called, ""),
            ("code that imports a skill", imported, IMPORTS),
        ] {
            let what = format!("{what}, mounted from {kind}");
            let got = output_of(bench, &sandbox, &what, asks(source, code), &Arc::default())?;
            demand(got == wanted, || {
                format!("{what}: the output is {got}, and has to be {wanted}")
            })?;
        }
    }
    Ok(())
}
