//! What a run sees of the host, of other runs, and what it can leave there.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustix::process::getpid;
use serde_json::Value;
use skillgate_plugin_sdk::model::RunRequest;

use super::{output, output_of, request};
use crate::bench::{Bench, Done, demand};
use crate::run::CANARY;

/// Directories of a host that a run that is not apart could write to.
const PLACES: [&str; 5] = ["/tmp", "/var/tmp", "/dev/shm", "/etc", "/root"];

pub(crate) fn host(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let pid = getpid().as_raw_nonzero();
    let secret = format!("only-the-host-knows-{pid}");
    // Where everybody could read it, if anybody could see it.
    let file = tempfile::Builder::new()
        .prefix("skillgate-check-canary")
        .tempfile()?;
    std::fs::write(file.path(), &secret)?;
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644))?;
    let path = file.path().display().to_string();
    let mark = format!("skillgate-check-mark-{pid}");
    let code = r"
import glob, os
def main(args):
    seen = ''
    for path in [args['path'], '/proc/%d/root%s' % (args['pid'], args['path']), '/proc/1/root' + args['path'],
                 '/proc/%d/environ' % args['pid'], '/proc/%d/cmdline' % args['pid'], '/proc/self/environ']:
        try: seen += open(path, 'rb').read(4096).decode('latin-1')
        except OSError: pass
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try: seen += open(path, 'rb').read(4096).decode('latin-1')
        except OSError: pass
    for place in args['places']:
        try: open(place + '/' + args['mark'], 'w').close()
        except OSError: pass
    return [seen, dict(os.environ)]
";
    let args = serde_json::json!({"path": path, "pid": pid, "mark": mark, "places": PLACES});
    let request = RunRequest {
        args_json: args.to_string().into_bytes(),
        ..request(code)
    };
    let got = output_of(
        bench,
        &sandbox,
        "one that looks for the host",
        request,
        &Arc::default(),
    )?;
    let marks: Vec<_> = PLACES
        .into_iter()
        .filter(|place| std::fs::remove_file(format!("{place}/{mark}")).is_ok())
        .collect();
    demand(got.as_array().is_some_and(|got| got.len() == 2), || {
        format!("code that returns what it has seen returns {got}")
    })?;
    let seen = got.to_string();
    demand(!seen.contains(&secret), || {
        format!("a run has read the host's file {path}")
    })?;
    demand(!seen.contains(CANARY), || {
        "a run sees the environment of the plugin's process".into()
    })?;
    let dir = bench.dir.display().to_string();
    demand(!seen.contains(&dir), || {
        "a run sees the command lines of the host's processes".into()
    })?;
    demand(marks.is_empty(), || {
        format!("a run has written into the host's {}", marks.join(", "))
    })
}

pub(crate) fn runs_apart(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let mark = format!("skillgate-check-left-{}", getpid().as_raw_nonzero());
    let leaves = format!(
        "def main(args):\n    left = 0\n    for place in ('/workspace', '/tmp', '/dev/shm'):\n        try:\n            open(place + '/{mark}', 'w').write('x')\n            left += 1\n        except OSError: pass\n    return left\n"
    );
    let left = output(bench, &sandbox, "one that leaves files", &leaves)?;
    demand(left.as_u64().is_some_and(|left| left > 0), || {
        "a run can write neither to /workspace nor to /tmp nor to /dev/shm".into()
    })?;
    let looks = format!(
        "import os\ndef main(args):\n    found = []\n    for place in ('/workspace', '/tmp', '/dev/shm'):\n        if os.path.exists(place + '/{mark}'):\n            found.append(place)\n            os.unlink(place + '/{mark}')\n    return found\n"
    );
    let found = output(
        bench,
        &sandbox,
        "one that looks for another's files",
        &looks,
    )?;
    demand(found == Value::Array(Vec::new()), || {
        format!("a run finds the files of the run before it in {found}")
    })
}
