//! A gateway that has no descriptor left. In a process of its own: the others need theirs.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const CHILDREN: usize = 5;

#[test]
#[ignore = "the gateway of `a_lack_of_descriptors_is_not_said_for_each_child`"]
fn gateway_without_descriptors() {
    let said = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&said);
    let host = Host::for_tests(move |_, _, _, _| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let (control, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let rules = PoolRules {
        min: 2,
        max: 9,
        per_tenant: false,
    };
    let pool = Pool::new(control, rules);
    for _ in 0..CHILDREN {
        sys::send_message(launcher.as_fd(), b"{}", &[launcher.as_fd()]).unwrap();
    }
    drop(launcher);
    let files = libc::RLIMIT_NOFILE as i32;
    sys::set_limit(files, 64).unwrap();
    let taken: Vec<_> =
        std::iter::from_fn(|| sys::open("/dev/null", libc::O_RDONLY).ok()).collect();
    pool.hear(&host);
    drop(taken);
    assert_eq!(said.load(Ordering::Relaxed), 1);
}

/// As many come in a second as are tried.
#[test]
fn a_lack_of_descriptors_is_not_said_for_each_child() {
    let gateway = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact"])
        .arg("pool::tests::files::gateway_without_descriptors")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&gateway.stdout);
    assert!(gateway.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}
