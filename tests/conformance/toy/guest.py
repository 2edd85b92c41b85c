"""The inside of a run of the toy server: a plain process, no sandbox."""

import asyncio
import builtins
import importlib.abc
import importlib.util
import inspect
import json
import math
import os
import secrets
import sys
import time
import traceback
import types

BASE = sys.argv[1]
with open(os.path.join(BASE, "job.json"), encoding="utf-8") as file:
    JOB = json.load(file)
SUMMARY = [None]


def make(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


COUNT = [0]


def write_bytes(content, kind="application/octet-stream"):
    COUNT[0] += 1
    random = secrets.token_hex(16)
    with open(os.path.join(BASE, "out", f"{COUNT[0]:06d}-{random}"), "wb") as out:
        out.write(kind.encode() + b"\n" + content)
    return "blob:" + random


def read_bytes(blob_id):
    name = os.path.basename(blob_id[5:])
    for made in os.listdir(os.path.join(BASE, "out")) if JOB["fault"] != "own-blobs-closed" else ():
        if made.partition("-")[2] == name:
            with open(os.path.join(BASE, "out", made), "rb") as content:
                return content.read().partition(b"\n")[2]
    with open(os.path.join(BASE, "in", name), "rb") as content:
        return content.read(65536 if JOB["fault"] == "input-blobs-cut" else -1)


def lines(text):
    """Of a helper that opens blobs as text files."""
    return text.replace("\r\n", "\n") if JOB["fault"] == "line-ends" else text


def log(level):
    def write(msg):
        if JOB["log"]:
            print(f"[{level}] {msg}", flush=True)
    return write


runtime = make("runtime", summary=lambda text: SUMMARY.__setitem__(0, str(text)))
runtime.__path__ = []
runtime.blobs = make(
    "runtime.blobs", write_bytes=write_bytes, read_bytes=read_bytes,
    write_text=(lambda content: write_bytes(content.encode(), "text/plain")) if JOB["fault"] == "otherwise" else
    lambda content, kind="text/plain": write_bytes(lines(content).encode(), kind),
    write_json=lambda obj, kind="application/json": write_bytes(
        json.dumps(obj, indent=1 if JOB["fault"] == "own-words" else None).encode(), kind),
    read_text=lambda blob_id: lines(read_bytes(blob_id).decode()),
    read_json=lambda blob_id: json.loads(read_bytes(blob_id)))
runtime.log = make("runtime.log", **{level: log(level) for level in ("info", "warning", "error", "debug")})


class Skills(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, skills):
        python = (lambda name: name.replace("-", "_")) if JOB["hyphens"] else (lambda name: name)
        self.files = {"skills." + python(s["name"]): s["file"] for s in skills if s["file"]} if JOB["imports"] else {}

    def find_spec(self, name, path=None, target=None):
        if name in self.files:
            return importlib.util.spec_from_file_location(name, self.files[name], submodule_search_locations=[])
        if any(full.startswith(name + ".") for full in self.files):
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        pass


class Neighbours(importlib.abc.MetaPathFinder):
    """A plain module beside the entrypoint that is being imported."""

    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while frame and not frame.f_code.co_filename.startswith(os.path.join(BASE, "skills")):
            frame = frame.f_back
        file = frame and os.path.join(os.path.dirname(frame.f_code.co_filename), name + ".py")
        return importlib.util.spec_from_file_location(name, file) if file and os.path.exists(file) else None


class NotSerializable(Exception):
    pass


def check(value, path="output", depth=0):
    if depth > 60:
        raise NotSerializable(f"{path} is nested too deeply")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        if math.isfinite(value):
            return value
        if JOB["nan"]:
            return None
        raise NotSerializable(f"{path} is {value}, which is not JSON")
    if type(value) in (list, tuple):
        return [check(item, f"{path}[{n}]", depth + 1) for n, item in enumerate(value)]
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise NotSerializable(f"{path} has the key {key!r}, which is not a string")
        return {key: check(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    raise NotSerializable(f"{path} is of type {type(value).__name__}")


def refuse(*_):
    raise OSError("no network")


def result():
    if JOB["fault"] == "slow-start":
        time.sleep(1)
    if JOB["fault"] == "wordy":
        sys.setrecursionlimit(5000)
    if JOB["fault"] == "otherwise":
        vars(builtins).pop("ExceptionGroup", None)  # Python 3.11 and later have it
    if JOB["fault"] == "python-streams-only":
        import io
        sys.stdout = io.TextIOWrapper(os.fdopen(os.dup(1), "wb"), encoding="utf-8", line_buffering=True)
        sys.stderr = io.TextIOWrapper(os.fdopen(os.dup(2), "wb"), encoding="utf-8", line_buffering=True)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
    if JOB["fault"] == "skill-stderr-lost" and JOB["skill"]:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.meta_path.insert(0, Skills(JOB["skills"]))
    sys.meta_path.append(Neighbours())
    if JOB["fault"] == "no-network":
        import socket
        socket.socket.connect = refuse
    try:
        if JOB["skill"]:
            path = next(s["file"] for s in JOB["skills"] if s["name"] == JOB["skill"])
            main = JOB["fault"] == "skill-is-a-script"
            if JOB["fault"] == "entrypoint-flat":
                path = os.path.join(path.rpartition("/code/")[0], "code", os.path.basename(path))
            spec = importlib.util.spec_from_file_location("__main__" if main else "skill_entrypoint", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = make("__main__" if JOB["fault"] == "code-is-a-script" else "code")
            if JOB["fault"] == "code-is-no-module":
                del sys.modules["code"]
            exec(compile(JOB["code"], "code.py", "exec"), module.__dict__)
        function = getattr(module, JOB["function"], None)
        if not callable(function):
            name = "" if JOB["fault"] == "otherwise" else " " + JOB["function"]
            return {"type": "EntrypointNotFound", "message": f"no function{name}"}
        args = JOB["args"] if JOB["skill"] or JOB["fault"] != "code-args-none" else JOB["args"] or None
        value = function(args)
        if inspect.iscoroutine(value) and JOB["fault"] != "otherwise":
            value = asyncio.run(value) if JOB["fault"] != "async-not-awaited" else None
        value = check(value)
        json.dumps(value, ensure_ascii=False).encode()
        return {"output": value, "summary": SUMMARY[0]}
    except (NotSerializable, UnicodeEncodeError) as wrong:
        return {"type": "OutputNotSerializable", "message": str(wrong)}
    except BaseException as wrong:
        if JOB["fault"] == "otherwise" and not isinstance(wrong, Exception):
            raise
        # As in one of the texts' two examples of a failed run; the other has the traceback.
        words = str(wrong) if JOB["fault"] == "otherwise" else traceback.format_exc()
        if JOB["fault"] == "wordy":
            words = "".join(line for frame in traceback.extract_tb(wrong.__traceback__) for line in traceback.format_list([frame]))
        return {"type": type(wrong).__name__, "message": words or repr(wrong)}


out = result()
sys.stdout.flush()
sys.stderr.flush()
with open(os.path.join(BASE, "part.json"), "w", encoding="utf-8") as file:
    json.dump(out, file)
os.rename(os.path.join(BASE, "part.json"), os.path.join(BASE, "result.json"))
os._exit(0)
