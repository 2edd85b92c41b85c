//! What is wrong with completions.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::wire::size_of_u32;

use super::{CALL, answer, asked, asked_after, complete, lock};

/// The ctx of an instance's host, by self.
static CTX: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);
/// Longer than any text of an answer may be.
const HUGE_BYTES: usize = 2 << 20;

pub(super) fn of_instance(of: *mut c_void, host: *const abi::Host) {
    // SAFETY: create() was given this table just now.
    let ctx = unsafe { (*host).ctx } as usize;
    lock(&CTX).get_or_insert_default().insert(of as usize, ctx);
}

pub(super) fn ctx_of(of: *mut c_void) -> *mut c_void {
    *lock(&CTX).as_ref().unwrap().get(&(of as usize)).unwrap() as *mut c_void
}

/// A second completion of any op, which is only one of many.
static ONCE: AtomicBool = AtomicBool::new(false);

fn later(ctx: *mut c_void, op: abi::Op) {
    let ctx = ctx as usize;
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(10));
        // SAFETY: none: this is what it is for.
        unsafe { answer(ctx as *mut c_void, op, std::ptr::null()) }
    });
}

/// Two threads with the same completion; what the one that came first was told.
///
/// # Safety
/// As complete().
unsafe fn at_once(ctx: *mut c_void, op: abi::Op, c: *const abi::Completion) -> i32 {
    let (ctx, c) = (ctx as usize, c as usize);
    let both = std::sync::Barrier::new(2);
    let one = || {
        both.wait();
        // SAFETY: the caller's promise: it is readable until both are back.
        unsafe { complete(ctx as *mut c_void, op, c as *const abi::Completion) }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(one);
        let code = one();
        code.max(other.join().unwrap())
    })
}

/// A tar of these files, as a descriptor, and its size.
fn tar_of(files: &[(&str, &[u8])]) -> (abi::Fd, u64) {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, data) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, *data).unwrap();
    }
    let bytes = tar.into_inner().unwrap();
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &bytes).unwrap();
    let fd = std::os::fd::IntoRawFd::into_raw_fd(file);
    (fd, bytes.len() as u64)
}

/// Changes what a descriptor names, or what is below it.
///
/// # Safety
/// `fd` is open.
unsafe fn set_mode(fd: abi::Fd, below: &str, mode: libc::mode_t) {
    let path = format!("/proc/self/fd/{fd}/{below}");
    let path = std::ffi::CString::new(path.trim_end_matches('/')).unwrap();
    // SAFETY: a text that ends with 0.
    assert_eq!(unsafe { libc::chmod(path.as_ptr(), mode) }, 0);
}

/// What the good plugin calls to end an op.
pub(super) unsafe extern "C" fn completed(
    ctx: *mut c_void,
    op: abi::Op,
    c: *const abi::Completion,
) -> i32 {
    // SAFETY: the good plugin's completion, with its result, is readable during this call; so is what replaces it.
    unsafe {
        if asked("never completes") {
            return abi::OK;
        }
        if asked("completes an op that nobody gave") && !ONCE.swap(true, Ordering::SeqCst) {
            complete(ctx, op + 1, c);
        }
        if asked("completes twice at once") {
            return at_once(ctx, op, c);
        }
        super::storage::note(CALL.get(), &*c);
        let code = match changed(&*c) {
            Some(mut changed) => complete(ctx, op, changed.point()),
            None => complete(ctx, op, c),
        };
        if asked("completes twice") {
            complete(ctx, op, c);
        }
        if asked("completes again later") && !ONCE.swap(true, Ordering::SeqCst) {
            later(ctx, op);
        }
        code
    }
}

/// A completion with other contents than the good one's.
struct Changed {
    completion: abi::Completion,
    result: Answer,
}

