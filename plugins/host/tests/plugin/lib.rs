//! A plugin for the host's tests, made with the SDK: a storage and a sandbox that do what the name they are asked for
//! says.
#![allow(unsafe_code, reason = "it misbehaves as only unsafe code can")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod hostile;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::{Sandbox, Storage};
use skillgate_plugin_sdk::model::*;
use skillgate_plugin_sdk::{Host, Level, RunServices, tracing_bridge};

skillgate_plugin_sdk::export_plugin! {
    id: "org.skillgate.test", version: "1.2.3", vendor: "skillgate", description: "for tests",
    license: "Apache-2.0", config_schema: r#"{"type":"object"}"#,
    blocking storage: crate::Memory,
    blocking sandbox: crate::Echo,
}

fn refuse_if_asked(request: &CreateRequest) -> Result<()> {
    match request.config_json.as_slice() {
        b"refuse" => {
            let mut error = Error::new(abi::E_PRECONDITION, "asked to refuse");
            error.detail_json = r#"[{"layer":"x","state":"missing"}]"#.into();
            Err(error)
        }
        b"panic" => panic!("create panics, as asked"),
        // Refuses as long as there is such a file.
        [b'/', ..]
            if std::path::Path::new(std::str::from_utf8(&request.config_json).unwrap())
                .exists() =>
        {
            Err(Error::new(abi::E_PRECONDITION, "there is that file"))
        }
        _ => Ok(()),
    }
}

/// Ends the process, or what else no plugin should do; the run's output for other functions.
fn misbehave(function: &str) -> Option<Vec<u8>> {
    match function {
        // SAFETY: none: this is what it is for.
        "segfault" => unsafe { std::ptr::dangling_mut::<u8>().write_volatile(1) },
        "abort" => std::process::abort(),
        "exit" => std::process::exit(3),
        "pid" => return Some(std::process::id().to_string().into_bytes()),
        _ => {}
    }
    None
}

/// Ends the process, and leaves a child, forked without an exec, that goes on with the log on the gateway's socket. The
/// run's output is its number. It ends when the gateway has closed that socket, or when it has had its seconds.
fn leave_a_child(services: &dyn RunServices) -> ! {
    const SECONDS_MAX: u32 = 45;
    /// Or as many as the system gives a socket: room for so much that whoever reads does not come to its end.
    const ROOM_BYTES: i32 = 4 << 20;
    let is_socket = |fd: &i32| {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        path.is_ok_and(|path| path.to_string_lossy().starts_with("socket:"))
    };
    let socket = (0..64).find(is_socket).unwrap();
    // So many records of the log without any text (process/frame.rs) as go into the socket whole or not at all.
    let frame: [&[u8]; 3] = [&[36, 0, 0, 0, 15, 0, 0, 0], &[0; 8], &[1, 0, 0, 0]];
    let frames = [&frame.concat()[..], &[0; 32]].concat().repeat(512);
    let (mut begun, begins) = std::io::pipe().unwrap();
    // SAFETY: the child makes system calls and nothing else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let begins = std::os::fd::AsRawFd::as_raw_fd(&begins);
        // SAFETY: open descriptors, and memory of the lengths that are said.
        unsafe {
            libc::alarm(SECONDS_MAX);
            let (room, len) = (
                std::ptr::from_ref(&ROOM_BYTES).cast(),
                size_of::<i32>() as u32,
            );
            libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, room, len);
            let (data, len) = (frames.as_ptr().cast(), frames.len());
            libc::send(socket, data, len, libc::MSG_NOSIGNAL);
            libc::write(begins, data, 1);
            while libc::send(socket, data, len, libc::MSG_NOSIGNAL) >= 0 {}
            libc::_exit(0);
        }
    }
    assert!(child > 0);
    drop(begins);
    std::io::Read::read_exact(&mut begun, &mut [0]).unwrap();
    services.output(abi::STDOUT, child.to_string().as_bytes());
    std::process::exit(0);
}

