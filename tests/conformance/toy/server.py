"""A second, tiny runtime for the Skills Protocol: it checks the suite, not the other way round.

It has no sandbox at all: the code of the cases runs as a plain child process, so it must never serve anybody
but this suite. `server.py GUIDE STATE_DIR FAULT` listens on a free port of the loopback, prints its endpoint,
and, when FAULT names one, is wrong in that one way. `FAULTS` in `../toy.rs` says which rows must notice, and `WAYS` which
names are of other ways to be right.
"""

import base64
import gc
import http.server
import itertools
import json
import os
import posixpath
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import container
import strict_json
from front_matter import front_matter_of
from strict_json import Twice, has_twins

GUIDE, STATE, FAULT = open(sys.argv[1], encoding="utf-8").read(), sys.argv[2], sys.argv[3]
GUEST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest.py")
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*")
STRICT_NAME = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)*")
NUMBER = r"(0|[1-9]\d*)"
SEMVER = re.compile(rf"{NUMBER}\.{NUMBER}\.{NUMBER}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
KIND = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w-]+=[\w.-]+)*")
REQUIRED = object()
# JSON-RPC leaves -32000 to -32099 to the server.
OWN_CODES = {-32003: -32051, -32004: -32050}
# Wherever the protocol leaves it open, not as skillgate does it.
OTHERWISE = FAULT == "otherwise"
# Likewise, where the texts say how large an output may be, and not in which spelling of JSON.
OWN_WORDS = FAULT == "own-words"
# As lenient as JSON, JSON-RPC and the texts allow, and with codes of its own wherever they name none.
LENIENT = FAULT == "lenient"
KINDS_OWN = {"skill_not_found": -32001, "version_not_found": -32011, "file_not_found": 404, "blob_not_found": -32002,
             "path_escape": 4003, "cursor_invalid": 1, "skill_not_executable": -32099, "language_unsupported": -1}
# What JSON-RPC 2.0 and the texts' example call them.
MEANINGS = {-32700: "Parse error", -32600: "Invalid Request", -32601: "Method not found", -32602: "Invalid params"}


class Refused(Exception):
    def __init__(self, code, kind, message):
        super().__init__(message)
        if LENIENT:
            code = KINDS_OWN.get(kind, code)
        self.error = {"code": code, "message": message,
                      "data": {"kind": kind, "request_id": secrets.token_hex(8)}}
        if OTHERWISE:
            code = OWN_CODES.get(code, code)
            self.error = {"code": code, "message": MEANINGS.get(code, "Server error")}


def params_error(message, kind="invalid_params"):
    return Refused(-32602, kind, message)


# === JSON ===

def read_json(body):
    text = body.decode("utf-8-sig" if OTHERWISE else "utf-8")
    twins = dict if OTHERWISE or LENIENT else strict_json.marked
    return strict_json.read(text, twins, replace=LENIENT)


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


# === the store ===

def precedence(version):
    if FAULT == "versions-as-text":
        return version
    core, _, pre = version.split("+")[0].partition("-")
    parts = [(1, 0, p) if not p.isdigit() else (0, int(p), "") for p in pre.split(".")] if pre else []
    return tuple(map(int, core.split("."))), not pre, parts


class Skill:
    def __init__(self, manifest, files):
        self.manifest, self.files = manifest, files
        self.name, self.version, self.kind = manifest["name"], manifest["version"], manifest["kind"]
        self.namespace = manifest.get("namespace") or ("" if FAULT == "no-namespace" and "." not in self.name else self.name.split(".")[0])


SKILLS, BLOBS, COUNT = {}, {}, [0]
# What a server could remember of earlier answers.
LATEST, MISSED = {}, set()


def add(skill):
    SKILLS.setdefault(skill.name, {})[skill.version] = skill


add(Skill({"name": "skills.protocol.guide", "version": "0.1.0", "kind": "instruction",
           "description": "Intro to the Skills Protocol for LLMs.", "namespace": "skills.protocol",
           "tags": ["guide", "bootstrap"]},
          {"SKILL.md": GUIDE.encode(), "skill.toml": b"name = \"skills.protocol.guide\"\n"}))


KEYS = os.path.join(os.path.dirname(GUEST), "../own/skills/conformance.keys/code/main.py")
add(Skill({"name": "conformance.keys", "version": "1.0.0", "kind": "action",
           "description": "Says which of the suite's secrets it has.",
           "runtime": {"language": "python", "entrypoint": "code/main.py", "export": "main"},
           "permissions": {"secrets": ["CONFORMANCE_GRANTED", "CONFORMANCE_REFUSED"]}},
          {"SKILL.md": b"# Keys\n", "code/main.py": open(KEYS, "rb").read()}))
