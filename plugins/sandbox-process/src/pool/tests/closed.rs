//! A launcher that nobody hears any more.

use super::*;

/// By a mistake in the plugin or, as here, in the host's log. A run that waits has the time for an interpreter of its own.
#[test]
fn nobody_waits_for_whom_a_thread_that_panicked_does_not_hear() {
    let (pool, _host, launcher) = warm(PoolRules {
        min: 0,
        max: 9,
        per_tenant: false,
    });
    let pool = Arc::new(pool);
    let host = Host::for_tests(|_, _, _, _| panic!("by the test"));
    let hears = listen(&pool, &host).unwrap();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| pool.take("", &spec(), || false));
        while pool.look().waiting == 0 {
            std::thread::yield_now();
        }
        sys::send_message(launcher.as_fd(), b"no word", &[]).unwrap();
        assert!(run.join().unwrap().is_none());
        assert!(hears.join().is_err(), "it has panicked");
    });
    let mut buf = vec![0; MESSAGE_BYTES_MAX];
    let mut asked = || matches!(sys::take_message(launcher.as_fd(), &mut buf), Ok(Some(_)));
    while asked() {}
    let began = Instant::now();
    assert!(pool.take("", &spec(), || false).is_none());
    assert!(began.elapsed() < CHILD_WAIT / 2);
    assert!(!asked(), "what it would send nobody takes");
}
