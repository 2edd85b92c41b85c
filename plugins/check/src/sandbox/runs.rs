//! Runs: answers, failures, output, secrets, mounts.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::getpid;
use serde_json::json;
use skillgate_plugin_host::RunHost;
use skillgate_plugin_sdk::model::{Mount, RunRequest, Source};

use super::{Services, is_no_such_language, output, output_of, request, run};
use crate::bench::{Bench, Done, demand, failed, failed_at};

/// Runs at once.
const MANY: usize = 16;
/// More than the gateway's side keeps.
const FLOOD_LINES: usize = 60_000;

/// How soon a run that prints at once is heard of.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// What no sandbox runs.
const NO_LANGUAGE: &str = "skillgate-check-no-such-language";

pub(crate) fn languages(bench: &Bench) -> Done {
    let sandbox = bench.sandbox()?;
    let request = RunRequest {
        language: NO_LANGUAGE.into(),
        ..request("def main(args):\n    return 1\n")
    };
    match run(bench, &sandbox, NO_LANGUAGE, request, &Arc::default()) {
        Err(error) if is_no_such_language(&error) => Ok(()),
        Err(error) => Err(failed(format!(
            "a run of the language {NO_LANGUAGE:?} ends with {error}, not executed = {}",
            error.not_executed
        ))),
        Ok(_) => Err(failed(format!(
            "a run of the language {NO_LANGUAGE:?} ends with a result"
        ))),
    }
}

pub(crate) fn answers(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let request = RunRequest {
        args_json: br#"{"name":"w\u00f6rld","n":[1,2.5,null,true]}"#.to_vec(),
        ..request("def main(args):\n    return {'got': args}\n")
    };
    let got = output_of(
        bench,
        &sandbox,
        "returning its arguments",
        request,
        &Arc::default(),
    )?;
    let wanted = json!({"got": {"name": "wörld", "n": [1, 2.5, null, true]}});
    demand(got == wanted, || {
        format!("the output is {got}, and has to be {wanted}")
    })
}

pub(crate) fn failures(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    for (code, class) in [
        (
            "def main(args):\n    raise ValueError('no leads')\n",
            "ValueError",
        ),
        (
            "class Own(Exception): pass\ndef main(args):\n    raise Own('x')\n",
            "Own",
        ),
        ("def main(args:\n", "SyntaxError"),
    ] {
        let result = run(
            bench,
            &sandbox,
            class,
            super::request(code),
            &Arc::default(),
        )?;
        demand(!result.completed && result.error_type == class, || {
            format!(
                "code that fails with {class} ends as completed = {}, error_type {:?}",
                result.completed, result.error_type
            )
        })?;
        demand(!result.error_message.is_empty(), || {
            format!("{class}: no error_message")
        })?;
    }
    // Whatever a run does to its own process, it is the run's failure.
    let dies = "import os, signal\ndef main(args):\n    os.kill(os.getpid(), signal.SIGKILL)\n";
    let result = run(
        bench,
        &sandbox,
        "code that kills itself",
        super::request(dies),
        &Arc::default(),
    )?;
    demand(!result.completed, || {
        "a run that has killed itself (SIGKILL to its own pid) is completed. Where the code is pid 1 of its namespace of processes the kernel gives it no such signal: start it as a child of an init that waits for it".into()
    })?;
    let got = output(
        bench,
        &sandbox,
        "the run after it",
        "def main(args):\n    return 7\n",
    )?;
    demand(got == 7, || format!("the next run gives {got}"))
}

pub(crate) fn output_streams(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let services = Arc::new(Services::default());
    let code = "import sys\ndef main(args):\n    for i in range(50):\n        print('line', i, file=sys.stderr if i % 2 else sys.stdout, flush=True)\n";
    output_of(
        bench,
        &sandbox,
        "output on both streams",
        request(code),
        &services,
    )?;
    let text = services.text();
    for i in 0..50 {
        demand(text.contains(&format!("line {i}\n")), || {
            format!("line {i} of the output is missing")
        })?;
    }
    let of = |odd: usize| {
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("line ")?.parse::<usize>().ok());
        lines.filter(|i| i % 2 == odd).collect::<Vec<_>>()
    };
    demand(of(0).is_sorted() && of(1).is_sorted(), || {
        "the lines of a stream are not in order".into()
    })?;
    let services = Arc::new(Services::default());
    let code = format!(
        "def main(args):\n    for i in range({FLOOD_LINES}):\n        print('x' * 60)\n    return 'done'\n"
    );
    let got = output_of(
        bench,
        &sandbox,
        "more output than the host keeps",
        request(&code),
        &services,
    )?;
    demand(got == "done", || {
        format!("a run with much output gives {got}")
    })
}