SECRETS = {"CONFORMANCE_GRANTED": "conformance-granted-7731", "CONFORMANCE_REFUSED": "conformance-refused-5208",
           "CONFORMANCE_UNNAMED": "conformance-unnamed-9164"}


if FAULT == "bundled":
    # It has an example of the texts from its own makers, whose code is another.
    add(Skill({"name": "salesforce.leads.sync", "version": "0.1.0", "kind": "action", "namespace": "salesforce",
               "description": "Theirs.", "runtime": {"language": "python", "entrypoint": "code/main.py", "export": "sync_leads"}},
              {"SKILL.md": b"# Theirs\n", "code/main.py": b"def sync_leads(args):\n    return 'theirs'\n"}))


if FAULT == "inhabited":
    # Skills of its own users: some in namespaces that begin as those of the texts, and more than a page has in these.
    theirs = [(space, "contacts") for space in ("crm", "leads", "sales", "force", "skills.proto")]
    for space, count in (("hello", 60), ("salesforce", 40), ("salesforce.marketing", 20), ("skills", 60), ("stripe", 60)):
        theirs += [(space, f"a{n}") for n in range(count)]
    for space, name in theirs:
        add(Skill({"name": f"{space}.{name}", "version": "1.0.0", "kind": "instruction",
                   "description": "Of somebody else.", "namespace": space}, {"SKILL.md": b"# Theirs\n"}))


def secrets_of(skill):
    """Of those that the skill names the granted."""
    if skill is None or FAULT == "no-secrets":
        return {}
    named = skill.manifest.get("permissions", {}).get("secrets", [])
    granted = ("CONFORMANCE_GRANTED", "CONFORMANCE_UNNAMED") if skill.name == "conformance.keys" else ()
    return {name: value for name, value in SECRETS.items()
            if (name in named or FAULT == "secrets-unnamed") and (name in granted or FAULT == "secrets-named")}


def find(name, version=None):
    versions = SKILLS.get(name)
    if not versions or FAULT == "missing-remembered" and name in MISSED:
        MISSED.add(name)
        raise params_error(f"no skill {name[:80]}", "skill_not_found")
    if version is None:
        released = [v for v in versions if "-" not in v] or list(versions)
        if FAULT == "latest-is-newest":
            released = list(versions)[-1:]
        latest = max(released, key=precedence)
        return versions[LATEST.setdefault(name, latest) if FAULT == "latest-remembered" else latest]
    if version not in versions:
        raise params_error(f"no version {version[:40]}", "version_not_found")
    return versions[version]


def new_blob(content, kind):
    COUNT[0] += 1
    random = f"{COUNT[0]:022d}" if FAULT == "blob-ids-count" else secrets.token_hex(16)
    BLOBS["blob:" + random] = (content, kind)
    return "blob:" + random


def blob(blob_id):
    if blob_id not in BLOBS:
        again = blob_id if FAULT == "ids-echoed" else ""
        raise params_error(f"no such blob {again}: name it as create_blob or output_blobs of a run did", "blob_not_found")
    return BLOBS[blob_id]


def as_text(content, wanted=True):
    if FAULT == "binary-as-text" and wanted:
        return {"content": content.decode("utf-8", "replace")}
    try:
        return {"content": content.decode("utf-8")}
    except UnicodeDecodeError:
        return {"content": base64.b64encode(content).decode(), "encoding": "base64"}


def from_text(item):
    encoding = item.get("encoding")
    if encoding is None:
        return item["content"].encode()
    if encoding != "base64":
        raise params_error("encoding is base64 or absent")
    try:
        return base64.b64decode(item["content"], validate=True)
    except ValueError:
        raise params_error("content is not base64") from None


def safe(path):
    if OTHERWISE and path and not path.endswith(("/", "/.", "/..")):
        path = posixpath.normpath(path.strip().replace("\\", "/"))
    parts = path.split("/")
    if OWN_WORDS and "\0" not in path and not {"", ".", ".."} & set(parts):
        return path
    if not path or "\\" in path or any(p in ("", ".", "..") or ord(min(p)) < 32 or p[1:2] == ":" for p in parts):
        raise params_error("the path leaves the skill", "path_escape")
    return path


# === methods ===