enum Answer {
    None,
    Health(abi::Health),
    Skill(abi::Skill),
    Page(abi::SkillPage, Vec<abi::Skill>),
    Stat(abi::BlobStat),
    Run(abi::RunResult),
    Opened(abi::BlobOpened),
    Content(abi::Content),
}

impl Changed {
    /// The completion, pointing to what is here.
    fn point(&mut self) -> *const abi::Completion {
        self.completion.result = match &mut self.result {
            Answer::None => std::ptr::null(),
            Answer::Health(health) => (&raw const *health).cast(),
            Answer::Skill(skill) => (&raw const *skill).cast(),
            Answer::Page(page, skills) => {
                page.skills = abi::List::of(skills);
                (&raw const *page).cast()
            }
            Answer::Stat(stat) => (&raw const *stat).cast(),
            Answer::Run(run) => (&raw const *run).cast(),
            Answer::Opened(opened) => (&raw const *opened).cast(),
            Answer::Content(content) => (&raw const *content).cast(),
        };
        &raw const self.completion
    }
}

/// # Safety
/// `c` is the good plugin's completion of the call that this thread is in.
unsafe fn changed(c: &abi::Completion) -> Option<Changed> {
    let ok = c.status == abi::OK;
    let made = |result| {
        let completion = abi::Completion {
            struct_size: size_of_u32::<abi::Completion>(),
            status: abi::OK,
            error: std::ptr::null(),
            result: std::ptr::null(),
        };
        Some(Changed { completion, result })
    };
    // SAFETY: the caller's promise: a good result of that call.
    unsafe {
        match CALL.get() {
            "health" if ok => {
                let mut health = c.result.cast::<abi::Health>().read();
                if asked("gives no result") {
                    return made(Answer::None);
                } else if asked("gives a text that is not UTF-8") {
                    health.message = abi::Str {
                        ptr: b"\xff\xfe".as_ptr(),
                        len: 2,
                    };
                } else if asked("gives a huge text") {
                    health.message = abi::Str::of("x".repeat(HUGE_BYTES).leak());
                } else if asked("gives null with a length") {
                    health.message = abi::Str {
                        ptr: std::ptr::null(),
                        len: 5,
                    };
                } else if asked("lies about the size of an answer") {
                    health.struct_size -= 16;
                } else if asked("is in a state that there is not") {
                    health.state = 9;
                } else if asked("says words where numbers are asked") {
                    health.metrics_json = abi::Str::new(r#"{"blob_bytes":"many"}"#);
                } else if asked("reports layers in its own way") {
                    health.report_json = abi::Str::new(r#"{"seccomp":true}"#);
                }
                made(Answer::Health(health))
            }
            "run" if ok && asked("gives a status that there is not") => {
                let mut run = c.result.cast::<abi::RunResult>().read();
                run.status = 99;
                made(Answer::Run(run))
            }
            "run" if ok && asked("hides failures") => {
                let mut run = c.result.cast::<abi::RunResult>().read();
                run.status = abi::RUN_COMPLETED;
                made(Answer::Run(run))
            }
            "run" if ok && asked_after("counts ").is_some() => {
                let mut run = c.result.cast::<abi::RunResult>().read();
                match asked_after("counts ") {
                    Some("processor time in milliseconds") => run.cpu_us = 317,
                    Some("processor time in nanoseconds") => run.cpu_us = 317_000_000,
                    Some("memory in pages") => run.peak_memory_bytes = 15_000,
                    _ => run.peak_memory_bytes = u64::MAX,
                }
                made(Answer::Run(run))
            }
            "blob_fd" if ok && asked("gives a blob that others cannot read") => {
                let opened = c.result.cast::<abi::BlobOpened>().read();
                set_mode(opened.fd, "", 0o600);
                None
            }
            "blob_fd" if ok && asked("gives a descriptor that can be written") => {
                let mut opened = c.result.cast::<abi::BlobOpened>().read();
                let path = format!("/proc/self/fd/{}\0", opened.fd);
                opened.fd = libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC);
                made(Answer::Opened(opened))
            }
            "skill_read" if ok && asked("gives a descriptor beside data") => {
                let mut content = c.result.cast::<abi::Content>().read();
                if content.kind == abi::CONTENT_DATA {
                    (content.fd, _) = tar_of(&[]);
                }
                content.kind = abi::CONTENT_DATA;
                made(Answer::Content(content))
            }
            "blob_open" if ok && asked("gives a descriptor beside a reader") => {
                let mut opened = c.result.cast::<abi::BlobOpened>().read();
                (opened.fd, _) = tar_of(&[]);
                made(Answer::Opened(opened))
            }
            "skill_get" if ok && asked("loses a file") => {
                let mut skill = c.result.cast::<abi::Skill>().read();
                skill.files.len -= 1;
                made(Answer::Skill(skill))
            }
            "skill_get" if ok && asked("gives another manifest") => {
                let mut skill = c.result.cast::<abi::Skill>().read();
                let other: &[u8] = br#"{"permissions":{"secrets":["KEY"]}}"#;
                skill.manifest_json = abi::Bytes {
                    ptr: other.as_ptr(),
                    len: other.len() as u64,
                };
                made(Answer::Skill(skill))
            }
            "skill_get" if ok && asked("says that what is published is the operator's") => {
                let mut skill = c.result.cast::<abi::Skill>().read();
                skill.flags |= abi::SKILL_READ_ONLY;
                made(Answer::Skill(skill))
            }
            "skill_get" if ok && asked("shows what is being published in part") => {
                let mut skill = c.result.cast::<abi::Skill>().read();
                if super::storage::is_publishing() {
                    skill.files.len -= 1;
                }
                made(Answer::Skill(skill))
            }
            "skill_put"
                if c.status == abi::E_ALREADY_EXISTS && asked("publishes a version again") =>
            {
                let mut skill: abi::Skill = skillgate_plugin_sdk::wire::zeroed();
                skill.struct_size = size_of_u32::<abi::Skill>();
                made(Answer::Skill(skill))
            }
            "skill_list" if ok => {
                let mut page = c.result.cast::<abi::SkillPage>().read();
                let mut skills: Vec<_> = (0..page.skills.len)
                    .map(|i| page.skills.at::<abi::Skill>(i).read())
                    .collect();
                if asked("lists in another order") {
                    skills.reverse();
                } else if asked("lists without descriptions") {
                    for skill in &mut skills {
                        skill.description = abi::Str::EMPTY;
                    }
                } else if asked("promises more than there is") {
                    page.more = u32::from(!skills.is_empty());
                } else {
                    return None;
                }
                made(Answer::Page(page, skills))
            }
            "skill_tree" if ok && asked("gives a directory that others cannot enter") => {
                set_mode(c.result.cast::<abi::Content>().read().fd, "code", 0o700);
                None
            }
            "skill_tree" if ok && asked("gives a file that others cannot read") => {
                set_mode(c.result.cast::<abi::Content>().read().fd, "SKILL.md", 0o640);
                None
            }
            "skill_tree" if ok => {
                let files: &[(&str, &[u8])] = if asked("gives an empty tar for a tree") {
                    &[]
                } else if asked("gives another tree") {
                    &[("SKILL.md", b"# another\n"), ("more.py", b"")]
                } else {
                    return None;
                };
                let mut content = c.result.cast::<abi::Content>().read();
                libc::close(content.fd);
                content.kind = abi::CONTENT_TAR;
                (content.fd, content.size_bytes) = tar_of(files);
                made(Answer::Content(content))
            }
            "blob_commit" if ok && asked("gives a wrong digest") => {
                let mut stat = c.result.cast::<abi::BlobStat>().read();
                stat.sha256 = abi::Str::of("0".repeat(64).leak());
                made(Answer::Stat(stat))
            }
            _ => None,
        }
    }
}