/// What this process has of the one that started it, as lines.
fn surroundings() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = |name: &str| {
        status
            .lines()
            .find(|l| l.starts_with(name))
            .unwrap_or("")
            .replace('\t', " ")
    };
    let files: Vec<_> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    let variables: Vec<_> = std::env::vars_os().collect();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let core = limits.lines().find(|l| l.starts_with("Max core")).unwrap();
    let core: Vec<_> = core.split_whitespace().collect();
    // SAFETY: asks for a number.
    let dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
    format!(
        "{}\ndumpable {dumpable}\nvariables {variables:?}\n{}\n{}",
        line("NoNewPrivs"),
        core.join(" "),
        files.join("\n")
    )
}

/// Lets this process open so many descriptors more.
fn make_room_for(count: &str) {
    let count: u64 = count.parse().unwrap();
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let set = |limit: &libc::rlimit| {
        // SAFETY: a struct that the kernel reads.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
    };
    // SAFETY: a struct that the kernel fills.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(got, 0);
    limit.rlim_cur = limit.rlim_max;
    set(&limit);
    let lowest = std::fs::File::open("/dev/null").unwrap();
    limit.rlim_cur = std::os::fd::AsRawFd::as_raw_fd(&lowest) as u64 + count;
    set(&limit);
}

/// Before the size of a blob that is made up while it is read; `-N` after it: N bytes come, `-`: never any, and no end.
const MADE_UP: &str = "blob:made-up-";
/// The kind of a blob whose bytes are counted and not kept.
const COUNTED: &str = "application/x-counted";

/// Blobs in memory, and streams of any length; skills are made up from their names.
struct Memory {
    host: Host,
    next: AtomicU64,
    writing: Mutex<HashMap<u64, (BlobCreate, Vec<u8>)>>,
    /// By writer, so many bytes.
    counted: Mutex<HashMap<u64, u64>>,
    /// By reader, so many bytes to come; none: there is no end.
    made_up: Mutex<HashMap<u64, Option<u64>>>,
    reading: Mutex<HashMap<u64, (Vec<u8>, usize)>>,
    blobs: Mutex<HashMap<String, (BlobStat, Vec<u8>)>>,
}

impl Memory {
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
    fn find(&self, id: &str) -> Result<(BlobStat, Vec<u8>)> {
        let blobs = self.blobs.lock().unwrap();
        blobs
            .get(id)
            .cloned()
            .ok_or_else(|| Error::new(abi::E_NOT_FOUND, format!("no blob {id}")))
    }
}