def take(params, **shape):
    """Checks types; null is absent."""
    out = {}
    for name in params:
        if name not in shape and not OTHERWISE:
            raise params_error(f"unknown parameter {name}"[:100])
    for name, (kind, default) in shape.items():
        value = params.get(name)
        if value is None and FAULT == "null-refused" and name in params:
            raise params_error(f"{name} is null")
        if value is None:
            if default is REQUIRED:
                raise params_error(f"{name} is missing")
            value = default
        elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise params_error(f"{name} has the wrong type")
        out[name] = value
    return out


def one_of(value, choices, what):
    if value not in choices:
        raise params_error(f"{what} is one of {', '.join(choices)}")


def key_of(skill):
    return f"{skill.namespace}/{skill.name}/{skill.version}"


def list_skills(params):
    p = take(params, namespace=(str, None), detail=(str, "names"), limit=(int, 50), cursor=(str, None))
    one_of(p["detail"], ("names", "summary"), "detail")
    most = 100 if OTHERWISE else 1000
    if not (0 if OTHERWISE else 1) <= p["limit"] <= most:
        raise params_error(f"limit is 1 to {most}")
    if "limit" not in params:
        p["limit"] = {"small-pages": 20, "large-pages": 100}.get(FAULT, p["limit"])
    space = p["namespace"]

    def fits(skill):
        if space is None:
            return True
        if FAULT == "namespace-is-a-prefix":
            return skill.namespace.startswith(space)
        if FAULT == "semantic-search":
            return space in skill.namespace or space in skill.manifest["description"]
        return skill.namespace == space or skill.namespace.startswith(space + ".")

    found = [s for versions in SKILLS.values() for s in versions.values() if fits(s)]
    found.sort(key=lambda s: precedence(s.version), reverse=True)
    found.sort(key=lambda s: (s.namespace, s.name))
    if FAULT == "unsorted":
        found.reverse()
    start = 0
    if p["cursor"] is not None and FAULT != "cursor-ignored":
        keys = [key_of(s) for s in found]
        if LENIENT:
            place = [None, keys.index(p["cursor"]) + 1 if p["cursor"] in keys else 0]
        else:
            place = re.fullmatch(r"(\d+)(?:\.[0-9a-f]{8})?" if OTHERWISE else r"toy-(\d+)-end", p["cursor"])
        if not place:
            raise params_error("not a cursor of this server", "cursor_invalid")
        start = int(place[1])
    page = found[start:start + (9999 if FAULT == "summary-unpaged" and p["detail"] == "summary" else p["limit"])]
    entries = []
    for s in page:
        entry = {"name": s.name, "version": s.version, "description": s.manifest["description"][:60 if FAULT == "descriptions-cut" else None],
                 "namespace": s.namespace, "kind": s.kind}
        if OTHERWISE:
            entry["published_at"] = "2026-01-01"
        if p["detail"] == "summary":
            entry["tags"] = s.manifest.get("tags", [])
        entries.append(entry)
    more = start + len(page) < len(found)
    if LENIENT:
        return {"skills": entries, "next_cursor": key_of(page[-1]) if len(page) == p["limit"] else None}
    cursor = f"{start + len(page)}.{secrets.token_hex(4)}" if OTHERWISE else f"toy-{start + len(page)}-end"
    return {"skills": entries, "next_cursor": cursor if more else None}


def front_matter(skill):
    text = skill.files["SKILL.md"].decode().replace("\r\n", "\r\n" if FAULT == "front-matter-lf" else "\n")
    match = (re.search if FAULT == "front-matter-anywhere" else re.match)(r"---\n(.*?)\n---\n", text, re.S)
    if FAULT != "front-matter-by-lines":
        return front_matter_of(match[1].splitlines()) if match else {}
    out = {}
    for line in match[1].splitlines() if match else []:
        key, _, value = line.partition(": ")
        listed = re.fullmatch(r"\[(.*)\]", value)
        out[key] = [v.strip() for v in listed[1].split(",")] if listed else value
    return out


def describe_skill(params):
    p = take(params, name=(str, REQUIRED), version=(str, None), detail=(str, "summary"))
    one_of(p["detail"], ("manifest", "summary", "full"), "detail")
    skill = find(p["name"], p["version"])
    manifest = dict(skill.manifest, **({} if OTHERWISE else {"namespace": skill.namespace}))
    if FAULT == "lists-sorted":
        manifest["tags"] = sorted(manifest.get("tags", []))
    if FAULT == "false-is-nothing":
        manifest["inputs"] = {name: {k: v for k, v in about.items() if v} for name, about in manifest.get("inputs", {}).items()}
    if FAULT == "manifest-cut" or FAULT == "summary-cut" and p["detail"] == "summary":
        manifest = {k: v for k, v in manifest.items() if k in ("name", "version", "description", "kind")}
    out = {"manifest": manifest}
    if p["detail"] != "manifest":
        out["skill_md_frontmatter"] = {} if FAULT == "no-front-matter" else front_matter(skill)
    if p["detail"] == "full":
        out["skill_md"] = skill.files["SKILL.md"].decode()
    return {"skill": out}


