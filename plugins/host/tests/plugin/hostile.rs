//! What a process that keeps to nothing does with the descriptors that it has of the gateway's. It ends when the gateway
//! has closed them, or when it has had its seconds.

use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use skillgate_plugin_sdk::{RunServices, abi};

const SECONDS_MAX: u32 = 45;

/// The gateway's socket ("socket:"), or its pipe for the numbers of begun runs ("pipe:").
fn descriptor(kind: &str) -> i32 {
    let is_it = |fd: &i32| {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        path.is_ok_and(|path| path.to_string_lossy().starts_with(kind))
    };
    // Not standard error, which is a pipe too.
    (3..64).find(is_it).unwrap()
}

/// Numbers of runs that there are not.
static NUMBERS: [u8; 64 << 10] = [0xff; 64 << 10];

/// Fills the pipe, which is then as large as the system lets it be: whoever reads it does not come to its end.
fn fill(begins: i32) {
    const ROOM_BYTES: i32 = 1 << 20;
    // SAFETY: an open descriptor, and memory of the length that is said.
    unsafe {
        libc::fcntl(begins, libc::F_SETPIPE_SZ, ROOM_BYTES);
        while libc::write(begins, NUMBERS.as_ptr().cast(), NUMBERS.len()) > 0 {}
    }
}

/// Writes there whenever there is room, for ever.
fn go_on(begins: i32) {
    // SAFETY: as above.
    unsafe {
        libc::fcntl(begins, libc::F_SETFL, 0);
        while libc::write(begins, NUMBERS.as_ptr().cast(), NUMBERS.len()) > 0 {}
    }
}

/// Forks a child that does `first`, and when its parent goes on, `then`; it must make system calls and nothing else. Its
/// number.
fn child(first: impl FnOnce(), then: impl FnOnce()) -> String {
    let (mut ready, done) = std::io::pipe().unwrap();
    // SAFETY: the child makes system calls and nothing else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes a number.
        unsafe { libc::alarm(SECONDS_MAX) };
        first();
        // SAFETY: an open descriptor, and memory of the length that is said.
        unsafe { libc::write(done.as_raw_fd(), NUMBERS.as_ptr().cast(), 1) };
        then();
        // SAFETY: does not return.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    drop(done);
    ready.read_exact(&mut [0]).unwrap();
    child.to_string()
}

/// Ends the process, and leaves a child that begins with runs for ever. The run's output is its number.
pub(crate) fn leave_a_child_that_begins(services: &dyn RunServices) -> ! {
    let begins = descriptor("pipe:");
    let child = child(|| fill(begins), || go_on(begins));
    services.output(abi::STDOUT, child.as_bytes());
    std::process::exit(0);
}

/// Ends the process, and leaves a child that has nothing of it but standard error, until nobody reads that. The run's output
/// is its number.
pub(crate) fn leave_a_child_with_standard_error(services: &dyn RunServices) -> ! {
    const STDERR: i32 = 2;
    let keep = || {
        let mut nobody = libc::pollfd {
            fd: STDERR,
            // POLLERR comes unasked.
            events: 0,
            revents: 0,
        };
        // SAFETY: numbers, and a struct that is ours.
        unsafe {
            for fd in (0..64).filter(|fd| *fd != STDERR) {
                libc::close(fd);
            }
            libc::poll(&raw mut nobody, 1, -1);
        }
    };
    let child = child(|| {}, keep);
    services.output(abi::STDOUT, child.as_bytes());
    std::process::exit(0);
}

/// Closes its half of the socket, and begins with runs for ever.
pub(crate) fn say_no_more_and_begin() -> ! {
    let (socket, begins) = (descriptor("socket:"), descriptor("pipe:"));
    fill(begins);
    // SAFETY: an open descriptor, and numbers.
    unsafe {
        libc::alarm(SECONDS_MAX);
        libc::shutdown(socket, libc::SHUT_WR);
    }
    loop {
        go_on(begins);
    }
}

/// Stops, and has a child ask the gateway for a secret of no run, more often than anybody can keep the replies.
pub(crate) fn ask_and_do_not_read() -> ! {
    const TIMES: usize = 400;
    let socket = descriptor("socket:");
    // Service 1, number 7, no name (process/frame.rs).
    let frame: [&[u8]; 4] = [&[17, 0, 0, 0, 17, 0, 0, 0], &[0; 8], &[1, 7], &[0; 15]];
    let frames = frame.concat().repeat(1000);
    let parent = i32::try_from(std::process::id()).unwrap();
    let ask = || {
        // SAFETY: an open descriptor, this one's parent, and memory of the length that is said.
        unsafe {
            libc::kill(parent, libc::SIGSTOP);
            for _ in 0..TIMES {
                let (data, len) = (frames.as_ptr().cast(), frames.len());
                if libc::send(socket, data, len, libc::MSG_NOSIGNAL) < 0 {
                    break;
                }
            }
        }
    };
    child(|| {}, ask);
    loop {
        std::thread::park();
    }
}
