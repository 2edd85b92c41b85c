//! Runs beside each other: none sees another, nor is it the same user to the host.

use crate::basics::{mount, open_to_all};
use crate::support::*;
use crate::tools;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::Source;

#[test]
fn neighbours_do_not_see_each_other() {
    let instance = Instance::new();
    let code = "\
import os, socket, sys, time
def main(args):
    s = socket.socket(socket.AF_UNIX); s.bind('\\0meeting-point'); s.listen()
    open('/workspace/mark', 'w').close(); open('/tmp/mark', 'w').close(); open('/dev/shm/mark', 'w').close()
    print('here', flush=True)
    while not os.path.exists('/blobs/go/x'): time.sleep(0.005)
    return [os.stat('/proc/self/ns/' + n).st_ino for n in ('mnt', 'pid', 'net', 'ipc', 'uts', 'cgroup', 'user')] + sorted(os.listdir('/workspace') + os.listdir('/dev/shm'))
";
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    let request = || {
        let mut r = request(code);
        r.mounts = vec![mount(
            "/blobs/go",
            Source::Path(dir.path().display().to_string()),
        )];
        r
    };
    let (services1, services2) = (Services::default(), Services::default());
    std::thread::scope(|scope| {
        let runs: Vec<_> = [&services1, &services2]
            .map(|s| {
                let r = request();
                scope.spawn(|| instance.plugin.run(r, s).unwrap())
            })
            .into();
        eventually("both are there", || {
            [&services1, &services2]
                .iter()
                .all(|s| s.text().contains("here"))
        });
        let uids = run_uids(&instance);
        if is_root() {
            assert_eq!(uids.len(), 2, "each run has a user of its own: {uids:?}");
            assert!(uids.iter().all(|u| *u >= 200_000), "{uids:?}");
        }
        std::fs::write(dir.path().join("x"), "").unwrap();
        let results: Vec<Vec<serde_json::Value>> = runs
            .into_iter()
            .map(|r| r.join().unwrap())
            .map(|r| serde_json::from_slice(&r.output_json).unwrap_or_else(|e| panic!("{e} {r:?}")))
            .collect();
        for (one, other) in results[0].iter().zip(&results[1]).take(7) {
            assert_ne!(one, other);
        }
        assert_eq!(results[0][7..], results[1][7..]);
    });
}

/// Of two gateways with the same `uid_base`, say, or while a sandbox is exchanged.
#[test]
fn runs_of_two_launchers_have_no_user_id_in_common() {
    if !is_root() {
        return tools::left_out("every run of an ordinary user has the gateway's own user id");
    }
    let instances = [Instance::new(), Instance::new()];
    let code = "import os, time\ndef main(args):\n    print('here', flush=True)\n    while not os.path.exists('/blobs/go/x'): time.sleep(0.005)\n";
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    let blob = || Source::Path(dir.path().display().to_string());
    let services = [(); 4].map(|()| Services::default());
    std::thread::scope(|scope| {
        for (i, services) in services.iter().enumerate() {
            let mut request = request(code);
            request.mounts = vec![mount("/blobs/go", blob())];
            let plugin = &instances[i % 2].plugin;
            scope.spawn(move || plugin.run(request, services).unwrap());
        }
        eventually("all are there", || {
            services.iter().all(|s| s.text().contains("here"))
        });
        let uids = instances.each_ref().map(run_uids);
        std::fs::write(dir.path().join("x"), "").unwrap();
        assert!(uids.iter().all(|uids| uids.len() == 2), "{uids:?}");
        assert!(uids[0].is_disjoint(&uids[1]), "{uids:?}");
    });
}

/// The user ids of the runs' interpreters, as the host sees them.
fn run_uids(instance: &Instance) -> std::collections::BTreeSet<u32> {
    use std::os::unix::fs::MetadataExt;
    let launcher = instance.plugin.launcher_pid().unwrap();
    descendants(launcher)
        .iter()
        .filter(|p| name_of(**p).starts_with("python"))
        .filter_map(|p| std::fs::read_to_string(format!("/proc/{p}/status")).ok())
        .filter_map(|s| {
            s.lines().find_map(|l| {
                l.strip_prefix("Uid:")
                    .and_then(|l| l.split_whitespace().next()?.parse().ok())
            })
        })
        .collect::<std::collections::BTreeSet<u32>>()
        .into_iter()
        .filter(|u| *u != std::fs::metadata("/proc/self").unwrap().uid())
        .collect()
}