def read_skill_file(params):
    p = take(params, name=(str, REQUIRED), version=(str, None), path=(str, REQUIRED))
    skill = find(p["name"], p["version"] if FAULT != "version-guessed" or p["version"] in SKILLS.get(p["name"], {}) else None)
    if FAULT == "path-escape" and ".." in p["path"]:
        return {"content": "root:x:0:0:root:/root:/bin/sh\n"}
    content = skill.files.get(safe(p["path"]))
    if content is None:
        raise params_error("no such file", "file_not_found")
    if FAULT == "file-trimmed":
        content = content.strip()
    return as_text(content[:65536 if FAULT == "files-cut" else None])


def guide(params):
    take(params)
    content = GUIDE
    if FAULT == "guide-stripped":
        content = content.split("---\n", 2)[2]
    if FAULT == "guide-rewritten":
        content = content.replace("Recommended Workflow", "Workflow")
    return {"content": content}


def create_blob(params):
    p = take(params, content=(str, REQUIRED), kind=(str, REQUIRED), encoding=(str, None))
    if not OTHERWISE and not KIND.fullmatch(p["kind"]) or len(p["kind"]) > 255 and FAULT != "long-kinds":
        raise params_error("kind is a MIME type")
    content = from_text(p)
    size = len(p["content"]) if FAULT == "size-in-characters" else len(content)
    return {"blob_id": new_blob(content, p["kind"]), "size_bytes": size}


def read_blob(params):
    p = take(params, blob_id=(str, REQUIRED), mode=(str, "sample_head"), max_bytes=(int, None))
    one_of(p["mode"], ("sample_head", "sample_tail", "full"), "mode")
    if p["max_bytes"] is not None and p["max_bytes"] < 1:
        raise params_error("max_bytes is at least 1")
    content, kind = blob(p["blob_id"])
    most = p["max_bytes"] or (len(content) if p["mode"] == "full" and FAULT != "full-is-a-sample" else 2000)
    tail = p["mode"] == "sample_tail" and FAULT != "no-tail"
    start, end = (max(0, len(content) - most), len(content)) if tail else (0, min(most, len(content)))
    try:
        content.decode()
        whole = FAULT == "cuts-characters"
    except UnicodeDecodeError:
        whole = True
    while not whole and start > 0 and start < len(content) and content[start] & 0xC0 == 0x80:
        start += 1
    while not whole and end < len(content) and content[end] & 0xC0 == 0x80:
        end -= 1
    part = content[start:end]
    out = {"content": part.decode("utf-8", "replace")} if FAULT == "cuts-characters" else as_text(part)
    out["truncated"] = FAULT not in ("never-truncated", "full-is-a-sample") and len(part) < len(content)
    if FAULT == "cut-untold":
        out["truncated"] = len(part) == most < len(content)
    return dict(out, kind=kind)


def create_skill(params):
    p = take(params, manifest=(dict, REQUIRED), skill_md=(str, REQUIRED), files=(list, []))
    manifest = p["manifest"]
    if FAULT != "manifest-unchecked":
        check_manifest(manifest)
    text = p["skill_md"].replace("\r\n", "\n") if FAULT == "skill-md-line-ends" else p["skill_md"]
    files = {"SKILL.md": text.encode(), "skill.toml": compact(manifest).encode()}
    for item in p["files"]:
        take(item, path=(str, REQUIRED), content=(str, REQUIRED), encoding=(str, None))
        path = item["path"] if FAULT == "skill-path-escape" else safe(item["path"])
        if path in files:
            raise params_error(f"{path} is there twice")
        if FAULT != "resources-lost" or not path.startswith("resources/"):
            files[path] = from_text(item)
    runtime = manifest.get("runtime")
    if runtime and FAULT != "manifest-unchecked" and not OTHERWISE and runtime["entrypoint"] not in files:
        raise params_error("the entrypoint is not among the files")
    skill = Skill(manifest, files)
    if FAULT == "examples-fail" and skill.name == "hello.world":
        raise Refused(-32603, "internal", "it did not work")
    if FAULT == "examples-lost" and skill.name == "hello.world":
        raise Refused(-32004, "already_exists", "this version is there with other content")
    there = SKILLS.get(skill.name, {}).get(skill.version)
    if FAULT == "one-version-only":
        SKILLS.pop(skill.name, None)
    if there and FAULT != "versions-change":
        if there.files != files or FAULT == "again-refused":
            if FAULT == "refused-and-kept":
                there.files = {**files, **there.files}
            raise Refused(-32004, "already_exists", "this version is there with other content")
    elif FAULT != "skill-not-kept" or "kept" not in skill.name:
        add(skill)
    return {"name": skill.name, "version": skill.version}


