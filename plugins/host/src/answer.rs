//! A plugin's answers: C structs copied into plain values, with every size bounded and every text checked. A plugin's
//! huge answer is an error, not an allocation.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{
    BlobStat, Content, Health, RunResult, SandboxCaps, Skill, SkillFile, SkillPage,
};
use skillgate_plugin_sdk::wire::{Malformed, Reader};

use crate::first;

type Read<T> = Result<T, Malformed>;

/// Most bytes of one answer.
pub(crate) const ANSWER_BYTES: usize = 64 << 20;
/// Most bytes of a name, id, digest, MIME type.
pub(crate) const NAME_BYTES: usize = 1024;
/// Most bytes of a blob's id behind its [`BLOB_ID_BEGINS`].
const BLOB_ID_BYTES: usize = 123;
const BLOB_ID_BEGINS: &str = "blob:";
/// Most bytes of a description, summary, message.
pub(crate) const TEXT_BYTES: usize = 1 << 20;
/// Most bytes of a text that is only shown; what is longer is cut.
pub(crate) const SHOWN_BYTES: usize = 64 << 10;
/// Most bytes of a manifest or a report.
pub(crate) const DOCUMENT_BYTES: usize = 8 << 20;
/// Most files of a skill.
pub(crate) const FILES: u32 = 100_000;
/// Most output blobs of a run.
pub(crate) const OUTPUT_BLOBS: u32 = 10_000;
/// Most bytes of a run's output when the request sets no limit.
const OUTPUT_BYTES: u64 = 16 << 20;

/// # Safety
/// As [`take_fd`]'s: here nothing is taken.
fn check_fd(fd: abi::Fd, what: &str) -> Read<()> {
    // The contract's descriptors are opened close-on-exec. Standard input, output and error are not: a struct that was
    // only zeroed does not make the host close its own.
    // SAFETY: fcntl with F_GETFD reads a flag of a number that need not even be open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    if flags < 0 {
        return Err(Malformed(format!("{what}: {fd} is not an open descriptor")));
    }
    if flags & libc::FD_CLOEXEC == 0 {
        return Err(Malformed(format!(
            "{what}: descriptor {fd} is not close-on-exec"
        )));
    }
    Ok(())
}

/// A descriptor is what it is said to be, a type of file (`S_IF*`): reading from a pipe or a socket in the place of a file
/// would wait for as long as its other end likes.
pub(crate) fn check_type(fd: abi::Fd, expected: libc::mode_t, what: &str) -> Read<()> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a number that need not even be open, and memory for a stat.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Malformed(format!("{what}: cannot be looked at: {error}")));
    }
    // SAFETY: fstat has succeeded, and so filled it.
    let found = unsafe { stat.assume_init() }.st_mode & libc::S_IFMT;
    if found != expected {
        return Err(Malformed(format!(
            "{what}: is a {} instead of a {}",
            type_name(found),
            type_name(expected)
        )));
    }
    Ok(())
}

fn type_name(kind: libc::mode_t) -> &'static str {
    match kind {
        libc::S_IFREG => "regular file",
        libc::S_IFDIR => "directory",
        libc::S_IFSOCK => "socket",
        libc::S_IFIFO => "pipe",
        libc::S_IFCHR => "character device",
        libc::S_IFBLK => "block device",
        _ => "thing that has no type of file",
    }
}

/// What has to be so of a descriptor that is taken.
fn check_given(fd: abi::Fd, expected: libc::mode_t, what: &str) -> Read<()> {
    check_fd(fd, what)?;
    check_type(fd, expected, what)
}