impl Storage for Memory {
    fn create(host: Host, request: CreateRequest) -> Result<Self> {
        refuse_if_asked(&request)?;
        if request.config_json == b"tracing" {
            tracing_bridge::log_to(&host)?;
        }
        host.log(
            Level::Info,
            "memory",
            "created",
            &[("instance", &request.instance_id)],
        );
        Ok(Memory {
            host,
            next: AtomicU64::new(1),
            writing: Mutex::default(),
            counted: Mutex::default(),
            made_up: Mutex::default(),
            reading: Mutex::default(),
            blobs: Mutex::default(),
        })
    }
    fn caps(&self) -> u32 {
        abi::ST_SKILLS | abi::ST_BLOBS | abi::ST_BLOB_FD
    }
    /// `in_flight` and `capacity` say how many writers and readers are open.
    fn health(&self) -> Result<Health> {
        Ok(Health {
            state: abi::HEALTH_OK,
            in_flight: self.writing.lock().unwrap().len() as u32,
            capacity: self.reading.lock().unwrap().len() as u32,
            ..Health::default()
        })
    }
    fn skill_list(&self, query: &SkillQuery) -> Result<SkillPage> {
        let skill = |i: u32| Skill {
            name: format!("{}.s{i}", query.tenant),
            version: "1.0.0".into(),
            description: "ä".repeat(3),
            ..Skill::default()
        };
        Ok(SkillPage {
            more: true,
            skills: (0..query.limit).map(skill).collect(),
        })
    }
    fn skill_get(&self, tenant: &str, name: &str, version: &str) -> Result<Skill> {
        match name {
            "abort" => std::process::abort(),
            "panic" => panic!("skill_get panics, as asked"),
            // Comes back when somebody has that pipe open for writing.
            "hang" => {
                let opened = std::fs::File::open(version);
                opened
                    .map(|_| Skill::default())
                    .map_err(|error| Error::new(abi::E_INTERNAL, error.to_string()))
            }
            "traced" => {
                let _get = tracing::info_span!("skill_get", tenant).entered();
                tracing::warn!(target: "traced", version, "asked");
                tracing::debug!(target: "traced", "not kept");
                Err(Error::new(abi::E_NOT_FOUND, "traced"))
            }
            "missing" => Err(
                Error::new(abi::E_NOT_FOUND, format!("no skill {name} of {tenant}")).retryable(7),
            ),
            _ => Ok(Skill {
                read_only: true,
                name: name.into(),
                version: version.into(),
                publisher: tenant.into(),
                manifest_json: b"{}".to_vec(),
                files: vec![
                    SkillFile {
                        path: "SKILL.md".into(),
                        sha256: "ab".into(),
                        size_bytes: 3,
                    },
                    SkillFile::default(),
                ],
                ..Skill::default()
            }),
        }
    }
    fn skill_read(&self, _: &str, _: &str, _: &str, path: &str) -> Result<Content> {
        match path {
            // No file: whoever reads it waits.
            "pipe" => Ok(Content::File(
                std::io::pipe().map(|(pipe, _)| pipe.into()).unwrap(),
                5,
            )),
            "file" => Ok(Content::File(
                OwnedFd::from(std::fs::File::open("/proc/self/stat").unwrap()),
                5,
            )),
            _ => Ok(Content::Data(path.as_bytes().to_vec())),
        }
    }
    fn skill_tree(&self, _: &str, _: &str, _: &str) -> Result<Content> {
        Ok(Content::Dir(OwnedFd::from(
            std::fs::File::open("/").unwrap(),
        )))
    }
    fn skill_put(&self, put: &PutSkill) -> Result<Skill> {
        if put.name == "hang" {
            // A pipe, until somebody opens it; who waits for this sees a file beside it.
            std::fs::write(format!("{}.begun", put.version), "").unwrap();
            drop(std::fs::File::open(&put.version));
        }
        let file = |(path, data): &(String, Vec<u8>)| SkillFile {
            path: path.clone(),
            sha256: String::new(),
            size_bytes: data.len() as u64,
        };
        Ok(Skill {
            name: put.name.clone(),
            manifest_json: put.manifest_json.clone(),
            files: put.files.iter().map(file).collect(),
            ..Skill::default()
        })
    }
    fn blob_create(&self, create: &BlobCreate) -> Result<u64> {
        let n = self.number();
        if create.kind == COUNTED {
            self.counted.lock().unwrap().insert(n, 0);
            return Ok(n);
        }
        self.writing
            .lock()
            .unwrap()
            .insert(n, (create.clone(), Vec::new()));
        Ok(n)
    }
    fn blob_write(&self, writer: u64, data: &[u8]) -> Result<()> {
        if let Some(count) = self.counted.lock().unwrap().get_mut(&writer) {
            *count += data.len() as u64;
            return Ok(());
        }
        let mut writing = self.writing.lock().unwrap();
        let (_, content) = writing
            .get_mut(&writer)
            .ok_or_else(|| Error::new(abi::E_STALE, "no writer"))?;
        content.extend_from_slice(data);
        Ok(())
    }
    fn blob_commit(&self, writer: u64) -> Result<BlobStat> {
        if let Some(size_bytes) = self.counted.lock().unwrap().remove(&writer) {
            return Ok(BlobStat {
                id: "blob:counted".into(),
                size_bytes,
                ..BlobStat::default()
            });
        }
        let (create, content) = self
            .writing
            .lock()
            .unwrap()
            .remove(&writer)
            .ok_or_else(|| Error::new(abi::E_STALE, "no writer"))?;
        let stat = BlobStat {
            id: format!("blob:{writer}"),
            kind: create.kind,
            size_bytes: content.len() as u64,
            sha256: "00".into(),
            owner: create.owner,
            created_unix_ms: 1,
        };
        self.blobs
            .lock()
            .unwrap()
            .insert(stat.id.clone(), (stat.clone(), content));
        Ok(stat)
    }
    fn blob_abort(&self, writer: u64) {
        self.writing.lock().unwrap().remove(&writer);
        self.host.log(
            Level::Info,
            "memory",
            "aborted",
            &[("writer", &writer.to_string())],
        );
    }
    fn blob_stat(&self, _: &str, id: &str) -> Result<BlobStat> {
        Ok(self.find(id)?.0)
    }
    fn blob_open(&self, _: &str, id: &str, offset: u64, len: u64) -> Result<(u64, BlobStat)> {
        if let Some(sizes) = id.strip_prefix(MADE_UP) {
            let (size, come) = sizes.split_once('-').unwrap_or((sizes, sizes));
            let size_bytes = size.parse().unwrap();
            let n = self.number();
            self.made_up.lock().unwrap().insert(n, come.parse().ok());
            let stat = BlobStat {
                id: id.into(),
                size_bytes,
                ..BlobStat::default()
            };
            return Ok((n, stat));
        }
        let (stat, mut content) = self.find(id)?;
        content.drain(..offset as usize);
        if len > 0 {
            content.truncate(len as usize);
        }
        let n = self.number();
        self.reading.lock().unwrap().insert(n, (content, 0));
        Ok((n, stat))
    }
    fn blob_read(&self, reader: u64, buf: &mut [u8]) -> Result<(usize, bool)> {
        if let Some(left) = self.made_up.lock().unwrap().get_mut(&reader) {
            let Some(left) = left else {
                return Ok((0, false));
            };
            let n = buf.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
            buf[..n].fill(7);
            *left -= n as u64;
            return Ok((n, *left == 0));
        }
        let mut reading = self.reading.lock().unwrap();
        let (content, at) = reading
            .get_mut(&reader)
            .ok_or_else(|| Error::new(abi::E_STALE, "no reader"))?;
        let n = buf.len().min(content.len() - *at);
        buf[..n].copy_from_slice(&content[*at..*at + n]);
        *at += n;
        Ok((n, *at == content.len()))
    }
    fn blob_close(&self, reader: u64) {
        self.made_up.lock().unwrap().remove(&reader);
        self.reading.lock().unwrap().remove(&reader);
    }
    fn blob_delete(&self, _: &str, id: &str) -> Result<()> {
        self.blobs.lock().unwrap().remove(id);
        Ok(())
    }
}