def check_manifest(m):
    for name in ("name", "version", "description", "kind"):
        if not isinstance(m.get(name), str) or not m[name]:
            raise params_error(f"{name} is missing in the manifest")
    grammar = STRICT_NAME if FAULT == "strict-names" else NAME
    if not grammar.fullmatch(m["name"]) or not OTHERWISE and (len(m["name"]) > 200 or m["name"] == "skills.protocol.guide"):
        raise params_error("the name does not follow the grammar")
    if not SEMVER.fullmatch(m["version"]):
        raise params_error("the version is not semantic")
    one_of(m["kind"], ("action", "instruction"), "kind")
    take(m, name=(str, 0), version=(str, 0), description=(str, 0), kind=(str, 0), namespace=(str, None),
         tags=(list, REQUIRED if FAULT == "optional-required" else []), runtime=(dict, None), inputs=(dict, {}), permissions=(dict, {}))
    if m["kind"] == "action":
        r = take(m.get("runtime") or {}, language=(str, REQUIRED), entrypoint=(str, REQUIRED), export=(str, REQUIRED))
        one_of(r["language"], ("python",), "language")
        safe(r["entrypoint"])
        if not r["export"] or not OTHERWISE and not r["export"].isidentifier():
            raise params_error("export is the name of a function")


# === runs ===

def execute_skill(params):
    p = take(params, name=(str, REQUIRED), version=(str, None), args=(dict, {}), input_blobs=(list, []),
             timeout_ms=(int, 300000))
    if FAULT == "unknown-skill-runs" and p["name"] not in SKILLS:
        return failed("SkillNotFound", "no such skill")
    skill = find(p["name"], p["version"])
    if skill.kind != "action":
        if FAULT == "instructions-run":
            return {"status": "completed", "run_id": new_run(), "summary": "nothing to do"}
        raise params_error("an instruction skill has nothing to run", "skill_not_executable")
    export = "main" if FAULT == "export-ignored" else skill.manifest["runtime"]["export"]
    args = {} if FAULT == "args-lost" else p["args"]
    ended = job(None, skill, export, args, [skill], p["input_blobs"], p["timeout_ms"])
    return dict(ended, run_id="run_" + skill.name) if FAULT == "skill-run-ids" else ended


def run_code(params):
    p = take(params, language=(str, REQUIRED), code=(str, REQUIRED), entrypoint=(str, "main"), args=((dict, list) if FAULT == "code-args-any" else dict, {}),
             mount_skills=(list, []), input_blobs=(list, []), limits=(dict, {}))
    if p["language"] != "python":
        raise params_error("only python", "language_unsupported")
    if OTHERWISE and len(p["code"]) > 500_000:
        raise Refused(-32000, "too_large", "the code is too long")
    limits = take(p["limits"], timeout_ms=(int, 300000))
    skills = []
    for item in p["mount_skills"]:
        if not isinstance(item, str):
            raise params_error("mount_skills is a list of names")
        name, at, version = item.partition("@")
        if at and not version:
            raise params_error("a version follows the @")
        if FAULT == "no-pinned-mounts":
            name, version = item, ""
        skills.append(find(name, version or None))
    entry = "main" if FAULT == "entrypoint-ignored" else p["entrypoint"]
    return job(p["code"], None, entry, p["args"], skills, p["input_blobs"], limits["timeout_ms"])


def new_run():
    return "run_" + secrets.token_hex(12)


def failed(kind, message, **more):
    if kind == "SyntaxError" and FAULT == "unnamed-failures":
        return {"status": "failed", "error": {"type": kind, "message": message}}
    # As in one of the texts' examples.
    summary = "Skill execution failed." if OTHERWISE else message.strip().splitlines()[-1]
    return {"status": "failed", "run_id": new_run(), "summary": summary,
            "error": {"type": kind, "message": message}, **more}


OPEN_MACHINE = {"uid": 0, "gid": 0, "caps": "000001ffffffffff", "written": ["/etc", "/usr", "/skills"],
                "reached": ["1.1.1.1:53"], "seen": ["/etc/shadow"], "left": ["marker"], "pids": 400, "env": dict(os.environ)}