/// Takes a checked descriptor of this type of file. The last step of reading an answer: what is refused stays the plugin's.
///
/// # Safety
/// The plugin gives `fd` away by the answer that is being read.
unsafe fn take_fd(fd: abi::Fd, expected: libc::mode_t, what: &str) -> Read<OwnedFd> {
    check_given(fd, expected, what)?;
    // SAFETY: open, and ours by the caller's promise.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// No descriptor is due here. A number that could be taken is one that the plugin means to give away: with SKG_OK it would be
/// nobody's, and stay open. What no plugin could give, as the 0 of a struct that was only zeroed, is nothing.
fn no_fd(fd: abi::Fd, what: &str) -> Read<()> {
    let given = |of: &libc::mode_t| check_given(fd, *of, what).is_ok();
    if fd >= 0 && [libc::S_IFREG, libc::S_IFDIR].iter().any(given) {
        return Err(Malformed(format!(
            "{what}: descriptor {fd}, where none is due: write -1"
        )));
    }
    Ok(())
}

/// What is wrong with the descriptor of a skg_content, as the gateway looks at it; nothing is taken. For the kit.
///
/// # Errors
/// In one line.
#[doc(hidden)]
pub fn check_content(c: &abi::Content) -> Result<(), String> {
    let checked = match c.kind {
        abi::CONTENT_DATA => no_fd(c.fd, "content.fd"),
        abi::CONTENT_DIR => check_given(c.fd, libc::S_IFDIR, "fd"),
        abi::CONTENT_FILE | abi::CONTENT_TAR => check_given(c.fd, libc::S_IFREG, "fd"),
        kind => Err(unknown_kind(kind)),
    };
    checked.map_err(|Malformed(why)| why)
}

/// The same of a skg_blob_opened: of blob_open, or of blob_fd, whose answer is a descriptor. For the kit.
///
/// # Errors
/// In one line.
#[doc(hidden)]
pub fn check_opened(o: &abi::BlobOpened, is_fd: bool) -> Result<(), String> {
    let checked = match is_fd {
        true => check_given(o.fd, libc::S_IFREG, "fd"),
        false => no_fd(o.fd, "opened.fd"),
    };
    checked.map_err(|Malformed(why)| why)
}

/// Whether an id that a store gives to a blob can be a file's name in a run, and a part of a URL: it is found where the blob is
/// made, and not at the first run that is given it. How many letters it has at least is the store's business: only it knows which
/// of them are random.
pub(crate) fn named(id: String) -> Read<String> {
    match check_blob_id(&id) {
        Ok(()) => Ok(id),
        Err(why) => Err(Malformed(why)),
    }
}

/// As every id of a blob is checked that a store gives: for who is the host of another kind.
///
/// # Errors
/// In one line.
#[doc(hidden)]
pub fn check_blob_id(id: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_good = id.strip_prefix(BLOB_ID_BEGINS).is_some_and(|behind| {
        (1..=BLOB_ID_BYTES).contains(&behind.len())
            && !behind.starts_with('.')
            && behind.bytes().all(plain)
    });
    match is_good {
        true => Ok(()),
        false => Err(format!(
            "id: {id:?} is not \"{BLOB_ID_BEGINS}\" and at most {BLOB_ID_BYTES} of A-Z a-z 0-9 . _ -, the first of them no '.'"
        )),
    }
}

fn unknown_kind(kind: u32) -> Malformed {
    Malformed(format!("content.kind: {kind} is not one of this host's"))
}

/// # Safety
/// `p` is null or points to a skg_health, good during the call of complete.
pub(crate) unsafe fn health(p: *const abi::Health) -> Read<Health> {
    let mut r = Reader::new(ANSWER_BYTES);
    // SAFETY: the caller's promise, for the struct and what it points to.
    unsafe {
        let h = first::prefix(p, "health")?;
        Ok(Health {
            state: h.state,
            in_flight: h.in_flight,
            capacity: h.capacity,
            message: r.text(h.message, "health.message", TEXT_BYTES)?,
            metrics_json: r.text(h.metrics_json, "health.metrics_json", TEXT_BYTES)?,
            report_json: r.text(h.report_json, "health.report_json", DOCUMENT_BYTES)?,
        })
    }
}

/// # Safety
/// `s` was copied from a plugin's skg_skill, and what it points to is good.
unsafe fn skill_of(r: &mut Reader, s: &abi::Skill) -> Read<Skill> {
    // SAFETY: the caller's promise.
    unsafe {
        let mut files = Vec::new();
        for f in r.items::<abi::SkillFile>(s.files, "files", FILES)? {
            first::is_whole(&f, "files")?;
            files.push(SkillFile {
                path: r.text(f.path, "files.path", NAME_BYTES)?,
                sha256: r.text(f.sha256, "files.sha256", NAME_BYTES)?,
                size_bytes: f.size_bytes,
            });
        }
        Ok(Skill {
            read_only: s.flags & abi::SKILL_READ_ONLY != 0,
            name: r.text(s.name, "name", NAME_BYTES)?,
            version: r.text(s.version, "version", NAME_BYTES)?,
            namespace: r.text(s.namespace_, "namespace", NAME_BYTES)?,
            kind: r.text(s.kind, "kind", NAME_BYTES)?,
            description: r.text(s.description, "description", TEXT_BYTES)?,
            tree_sha256: r.text(s.tree_sha256, "tree_sha256", NAME_BYTES)?,
            publisher: r.text(s.publisher, "publisher", NAME_BYTES)?,
            manifest_json: r.bytes(s.manifest_json, "manifest_json", DOCUMENT_BYTES)?,
            files,
        })
    }
}

/// # Safety
/// `p` is null or points to a skg_skill, good during the call of complete.
pub(crate) unsafe fn skill(p: *const abi::Skill) -> Read<Skill> {
    // SAFETY: the caller's promise.
    unsafe { skill_of(&mut Reader::new(ANSWER_BYTES), &first::prefix(p, "skill")?) }
}

/// # Safety
/// `p` is null or points to a skg_skill_page, good during the call of complete.
pub(crate) unsafe fn skill_page(p: *const abi::SkillPage, limit: u32) -> Read<SkillPage> {
    let mut r = Reader::new(ANSWER_BYTES);
    // SAFETY: the caller's promise.
    unsafe {
        let page = first::prefix(p, "page")?;
        let mut skills = Vec::new();
        for s in r.items::<abi::Skill>(page.skills, "skills", limit)? {
            first::is_whole(&s, "skills")?;
            skills.push(skill_of(&mut r, &s)?);
        }
        Ok(SkillPage {
            more: page.more != 0,
            skills,
        })
    }
}

/// # Safety
/// `p` is null or points to a skg_content, good during the call of complete.
pub(crate) unsafe fn content(p: *const abi::Content) -> Read<Content> {
    // SAFETY: the caller's promise.
    unsafe {
        let c = first::prefix(p, "content")?;
        match c.kind {
            abi::CONTENT_DATA => {
                no_fd(c.fd, "content.fd")?;
                Reader::new(ANSWER_BYTES)
                    .bytes(c.data, "data", ANSWER_BYTES)
                    .map(Content::Data)
            }
            abi::CONTENT_FILE => Ok(Content::File(
                take_fd(c.fd, libc::S_IFREG, "fd")?,
                c.size_bytes,
            )),
            abi::CONTENT_DIR => take_fd(c.fd, libc::S_IFDIR, "fd").map(Content::Dir),
            abi::CONTENT_TAR => Ok(Content::Tar(
                take_fd(c.fd, libc::S_IFREG, "fd")?,
                c.size_bytes,
            )),
            kind => Err(unknown_kind(kind)),
        }
    }
}

/// # Safety
/// `p` is null or points to a skg_blob_stat, good during the call of complete.
pub(crate) unsafe fn blob_stat(p: *const abi::BlobStat) -> Read<BlobStat> {
    let mut r = Reader::new(ANSWER_BYTES);
    // SAFETY: the caller's promise.
    unsafe {
        let s = first::prefix(p, "stat")?;
        Ok(BlobStat {
            id: r.text(s.id, "id", NAME_BYTES).and_then(named)?,
            kind: r.text(s.kind, "kind", NAME_BYTES)?,
            size_bytes: s.size_bytes,
            sha256: r.text(s.sha256, "sha256", NAME_BYTES)?,
            owner: r.text(s.owner, "owner", NAME_BYTES)?,
            created_unix_ms: s.created_unix_ms,
        })
    }
}

/// A reader and what it reads.
///
/// # Safety
/// `p` is null or points to a skg_blob_opened, good during the call of complete.
pub(crate) unsafe fn blob_reader(p: *const abi::BlobOpened) -> Read<(u64, BlobStat)> {
    // SAFETY: the caller's promise.
    unsafe {
        let o = first::prefix(p, "opened")?;
        no_fd(o.fd, "opened.fd")?;
        Ok((o.reader, blob_stat(o.stat)?))
    }
}

/// A descriptor and what it reads.
///
/// # Safety
/// As [`blob_reader`], and the descriptor is given away.
pub(crate) unsafe fn blob_fd(p: *const abi::BlobOpened) -> Read<(OwnedFd, BlobStat)> {
    // SAFETY: the caller's promise.
    unsafe {
        let o = first::prefix(p, "opened")?;
        let stat = blob_stat(o.stat)?;
        Ok((take_fd(o.fd, libc::S_IFREG, "fd")?, stat))
    }
}

/// # Safety
/// `p` is null or points to a skg_handle or skg_count, good during the call of complete.
pub(crate) unsafe fn frozen<T: Copy>(p: *const c_void, what: &str) -> Read<T> {
    if p.is_null() {
        return Err(Malformed(format!("{what}: is null")));
    }
    // SAFETY: not null; the caller's promise.
    Ok(unsafe { p.cast::<T>().read_unaligned() })
}

/// What a plugin filled in; `out` was zeroed before.
pub(crate) fn sandbox_caps(out: &abi::SandboxCaps) -> SandboxCaps {
    SandboxCaps {
        egress: out.egress,
        max_concurrent: out.max_concurrent,
        isolation: out.isolation,
        max_memory_bytes: out.max_memory_bytes,
        max_timeout_ms: out.max_timeout_ms,
        enforces: out.enforces,
    }
}

/// # Safety
/// `p` is null or points to a skg_run_result, good during the call of complete.
pub(crate) unsafe fn run_result(p: *const abi::RunResult, output_bytes: u64) -> Read<RunResult> {
    let mut r = Reader::new(ANSWER_BYTES);
    let output_bytes = output_max(output_bytes);
    // SAFETY: the caller's promise.
    unsafe {
        let run = first::prefix(p, "result")?;
        let mut output_blobs = Vec::new();
        for id in r.frozen::<abi::Str>(run.output_blobs, "output_blobs", OUTPUT_BLOBS)? {
            output_blobs.push(r.text(id, "output_blobs", NAME_BYTES)?);
        }
        Ok(RunResult {
            completed: match run.status {
                abi::RUN_COMPLETED => true,
                abi::RUN_FAILED => false,
                status => {
                    return Err(Malformed(format!(
                        "result.status: {status} is not one of this host's"
                    )));
                }
            },
            output_json: r.bytes(run.output_json, "output_json", output_bytes)?,
            output_spilled: run.output_spilled != 0,
            summary: r.text(run.summary, "summary", TEXT_BYTES)?,
            error_type: r.text(run.error_type, "error_type", NAME_BYTES)?,
            error_message: r.text(run.error_message, "error_message", TEXT_BYTES)?,
            output_blobs,
            exit_code: run.exit_code,
            signal: run.signal,
            create_us: run.create_us,
            exec_us: run.exec_us,
            cpu_us: run.cpu_us,
            peak_memory_bytes: run.peak_memory_bytes,
        })
    }
}

/// Where the output of a run that has completed is. One that is said to be stored, and stands there too, or was stored nowhere,
/// would be lost without a word.
pub(crate) fn check_output(run: &RunResult) -> Read<()> {
    if !run.completed || !run.output_spilled {
        return Ok(());
    }
    let why = if !run.output_json.is_empty() {
        "output_json is not empty: an output is either there or the last of output_blobs"
    } else if run.output_blobs.is_empty() {
        "output_blobs is empty: the output is the last of them"
    } else {
        return Ok(());
    };
    Err(Malformed(format!("result.output_spilled is 1, and {why}")))
}

/// Most bytes of a run's output when its request says so much, 0 for nothing.
pub(crate) fn output_max(output_bytes: u64) -> usize {
    let max = match output_bytes {
        0 => OUTPUT_BYTES,
        asked => asked.min(OUTPUT_BYTES),
    };
    usize::try_from(max).unwrap_or(ANSWER_BYTES)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, IntoRawFd};

    use super::*;
    use skillgate_plugin_sdk::wire;

    fn file(fd: abi::Fd) -> abi::Content {
        let mut content: abi::Content = wire::zeroed();
        content.struct_size = wire::size_of_u32::<abi::Content>();
        content.kind = abi::CONTENT_FILE;
        content.fd = fd;
        content
    }

    fn error(content: &abi::Content) -> String {
        // SAFETY: a content without texts.
        let read = unsafe { super::content(content) };
        read.expect_err("is refused").0
    }

    #[test]
    fn a_descriptor_is_taken_only_when_it_can_be_a_plugins() {
        // A plugin that only zeroed its struct does not make the host close its standard input.
        assert_eq!(error(&file(0)), "fd: descriptor 0 is not close-on-exec");
        assert_eq!(error(&file(-1)), "fd: -1 is not an open descriptor");
        assert_eq!(
            error(&file(1 << 20)),
            "fd: 1048576 is not an open descriptor"
        );
        let (pipe, _writes) = std::io::pipe().unwrap();
        assert_eq!(
            error(&file(pipe.as_raw_fd())),
            "fd: is a pipe instead of a regular file"
        );
        let given = tempfile::tempfile().unwrap().into_raw_fd();
        // SAFETY: a content without texts, whose descriptor nobody else has.
        match unsafe { content(&file(given)) } {
            Ok(Content::File(fd, 0)) => assert_eq!(fd.as_raw_fd(), given),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn where_no_descriptor_is_due_none_is_left_open() {
        let mut data = file(0);
        data.kind = abi::CONTENT_DATA;
        let stat = abi::BlobStat {
            struct_size: wire::size_of_u32::<abi::BlobStat>(),
            id: abi::Str::new("blob:a"),
            ..wire::zeroed()
        };
        let mut opened: abi::BlobOpened = wire::zeroed();
        opened.struct_size = wire::size_of_u32::<abi::BlobOpened>();
        opened.stat = &raw const stat;
        let dir = tempfile::tempdir().unwrap();
        let (pipe, _writes) = std::io::pipe().unwrap();
        let folder = std::fs::File::open(dir.path()).unwrap();
        let one = tempfile::tempfile().unwrap();
        // What was only zeroed, what is none, and what no answer of this kind could have.
        for fd in [0, -1, 1 << 20, pipe.as_raw_fd()] {
            (data.fd, opened.fd) = (fd, fd);
            // SAFETY: without texts.
            unsafe {
                assert!(matches!(content(&data), Ok(Content::Data(of)) if of.is_empty()));
                assert!(blob_reader(&opened).is_ok());
            }
            assert_eq!(check_content(&data), Ok(()));
            assert_eq!(check_opened(&opened, false), Ok(()));
        }
        for fd in [one.as_raw_fd(), folder.as_raw_fd()] {
            (data.fd, opened.fd) = (fd, fd);
            let why = format!("content.fd: descriptor {fd}, where none is due: write -1");
            assert_eq!(error(&data), why);
            assert_eq!(check_content(&data), Err(why));
            let why = format!("opened.fd: descriptor {fd}, where none is due: write -1");
            // SAFETY: without texts.
            assert_eq!(unsafe { blob_reader(&opened) }.unwrap_err().0, why);
            assert_eq!(check_opened(&opened, false), Err(why));
        }
        // Refused, they stay the plugin's.
        assert_eq!(one.metadata().unwrap().len(), 0);
        assert!(folder.metadata().unwrap().is_dir());
    }

    #[test]
    fn ids_of_blobs_are_names_of_files() {
        let longest = format!("blob:{}", "a".repeat(BLOB_ID_BYTES));
        for good in ["blob:Az09._-", "blob:one", "blob:-a", &longest] {
            assert_eq!(check_blob_id(good), Ok(()), "{good}");
        }
        let too_long = format!("{longest}a");
        for bad in [
            "",
            "blob:",
            "a",
            "BLOB:a",
            "blob:.a",
            "blob:a+b",
            "blob:a/b",
            "blob:a=",
            "blob:a b",
            "blob:a:b",
            "blob:a%3Ab",
            "blob:é",
            "blob:a\0",
            &too_long,
        ] {
            let why = check_blob_id(bad).expect_err(bad);
            assert!(
                why.starts_with(&format!("id: {bad:?} is not \"blob:\"")),
                "{why}"
            );
        }
    }

    #[test]
    fn texts_of_health_are_utf8_and_the_error_names_them() {
        let not_text = abi::Str {
            ptr: b"a\xff".as_ptr(),
            len: 2,
        };
        type Field = fn(&mut abi::Health) -> &mut abi::Str;
        let fields: [(&str, Field); 3] = [
            ("message", |h| &mut h.message),
            ("metrics_json", |h| &mut h.metrics_json),
            ("report_json", |h| &mut h.report_json),
        ];
        for (name, field) in fields {
            let mut health: abi::Health = wire::zeroed();
            health.struct_size = wire::size_of_u32::<abi::Health>();
            // SAFETY: a health whose texts are here, or empty.
            unsafe {
                assert!(super::health(&raw const health).is_ok());
                *field(&mut health) = not_text;
                let error = super::health(&raw const health).unwrap_err().0;
                assert_eq!(error, format!("health.{name}: not UTF-8 at byte 1"));
            }
        }
    }

    #[test]
    fn an_unknown_kind_of_content_is_refused() {
        let mut content = file(-1);
        content.kind = 99;
        assert_eq!(
            error(&content),
            "content.kind: 99 is not one of this host's"
        );
    }
}