pub(crate) fn secrets(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    // On a machine with several kits each has its own.
    let value = format!("the-secret-of-the-kit-{}", getpid().as_raw_nonzero());
    let services = || {
        Arc::new(Services {
            secrets: vec![("CHECK_SECRET".into(), value.clone())],
            ..Services::default()
        })
    };
    let named = |code: &str| RunRequest {
        secrets: vec!["CHECK_SECRET".into()],
        ..request(code)
    };
    let code = "import os\ndef main(args):\n    return os.environ.get('CHECK_SECRET')\n";
    let got = output_of(
        bench,
        &sandbox,
        "a run that is granted a secret",
        named(code),
        &services(),
    )?;
    if got != value {
        return Err(failed_at(
            "secret_read",
            "a run does not find the secret that it is granted in its environment",
        ));
    }
    let waits = "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(1)\n";
    bench.step("run: one that is granted a secret, and waits while command lines are read");
    let granted = services();
    let waiting = {
        let (sandbox, granted, request) = (Arc::clone(&sandbox), granted.clone(), named(waits));
        bench.spawn(async move { sandbox.run(request, granted as Arc<dyn RunHost>).await })
    };
    // Whether it is heard of is another case's matter.
    granted.has_output(HEARD_WITHIN);
    let shown = on_command_lines(&value)?;
    bench
        .wait(async { Ok(waiting.await) })?
        .map_err(|error| failed(error.to_string()))??;
    if let Some(process) = shown.first() {
        return Err(failed_at(
            "secret_read",
            format!(
                "while a run goes on its secret is on the command line of process {process}, for every user of the host"
            ),
        ));
    }
    let looks = "import os, glob\ndef main(args):\n    seen = repr(dict(os.environ))\n    for f in glob.glob('/proc/*/environ') + glob.glob('/tmp/**', recursive=True) + glob.glob('/workspace/**', recursive=True):\n        try: seen += repr(open(f, 'rb').read())\n        except OSError: pass\n    return seen\n";
    let got = output_of(
        bench,
        &sandbox,
        "a run that is granted none",
        request(looks),
        &services(),
    )?;
    demand(!got.to_string().contains(&value), || {
        "a run sees the secret of the run before it".into()
    })
}

/// Processes of this machine that have a text on their command line, which everybody may read.
fn on_command_lines(text: &str) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        // One that ends just now is none.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(text) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

pub(crate) fn blobs(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let services = Arc::new(Services::default());
    super::lock(&services.blobs).insert("blob:input".into(), b"the input".to_vec());
    let code = "import runtime\ndef main(args):\n    id = runtime.blobs.write_bytes(b'x' * 300000, kind='text/plain')\n    return {'id': id, 'back': len(runtime.blobs.read_bytes(id)), 'input': open('/blobs/input').read(), 'file': open('/blobs/file').read()}\n";
    let input = Mount {
        target: "/blobs/input".into(),
        read_only: true,
        source: Source::Blob("blob:input".into()),
        sha256: String::new(),
        size_bytes: 9,
    };
    // Of a store with SKG_ST_BLOB_FD.
    let path = bench.dir.join("blob");
    std::fs::write(&path, "the file")?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
    let file = Mount {
        target: "/blobs/file".into(),
        read_only: true,
        source: Source::Fd(OwnedFd::from(std::fs::File::open(&path)?)),
        sha256: String::new(),
        size_bytes: 8,
    };
    let request = RunRequest {
        mounts: vec![input, file],
        ..request(code)
    };
    let result = run(
        bench,
        &sandbox,
        "one that reads and writes blobs",
        request,
        &services,
    )?;
    if !result.completed {
        let (class, message) = (result.error_type, result.error_message);
        return Err(failed(format!(
            "a run that reads and writes blobs fails: {class}: {message}"
        )));
    }
    let got: serde_json::Value = serde_json::from_slice(&result.output_json)
        .map_err(|error| failed(format!("output_json is not JSON: {error}")))?;
    let id = got["id"].as_str().unwrap_or_default().to_owned();
    let kept = super::lock(&services.blobs).get(&id).map_or(0, Vec::len);
    let read = got["input"] == "the input" && got["file"] == "the file";
    let whole = got["back"] == 300_000 && read && kept == 300_000;
    demand(whole, || {
        format!("the run says {got}; the blob that it made has {kept} bytes")
    })?;
    demand(result.output_blobs == [id.clone()], || {
        format!(
            "output_blobs is {:?}, and the run has made {id}",
            result.output_blobs
        )
    })
}