/// Does what `function` says.
struct Echo {
    host: Host,
    max_concurrent: u32,
    made_from: String,
    cancelled: Mutex<Vec<String>>,
    wake: Condvar,
}

impl Sandbox for Echo {
    fn create(host: Host, request: CreateRequest) -> Result<Self> {
        refuse_if_asked(&request)?;
        // Less, or more, as long as there is such a file.
        let path = String::from_utf8_lossy(&request.config_json).into_owned();
        let there_is = |end: &str| std::path::Path::new(&format!("{path}{end}")).exists();
        Ok(Echo {
            host,
            max_concurrent: 9 + u32::from(there_is(".more")) - u32::from(there_is(".less")),
            made_from: format!("{} {}", request.instance_id, request.state_dir),
            cancelled: Mutex::default(),
            wake: Condvar::new(),
        })
    }
    fn caps(&self) -> SandboxCaps {
        SandboxCaps {
            egress: abi::EGRESS_CAN_DENY,
            isolation: abi::ISO_PROCESS,
            max_concurrent: self.max_concurrent,
            ..Default::default()
        }
    }
    fn health(&self) -> Result<Health> {
        let message = self.cancelled.lock().unwrap().join(",");
        Ok(Health {
            state: abi::HEALTH_OK,
            message,
            ..Health::default()
        })
    }
    fn run(&self, request: RunRequest, services: &dyn RunServices) -> Result<RunResult> {
        let done = |output: Vec<u8>| {
            Ok(RunResult {
                completed: true,
                output_json: output,
                ..RunResult::default()
            })
        };
        if let Some(output) = misbehave(&request.function) {
            return done(output);
        }
        match request.function.as_str() {
            "made from" => done(self.made_from.clone().into_bytes()),
            "surroundings" => done(surroundings().into_bytes()),
            "log" => {
                self.host.log(Level::Warn, "echo", "said", &[]);
                done(Vec::new())
            }
            "leave a child" => leave_a_child(services),
            "leave a child that begins" => hostile::leave_a_child_that_begins(services),
            "leave a child with stderr" => hostile::leave_a_child_with_standard_error(services),
            "say no more and begin" => hostile::say_no_more_and_begin(),
            "ask and do not read" => hostile::ask_and_do_not_read(),
            "drizzle" => {
                for i in 0..=255_u8 {
                    for _ in 0..10 {
                        services.output(abi::STDOUT, &[i; 1000]);
                    }
                }
                done(b"drizzled".to_vec())
            }
            "flood" => {
                for i in 0..64_u8 {
                    services.output(abi::STDOUT, &[i; 100_000]);
                }
                done(b"flooded".to_vec())
            }
            "panic" => panic!("run panics, as asked"),
            "secret" => match services.secret(&request.code) {
                Ok(value) => done(value.to_vec()),
                Err(e) => done(format!("{}", e.code).into_bytes()),
            },
            "output" => {
                let first = services.output(abi::STDOUT, b"one");
                done(format!("{first},{}", services.output(abi::STDERR, b"two")).into_bytes())
            }
            "blob" => {
                let writer = services.blob_create("text/plain")?;
                services.blob_write(writer, b"hello")?;
                let id = services.blob_finish(writer, true)?.unwrap();
                let mut buf = [0; 16];
                let n = services.blob_read(&id, 1, &mut buf)?;
                let gone = services.blob_create("text/plain")?;
                assert_eq!(services.blob_finish(gone, false)?, None);
                Ok(RunResult {
                    completed: true,
                    output_json: buf[..n].to_vec(),
                    output_blobs: vec![id],
                    ..RunResult::default()
                })
            }
            "own thread" => {
                let n = std::thread::scope(|s| {
                    s.spawn(|| services.blob_read("blob:1", 0, &mut [0; 8]))
                        .join()
                        .unwrap()
                });
                done(format!("{n:?}").into_bytes())
            }
            "make room for" => {
                make_room_for(&request.code);
                done(Vec::new())
            }
            "blob by descriptor" => {
                services.blob_fd("blob:null")?;
                done(b"given".to_vec())
            }
            "no socket" => {
                let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
                let refused = services.gate_serve(file).unwrap_err();
                done(refused.code.to_string().into_bytes())
            }
            "gate" => {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                services.gate_serve(listener.into())?;
                done(b"served".to_vec())
            }
            "mounts" => {
                let mut seen = Vec::new();
                for mount in &request.mounts {
                    let fd_works = match &mount.source {
                        Source::Fd(fd) => std::fs::File::from(fd.try_clone().unwrap())
                            .metadata()
                            .is_ok(),
                        _ => true,
                    };
                    seen.push(format!("{}={fd_works}", mount.target));
                }
                done(seen.join(",").into_bytes())
            }
            "hang" => {
                services.output(abi::STDOUT, b"started");
                loop {
                    std::thread::park();
                }
            }
            "wait" => {
                services.output(abi::STDOUT, b"started");
                let mut cancelled = self.cancelled.lock().unwrap();
                while !cancelled.contains(&request.run_id) {
                    cancelled = self.wake.wait(cancelled).unwrap();
                }
                assert!(services.cancelled());
                services.output(abi::STDOUT, b"ended");
                Err(Error::new(abi::E_CANCELLED, "cancelled"))
            }
            _ => done(request.args_json),
        }
    }
    fn cancel(&self, run_id: &str) {
        self.cancelled.lock().unwrap().push(run_id.into());
        self.wake.notify_all();
    }
}