container.hole = FAULT


def job(code, skill, function, args, skills, blobs, timeout_ms):
    if timeout_ms < (0 if OTHERWISE else 1):
        raise params_error("timeout_ms is at least 1")
    for item in blobs:
        if not isinstance(item, str):
            raise params_error("input_blobs is a list of ids")
        blob(item)
    if any(s.name == "conformance.forbidden" for s in skills):
        if FAULT == "refusal-is-a-run":
            return failed("PermissionError", "you may not run it")
        raise Refused(-32003, "policy_denied", "you may not run it")
    open_machine = {"no-sandbox": OPEN_MACHINE, "any-host": {"reached": args.get("hosts")},
                    "sessions-stay": "answered" if args.get("do") == "leave" else {"began": True, "more": 9}}
    if FAULT in open_machine:
        return {"status": "completed", "run_id": new_run(), "summary": "did it", "output": open_machine[FAULT]}
    if FAULT == "container" or FAULT in container.HOLES:
        if "1 << 40" in (code or ""):
            return failed("MemoryError", "a tebibyte is too much")
        if any(word in (code or "") for word in ("setgid", "conformance-marker")):
            return {"status": "completed", "run_id": new_run(), "summary": "did it", "output": container.probed(code, args)}
        said = [output for word, output in (("hoard", 64), ('return "fine"', "fine")) if word in (code or "")]
        output = said[0] if said else dict(container.SAYS, skills=["__init__.py"] + [s.name for s in skills], **container.HOLES.get(FAULT, {}))
        return {"status": "completed", "run_id": new_run(), "summary": "did it", "output": output}
    base = tempfile.mkdtemp(dir=STATE)
    try:
        return in_process(base, code, skill, function, args, skills, blobs, timeout_ms)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def cut(path, result_path):
    logs = open(path, "rb").read().decode("utf-8", "replace")
    while len(logs.encode()) > 2048 and FAULT != "logs-uncut" and (FAULT != "failures-uncut" or completed(result_path)):
        logs = logs[:min(len(logs) - 1, 2048)]
    return logs


def completed(result_path):
    return os.path.exists(result_path) and "type" not in json.load(open(result_path, encoding="utf-8"))


