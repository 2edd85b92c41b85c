//! What a run sees of the host, of other runs, and what it can leave there.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustix::process::getpid;
use serde_json::Value;
use skillgate_plugin_host::SandboxInstance;
use skillgate_plugin_sdk::model::RunRequest;

use super::{output, output_of, request};
use crate::bench::{Bench, Done, demand};
use crate::run::CANARY;
use crate::storage::{OTHER, TENANT};

/// Directories of a host that a run that is not apart could write to.
const PLACES: [&str; 5] = ["/tmp", "/var/tmp", "/dev/shm", "/etc", "/root"];

/// Whose runs come one after the other: each tenant's come after its own, and after the other's. Where several
/// interpreters take turns, some has its second.
const TURNS: [&str; 6] = [TENANT, TENANT, OTHER, OTHER, TENANT, OTHER];

/// What a run can change of its interpreter: each is looked for, and then made if the interpreter lets it. A class that
/// nobody has any more is known to `object` for a while, so it is found also where modules are put back as they were.
const INTERPRETER: &str = r"
import __main__, builtins, json, os, sys, types
def main(args):
    mark = args['mark']
    places = {
        'a module (json)': lambda: hasattr(json, mark),
        'builtins': lambda: hasattr(builtins, mark),
        '__main__': lambda: hasattr(__main__, mark),
        'sys.modules': lambda: mark in sys.modules,
        'os.environ': lambda: mark in os.environ,
        'the classes of object': lambda: any(known.__name__ == mark for known in object.__subclasses__()),
    }
    found = [place for place, finds in places.items() if finds()]
    def attempt(change, *args):
        try: change(*args)
        except Exception: pass
    for module in (json, builtins, __main__):
        attempt(setattr, module, mark, 1)
    new = types.ModuleType(mark)
    new.kept = type(mark, (), {})
    attempt(sys.modules.__setitem__, mark, new)
    attempt(os.environ.__setitem__, mark, '1')
    return {'found': found, 'left': [place for place, finds in places.items() if finds()]}
";

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
    seen, lines = '', []
    for path in [args['path'], '/proc/%d/root%s' % (args['pid'], args['path']), '/proc/1/root' + args['path'],
                 '/proc/%d/environ' % args['pid'], '/proc/%d/cmdline' % args['pid'], '/proc/self/environ']:
        try: seen += open(path, 'rb').read(4096).decode('latin-1')
        except OSError: pass
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try: line = open(path, 'rb').read().decode('latin-1')
        except OSError: continue
        if ''.join(args['host']) in line:
            seen += ''.join(args['host'])
            lines.append([path.split('/')[2], line.replace('\0', ' ')[:120]])
    for place in args['places']:
        try: open(place + '/' + args['mark'], 'w').close()
        except OSError: pass
    return [seen, dict(os.environ), lines[:3]]
";
    // In two, so that it is on no command line where that has the arguments. All lines of a host are more than an answer holds.
    let dir = bench.dir.display().to_string();
    let (first, rest) = dir.split_at(1);
    let args = serde_json::json!({"path": path, "pid": pid, "mark": mark, "places": PLACES, "host": [first, rest]});
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
    demand(got.as_array().is_some_and(|got| got.len() == 3), || {
        format!("code that returns what it has seen returns {got}")
    })?;
    let seen = got.to_string();
    demand(!seen.contains(&secret), || {
        format!("a run has read the host's file {path}")
    })?;
    demand(!seen.contains(CANARY), || {
        "a run sees the environment of the plugin's process".into()
    })?;
    demand(!seen.contains(&dir), || {
        format!(
            "a run sees the command lines of the host's processes, here (pid as it is in there, and how the line begins): {}",
            got[2]
        )
    })?;
    demand(marks.is_empty(), || {
        format!("a run has written into the host's {}", marks.join(", "))
    })
}

pub(crate) fn runs_apart(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    files_apart(bench, &sandbox)?;
    interpreters_apart(bench, &sandbox)
}

fn files_apart(bench: &Bench, sandbox: &SandboxInstance) -> Done {
    let mark = format!("skillgate-check-left-{}", getpid().as_raw_nonzero());
    let leaves = format!(
        "def main(args):\n    left = 0\n    for place in ('/workspace', '/tmp', '/dev/shm'):\n        try:\n            open(place + '/{mark}', 'w').write('x')\n            left += 1\n        except OSError: pass\n    return left\n"
    );
    let left = output(bench, sandbox, "one that leaves files", &leaves)?;
    demand(left.as_u64().is_some_and(|left| left > 0), || {
        "a run can write neither to /workspace nor to /tmp nor to /dev/shm".into()
    })?;
    let looks = format!(
        "import os\ndef main(args):\n    found = []\n    for place in ('/workspace', '/tmp', '/dev/shm'):\n        if os.path.exists(place + '/{mark}'):\n            found.append(place)\n            os.unlink(place + '/{mark}')\n    return found\n"
    );
    let found = output(bench, sandbox, "one that looks for another's files", &looks)?;
    demand(found == Value::Array(Vec::new()), || {
        format!("a run finds the files of the run before it in {found}")
    })
}

fn interpreters_apart(bench: &Bench, sandbox: &SandboxInstance) -> Done {
    let mark = format!("skillgate_check_left_{}", getpid().as_raw_nonzero());
    let args = serde_json::json!({"mark": mark}).to_string().into_bytes();
    for tenant in TURNS {
        let request = RunRequest {
            tenant: tenant.into(),
            args_json: args.clone(),
            ..request(INTERPRETER)
        };
        let what = "one that looks for another in its interpreter, and changes it";
        let got = output_of(bench, sandbox, what, request, &Arc::default())?;
        demand(got["found"] == Value::Array(Vec::new()), || {
            format!(
                "a run finds what a run before it has left in the interpreter: {}",
                got["found"]
            )
        })?;
        demand(
            got["left"].as_array().is_some_and(|left| !left.is_empty()),
            || {
                format!(
                    "code that changes its interpreter and returns what it has changed returns {got}"
                )
            },
        )?;
    }
    Ok(())
}