pub(crate) fn large_output(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let services = Arc::new(Services::default());
    let mut request = request("def main(args):\n    return 'x' * 10000\n");
    request.limits.output_bytes = 4096;
    let what = "one that returns more than output_bytes";
    let result = run(bench, &sandbox, what, request, &services)?;
    demand(result.completed && result.output_spilled, || {
        format!(
            "a run that returns more than output_bytes ends as completed = {}, output_spilled = {}: {} {}",
            result.completed, result.output_spilled, result.error_type, result.error_message
        )
    })?;
    let last = result.output_blobs.last().cloned().unwrap_or_default();
    let wanted = format!("\"{}\"", "x".repeat(10_000));
    let kept = super::lock(&services.blobs).get(&last).cloned();
    demand(kept.as_deref() == Some(wanted.as_bytes()), || {
        let bytes = kept.map_or(0, |kept| kept.len());
        format!("the last of output_blobs is {last:?} with {bytes} bytes, which are not the output")
    })
}

pub(crate) fn mounts(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let dir = bench.dir.join("mounted");
    std::fs::create_dir(&dir)?;
    let file = dir.join("data.txt");
    std::fs::write(&file, "as it was")?;
    // A sandbox whose user is nobody has to be able to read it.
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
    let code = "import os\ndef main(args):\n    out = {'read': open('/skills/check.mount/data.txt').read(), 'done': []}\n    def attempt(name, f):\n        try:\n            f()\n            out['done'].append(name)\n        except OSError: pass\n    attempt('write', lambda: open('/skills/check.mount/data.txt', 'w').write('changed'))\n    attempt('make', lambda: open('/skills/check.mount/new', 'w'))\n    attempt('remove', lambda: os.unlink('/skills/check.mount/data.txt'))\n    attempt('chmod', lambda: os.chmod('/skills/check.mount/data.txt', 0o777))\n    return out\n";
    let mount = Mount {
        target: "/skills/check.mount".into(),
        read_only: true,
        source: Source::Fd(OwnedFd::from(std::fs::File::open(&dir)?)),
        sha256: String::new(),
        size_bytes: 0,
    };
    let request = RunRequest {
        mounts: vec![mount],
        ..request(code)
    };
    let got = output_of(
        bench,
        &sandbox,
        "a directory mounted read-only",
        request,
        &Arc::default(),
    )?;
    demand(got["read"] == "as it was", || {
        format!("a mounted file is read as {}", got["read"])
    })?;
    demand(got["done"] == json!([]), || {
        format!("in a read-only mount a run could {}", got["done"])
    })?;
    let kept =
        std::fs::read_to_string(&file)? == "as it was" && std::fs::read_dir(&dir)?.count() == 1;
    demand(kept, || {
        "a run has changed what it was given read-only".into()
    })
}

pub(crate) fn many(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let at_once = match sandbox.caps().max_concurrent {
        0 => MANY,
        most => MANY.min(usize::try_from(most).unwrap_or(MANY)),
    };
    bench.step(format!("run: {at_once} at once"));
    let runs: Vec<_> = (0..at_once)
        .map(|i| {
            let code =
                format!("import time\ndef main(args):\n    time.sleep(0.2)\n    return {i}\n");
            let sandbox = Arc::clone(&sandbox);
            bench.spawn(async move {
                sandbox
                    .run(request(&code), Arc::new(Services::default()))
                    .await
            })
        })
        .collect();
    for (i, run) in runs.into_iter().enumerate() {
        let result = bench
            .wait(async { Ok(run.await) })?
            .map_err(|error| failed(error.to_string()))??;
        let got = String::from_utf8_lossy(&result.output_json).into_owned();
        demand(result.completed && got.trim() == i.to_string(), || {
            format!(
                "run {i} of {at_once} at once gives {got:?} ({} {})",
                result.error_type, result.error_message
            )
        })?;
    }
    Ok(())
}