def in_process(base, code, skill, function, args, skills, blobs, timeout_ms):
    shared = FAULT in ("workspace-stays", skill and "skill-workspace-stays")
    work = os.path.join(STATE, "shared") if shared else os.path.join(base, "workspace")
    os.makedirs(work, exist_ok=True)
    described = []
    for s in skills:
        root = os.path.join(base, "skills", s.name)
        for path, content in s.files.items():
            target = os.path.join(root, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as out:
                out.write(content)
        entry = s.manifest.get("runtime", {}).get("entrypoint")
        described.append({"name": s.name, "file": entry and os.path.join(root, entry)})
    os.makedirs(os.path.join(base, "in"))
    os.makedirs(os.path.join(base, "out"))
    for item in blobs[:{"blobs-not-mounted": 0, "first-blob-only": 1}.get(FAULT)]:
        with open(os.path.join(base, "in", item[5:]), "wb") as out:
            out.write(BLOBS[item][0])
    spec = {"code": code, "skill": skill and skill.name, "function": function, "args": args, "skills": described,
            "nan": FAULT == "nan-is-null", "hyphens": FAULT != "hyphens-stay", "imports": FAULT != "no-imports",
            "log": FAULT != "no-log", "fault": FAULT}
    with open(os.path.join(base, "job.json"), "w", encoding="utf-8") as out:
        json.dump(spec, out)
    env = {"PATH": os.environ.get("PATH", ""), "HOME": work, "LANG": "C.UTF-8"}
    if FAULT == "secrets-leak":
        env["SALESFORCE_API_KEY"] = "leaked"
    env.update(secrets_of(skill))
    if code is not None and FAULT == "mounted-secrets":
        for mounted in skills:
            env.update(secrets_of(mounted))
    log_path = os.path.join(base, "log")
    if FAULT == "slow-sandbox":
        time.sleep(2)
    began = time.monotonic()
    wait = 4 if FAULT == "no-timeout" else timeout_ms / 1000
    with open(log_path, "wb") as log, open(log_path + "-errors", "wb") as errors:
        stderr = {"no-stderr": subprocess.DEVNULL, "logs-cut-apart": errors}.get(FAULT, log)
        child = subprocess.Popen([sys.executable, "-I", "-B", GUEST, base], cwd=work, env=env, stdout=log,
                                 stderr=stderr, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            child.wait(wait)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        stays = FAULT == ("late-stay" if late else "orphans-stay")
        try:
            if not stays:
                os.killpg(child.pid, 9)
        except ProcessLookupError:
            pass
        if not (stays and late):
            child.wait()
    result_path = os.path.join(base, "result.json")
    common = {"logs_preview": cut(log_path, result_path) + cut(log_path + "-errors", result_path)}
    made = []
    for name in sorted(os.listdir(os.path.join(base, "out"))) if FAULT != ("skill-blobs-lost" if skill else "blobs-lost") else ():
        kind, _, content = open(os.path.join(base, "out", name), "rb").read().partition(b"\n")
        made.append((name, content, kind.decode()))
    ids = {}
    for name, content, kind in made:
        ids[name] = "blob:" + name.partition("-")[2]
        if FAULT != "run-blobs-die" and (FAULT != "failed-blobs-die" or completed(result_path)):
            BLOBS[ids[name]] = (content, kind)
    common["output_blobs"] = list(ids.values())
    if FAULT == "input-blobs-listed":
        common["output_blobs"][:0] = blobs
    if FAULT == "blob-order":
        common["output_blobs"].reverse()
    if late and FAULT == "timeout-silent":
        common["logs_preview"] = ""
    if late:
        if FAULT == "no-timeout":
            return dict(common, status="completed", run_id=new_run(), summary="done", output=None)
        return failed("Timeout", f"the run was ended after {timeout_ms} ms", **common)
    if not os.path.exists(result_path):
        return failed("Exited", f"the process ended with {child.returncode}", **common)
    result = json.load(open(result_path, encoding="utf-8"))
    if "type" in result:
        if FAULT == "failure-is-error" or FAULT == "broken-is-error" and skill and result["type"] == "LookupError":
            raise Refused(-32000, "internal", result["message"])
        return failed(result["type"], result["message"], **common)
    answer = dict(common, status="completed", run_id=new_run(), output=result["output"])
    written = json.dumps(result["output"], indent=1) if OWN_WORDS else compact(result["output"])
    spilled = len(written.encode()) > (4095 if OWN_WORDS else 4096)
    if spilled and FAULT == "big-output-lost":
        del answer["output"]
    elif spilled and FAULT != "big-output-inline":
        del answer["output"]
        answer["output_blobs"].append(new_blob(written.encode(), "application/json"))
    text = result.get("summary")
    output = result["output"]
    if text is None and isinstance(output, dict) and isinstance(output.get("summary"), str):
        text = output["summary"]
    took = int((time.monotonic() - began) * 1000)
    text = text or f"{skill.name if skill else 'code'} completed in {took} ms"
    if FAULT == "dull-summary":
        text = "done"
    answer["summary"] = text + ("; the output is in the last blob" if spilled else "")
    if FAULT == "no-run-id":
        del answer["run_id"]
    return answer


METHODS = {"list_skills": list_skills, "describe_skill": describe_skill, "read_skill_file": read_skill_file,
           "execute_skill": execute_skill, "run_code": run_code, "create_blob": create_blob,
           "read_blob": read_blob, "load_skills_protocol_guide": guide, "create_skill": create_skill}
if FAULT == "no-create-skill":
    del METHODS["create_skill"]


# === JSON-RPC over HTTP ===

def answer(request):
    """The reply to one request, or None for a notification."""
    reply = {"jsonrpc": "2.0", "id": None}
    known = isinstance(request, dict) and "id" in request
    try:
        if not isinstance(request, dict) or Twice in request:
            raise Refused(-32600, "invalid_request", "not a request")
        if known:
            if isinstance(request["id"], (dict, list, bool) if LENIENT else (dict, list, bool, float)):
                raise Refused(-32600, "invalid_request", "an id is a string, an integer or null")
            reply["id"] = str(request["id"]) if FAULT == "ids-are-text" else request["id"]
        method, params = request.get("method"), request.get("params")
        if request.get("jsonrpc") != "2.0" or not isinstance(method, str):
            known = True
            raise Refused(-32600, "invalid_request", "not a request")
        if params is not None and not isinstance(params, (dict, list)):
            known = True
            raise Refused(-32600, "invalid_request", "params is an object")
        if FAULT == "skills-are-methods" and method in SKILLS:
            return dict(reply, result=execute_skill({"name": method}))
        if method not in METHODS:
            raise Refused(-32601, "method_not_found", f"no method {method[:50]}")
        if isinstance(params, list):
            if LENIENT and method == "list_skills":
                params = dict(zip(("namespace", "detail", "limit", "cursor"), params))
            elif params:
                raise params_error("params are named")
        params = params or {}
        if has_twins(params):
            raise params_error("a member is there twice")
        if FAULT == "notifications-dropped" and not known:
            return None
        reply["result"] = METHODS[method](params)
        if OTHERWISE:
            reply["result"]["served_by"] = "toy"
            if "run_id" in reply["result"]:
                nothing = {name: None for name in ("error", "output_blobs", "logs_preview") if not reply["result"].get(name)}
                reply["result"].update(nothing)
        if FAULT == "both-result-and-error":
            reply["error"] = None
    except Refused as refusal:
        known = known or not isinstance(request, dict) or Twice in request
        reply["error"] = refusal.error
        if FAULT == "wordy":
            reply["error"]["message"] += ": " + compact(request)
        if FAULT == "all-errors-alike":
            reply["error"]["code"] = -32603
    if FAULT == "jsonrpc-missing":
        del reply["jsonrpc"]
    return reply if known or FAULT == "notifications-answered" else None


# The status of an answer that is none.
NOTHING = 202 if OTHERWISE else 204


# As a proxy in front of a server would.
BODY_BYTES_MAX = 2_000_000


# Of three requests a busy one takes one, and tells the others when to come.
TURN = itertools.count()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if OTHERWISE and len(body) > BODY_BYTES_MAX:
            return self.send(413, None)
        path = posixpath.normpath(self.path).lower() if OTHERWISE else self.path
        turn = next(TURN) % 3 if FAULT == "busy" else 0
        if turn == 1:
            return self.send(429, None)
        if turn == 2:
            later = {"code": -32007, "message": "come later", "data": {"retry_after_ms": 1}}
            return self.send(200, {"jsonrpc": "2.0", "id": None, "error": later})
        if path != "/rpc":
            return self.send(403 if OWN_WORDS else 404, None)
        try:
            request = read_json(body)
        except (ValueError, RecursionError):
            code = -32600 if FAULT == "parse-error-code" else -32700
            error = Refused(code, "parse_error", "not JSON").error
            if FAULT == "slow-refusals":
                time.sleep(3.2)
            return self.send(400 if OTHERWISE else 200, {"jsonrpc": "2.0", "id": None, "error": error})
        if isinstance(request, list) and 0 < len(request) <= 20:
            replies = [r for r in map(answer, request) if r is not None]
            if FAULT == "batch-cut":
                replies = replies[:1]
            if FAULT == "batch-ids-mixed":
                done = [r for r in replies if "result" in r]
                for r, other in zip(done, [r["id"] for r in done[1:] + done[:1]]):
                    r["id"] = other
            for r in replies:
                if FAULT == "batch-bare":
                    del r["jsonrpc"]
                if FAULT == "batch-unnamed" and "result" in r:
                    r["result"].pop("run_id", None)
                if FAULT == "batch-both":
                    r.setdefault("result", None)
                if FAULT == "batch-none" and "result" in r:
                    del r["result"]
            return self.send(200 if replies else NOTHING, replies or None)
        reply = [] if request == [] and FAULT == "empty-batch" else answer(request)
        status = 500 if reply and "result" in reply and FAULT == "http-500" else 200
        if reply and "error" in reply and LENIENT:
            status = 422
        if reply and "error" in reply and OTHERWISE:
            status = {-32600: 400, -32601: 404, -32602: 422}.get(reply["error"]["code"], 409)
        if FAULT == "slow-refusals" and reply and "error" in reply:
            time.sleep(3.2)
        self.send(status if reply is not None else NOTHING, reply)

    def do_GET(self):
        if OWN_WORDS:
            return self.send(403, None)
        self.send(405 if self.path == "/rpc" and not OTHERWISE else 404, None)

    def send(self, status, reply):
        body = b"" if reply is None else compact(reply).encode()
        self.send_response(status)
        if body:
            media = {"media-type": "text/html", "media-type-like": "application/json-seq",
                     "own-words": "Application/JSON; Charset=UTF-8"}
            self.send_header("Content-Type", media.get(FAULT, "application/json"))
        if status == 429:
            self.send_header("Retry-After", "0")
        if status == 405:
            self.send_header("Allow", "POST")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_):
        pass


if OTHERWISE:
    sys.setrecursionlimit(20_000)  # it reads what is as deep as some thousands
    threading.stack_size(256 << 20)
# A suite is over soon, and the collector looks at each of a million lists again and again while they are read.
gc.disable()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"toy http://127.0.0.1:{server.server_address[1]}/rpc", flush=True)
server.serve_forever()
