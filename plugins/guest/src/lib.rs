//! What runs inside every sandbox: the Python bootstrap and the helper package `runtime`, as files to embed.
//!
//! A sandbox plugin writes [`FILES`] to a read-only directory (`/usr/lib/skillgate` inside), starts
//! `python -I -S -B /usr/lib/skillgate/bootstrap.py` (Python 3.9 or later) with the run's channel at descriptor 3,
//! and answers its frames. Every vendor gives the same files, so a skill means the same everywhere.
//!
//! Inside, `bootstrap.py` calls `_skillgate/main.py`:
//! `channel` reads the job, `imports` makes the mounted skills importable (`loading` loads them, `not_found` says what is none of
//! theirs), the code runs, `strict_json` checks what it returned or `failure` describes what it raised (`raised` asks it, `hints`
//! says what to do), `left` and `unfinished` warn of files that it does not keep and of what it has not waited for, and `channel`
//! sends the result. A job that says `compile` gives the code of a skill, which later jobs may bring along (`compiled`). `library`
//! changes modules of the standard library that work on a skill's behalf, and `spawned` is how an interpreter that the code starts
//! finds all of this.

#![forbid(unsafe_code)]

macro_rules! files {
    ($($path:literal),+ $(,)?) => {
        &[$(($path, include_bytes!(concat!("../python/", $path)))),+]
    };
}

/// Path relative to the library directory inside, and content. Directories are implied; mode 0444 is enough.
pub const FILES: &[(&str, &[u8])] = files![
    "bootstrap.py",
    "_skillgate/__init__.py",
    "_skillgate/channel.py",
    "_skillgate/compiled.py",
    "_skillgate/failure.py",
    "_skillgate/hints.py",
    "_skillgate/imports.py",
    "_skillgate/left.py",
    "_skillgate/library.py",
    "_skillgate/loading.py",
    "_skillgate/main.py",
    "_skillgate/machine.py",
    "_skillgate/memory.py",
    "_skillgate/not_found.py",
    "_skillgate/raised.py",
    "_skillgate/rehearsal/main.py",
    "_skillgate/spawned.py",
    "_skillgate/state.py",
    "_skillgate/strict_json.py",
    "_skillgate/text.py",
    "_skillgate/unfinished.py",
    "runtime/__init__.py",
    "runtime/blobs.py",
    "runtime/log.py",
    "runtime/run.py",
];

/// The file of [`FILES`] to start.
pub const BOOTSTRAP: &str = "bootstrap.py";
