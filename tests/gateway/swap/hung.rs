//! A plugin's file on a disk that hangs.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::{PATIENCE, TAKEN, Vendor};
use crate::alone;
use crate::operator::metrics;
use crate::support::eventually;
use crate::support::gateway::{House, Settings};

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
