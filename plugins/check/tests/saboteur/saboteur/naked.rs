//! A "sandbox" that claims everything and runs the code with the host's Python, as the host's user, anywhere.

use std::ffi::c_void;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::wire::{shown, size_of_u32, zeroed};

use super::answer;
use super::answers::ctx_of;

/// Reads {"code", "args"} and writes what main() returns to the file that its first argument names.
const GUEST: &str = "import json, sys\njob = json.load(sys.stdin)\nspace = {}\nexec(job['code'], space)\nresult = space['main'](job['args'])\nopen(sys.argv[1], 'w').write(json.dumps(result))\n";
const CODE_BYTES_MAX: usize = 1 << 20;

/// # Safety
/// `this` is an instance's self, and the texts of the request are readable.
pub(super) unsafe fn run(this: *mut c_void, op: abi::Op, request: &abi::RunRequest) -> i32 {
    // SAFETY: the caller's promise.
    let (code, args) = unsafe {
        (
            shown(request.code, CODE_BYTES_MAX),
            request.args_json.bytes(),
        )
    };
    let args: serde_json::Value = serde_json::from_slice(args).unwrap_or_default();
    let job = serde_json::json!({"code": code, "args": args}).to_string();
    let answer_file = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new("python3")
        .args(["-c", GUEST])
        .arg(answer_file.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(job.as_bytes())
        .unwrap();
    // What it prints is heard of at once.
    let mut out = child.stdout.take().unwrap();
    let mut chunk = [0; 4096];
    let run_output = super::OUTPUT.get().unwrap();
    while let Ok(n) = out.read(&mut chunk)
        && n > 0
    {
        // SAFETY: the host's own function, during a run.
        unsafe { run_output(ctx_of(this), op, abi::STDOUT, abi::Bytes::of(&chunk[..n])) };
    }
    let completed = child.wait().unwrap().success();
    let output = std::fs::read(answer_file.path()).unwrap();
    let mut result: abi::RunResult = zeroed();
    result.struct_size = size_of_u32::<abi::RunResult>();
    result.status = if completed {
        abi::RUN_COMPLETED
    } else {
        abi::RUN_FAILED
    };
    result.output_json = abi::Bytes::of(&output);
    result.error_type = abi::Str::new("Exception");
    // SAFETY: the answer to run().
    unsafe { answer(ctx_of(this), op, (&raw const result).cast()) };
    abi::OK
}
