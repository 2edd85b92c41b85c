//! What hangs while plugins are exchanged: a file on its disk, a call of the store before.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{PATIENCE, REFUSED, TAKEN, Vendor, reload};
use crate::alone;
use crate::apart::host;
use crate::examples::{instead, waiting_store};
use crate::operator::{metrics, value};
use crate::support::gateway::{Gateway, House, Settings};
use crate::support::{eventually, writing_end};

/// Far less than what hangs here does, on any machine.
const AT_ONCE: Duration = Duration::from_secs(20);

/// A file that whoever opens it waits for, as on a disk that hangs, for as long as this is there: by a lease, of which the kernel
/// makes an end after a time (`fs.lease-break-time`, 45 s).
struct Hung {
    holder: Child,
    said: BufReader<ChildStdout>,
}

impl Hung {
    fn new(file: &Path) -> Hung {
        let lease = "import fcntl, os, signal, sys\nfile = os.open(sys.argv[1], os.O_RDWR)\n\
            signal.signal(signal.SIGIO, lambda *_: os.write(1, b'asked\\n'))\n\
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\nprint('held', flush=True)\nsys.stdin.read()\n";
        let mut holder = Command::new("python3")
            .args(["-c", lease])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(holder.stdout.take().unwrap());
        let mut hung = Hung { holder, said };
        hung.says("held");
        hung
    }

    /// Waits until it does.
    fn says(&mut self, what: &str) {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), what);
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // It ends with what it reads.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// What the operator watches is there while the file of a plugin is being read, and a disk may take its time for that.
#[test]
fn a_sandbox_whose_file_hangs_holds_up_no_metrics() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let vendor = Vendor::new(&house, 0);
    let gateway = house.start();
    let mut hung = Hung::new(&vendor.file("sandbox"));
    gateway.signal("HUP");
    hung.says("asked");
    let began = Instant::now();
    let page = metrics(&gateway);
    assert!(began.elapsed() < AT_ONCE, "after {:?}", began.elapsed());
    assert!(page.contains("skillgate_plugin_info"), "{page}");
    assert!(!gateway.log().contains(TAKEN), "it is still being read");
    drop(hung);
    eventually("it has been read", PATIENCE, || {
        gateway.log().contains(TAKEN)
    });
    gateway.stop();
}

/// A call that hangs keeps its store for as long as somebody waits for it. After that the store's process is ended, and with it
/// what the call keeps: `blob_create` of a writer, `blob_write` of the one that it is of.
#[test]
fn a_store_that_hangs_is_exchanged_when_nobody_waits_for_it() {
    let _alone = alone();
    for function in ["blob_create", "blob_write"] {
        let house = House::new(Settings::default());
        let (gateway, usual, pipe) = with_hanging_store(&house, function);
        let process = host(&gateway).expect("a store that is named by its path has a process");
        let mut upload = gateway.client();
        let headers = [("content-type", "text/plain"), ("content-length", "1")];
        upload.head("POST", "/blobs", &headers).unwrap();
        upload.write(b"x").unwrap();
        // The store is in the call, and stays there.
        let _go = writing_end(&pipe, PATIENCE);
        fs::write(house.config(), &usual).unwrap();
        reload(&gateway, REFUSED);
        let kept = host(&gateway).map(|it| it.pid);
        assert_eq!(kept, Some(process.pid), "{function}: somebody waits");
        upload.hang_up();
        eventually("it is noticed", PATIENCE, || {
            let line = r#"skillgate_http_requests_total{route="/blobs",code="499"} 1"#;
            metrics(&gateway).lines().any(|it| it == line)
        });
        is_exchanged(&gateway, function);
        gateway.stop();
    }
}

/// What a run has asked it for keeps it, the run's thread and its place in the sandbox no longer than the run.
#[test]
fn a_store_that_hangs_is_exchanged_when_the_run_that_asked_it_is_over() {
    let _alone = alone();
    for function in ["blob_create", "blob_write"] {
        let house = House::new(Settings::default());
        let (gateway, usual, pipe) = with_hanging_store(&house, function);
        let code = "from runtime import blobs\n\ndef main(args):\n    blobs.write_text('x')\n";
        let params =
            json!({ "language": "python", "code": code, "limits": { "timeout_ms": 4000 } });
        let run = gateway.client().result("run_code", params).unwrap();
        assert_eq!(run["error"]["type"], "Timeout", "{function}: {run}");
        let _go = writing_end(&pipe, PATIENCE);
        let going = |part: &str| {
            let series = format!("skillgate_plugin_calls_in_flight{{plugin=\"{part}\"}}");
            value(&metrics(&gateway), &series) as u64
        };
        eventually("the sandbox has ended the run", PATIENCE, || {
            going("sandbox") == 0
        });
        assert_eq!(going("storage"), 1, "{function}: it hangs as before");
        fs::write(house.config(), &usual).unwrap();
        is_exchanged(&gateway, function);
        gateway.stop();
    }
}

/// A gateway whose store, in a process of its own, hangs in this function until somebody writes into the pipe; and the usual
/// configuration.
fn with_hanging_store(house: &House, function: &str) -> (Gateway, String, PathBuf) {
    let usual = fs::read_to_string(house.config()).unwrap();
    let (store, pipe) = waiting_store(house, function);
    let hangs = instead(&usual, r#"name = "storage-fs""#, &store);
    fs::write(house.config(), hangs).unwrap();
    let mut command = house.command();
    command.env("SKILLGATE_PLUGINS__PROCESS_CANCEL_GRACE_MS", "100");
    (house.start_as(command), usual, pipe)
}

/// For the usual one, which is in the gateway.
fn is_exchanged(gateway: &Gateway, function: &str) {
    reload(gateway, TAKEN);
    let left = host(gateway).map(|it| it.pid);
    assert_eq!(left, None, "{function}: it has ended");
    let headers = [("content-type", "text/plain")];
    let blob = gateway
        .client()
        .request("POST", "/blobs", &headers, b"x")
        .unwrap();
    assert_eq!(blob.status, 201, "{function}: {}", blob.text());
}
