"""A sandbox for tests: the other end of the channel, without any isolation."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.abspath(os.path.join(HERE, "..", "..", "python"))
FRAME_BYTES_MAX = 1024 * 1024 + 64 * 1024
TIMEOUT_S = 60
# As the gateway wants it.
_KIND = re.compile(r"(?=.{,255}$)[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+ *(;[ -~]*)?")

_SERVE = (
    "import sys; sys.path.append(sys.argv[2])\n"
    "from _skillgate.main import prepare, serve, warm\n"
    "from _skillgate.state import Layout\n"
    "root = sys.argv[3]\n"
    "exec(sys.argv[4])\n"
    "layout = Layout(root + '/skills', root + '/blobs', root + '/workspace', root + '/tmp')\n"
    "serve(prepare(int(sys.argv[1]), layout), layout)\n"
)


class Outcome:
    """What a sandbox sees of a run."""

    def __init__(self):
        self.result = None
        self.results = 0
        self.logs = ""
        self.exit = None
        self.blobs = {}  # id -> (kind, bytes)
        self.aborted = 0
        self.largest_write = 0
        self.requests = []

    @property
    def status(self):
        return self.result["status"]

    @property
    def output(self):
        return self.result["output"]

    @property
    def error(self):
        return self.result["error"]


class Sandbox:
    """A directory with skills, blobs, workspace; `run` starts an interpreter in it."""

    def __init__(self, below=None):
        self.root = tempfile.mkdtemp(prefix="skillgate-guest-", dir=below)
        self.skills = []
        self.input_blobs = []
        self.refuse = {}  # frame type -> error word
        self.written_at_once_max = None
        self.serve_inputs_by_channel = {}
        for name in ("skills", "blobs", "workspace", "tmp"):
            os.mkdir(os.path.join(self.root, name))

    def close(self):
        shutil.rmtree(self.root)

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def skill(self, name, files, entrypoint="code/main.py"):
        """Mounts a skill; `entrypoint=None` makes it an instruction skill."""
        for path, content in files.items():
            file = self.path("skills", name, path)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "wb") as out:
                out.write(content if isinstance(content, bytes) else content.encode("utf-8"))
        self.skills.append({"name": name, "version": "0.1.0", "entrypoint": entrypoint, "function": "main"})

    def mount(self, directory, entrypoint="code/main.py"):
        """Mounts a skill from its directory."""
        name = os.path.basename(directory)
        shutil.copytree(directory, self.path("skills", name))
        self.skills.append({"name": name, "version": "0.1.0", "entrypoint": entrypoint, "function": "main"})

    def blob(self, name, content):
        """An input blob; gives its id."""
        with open(self.path("blobs", name), "wb") as out:
            out.write(content)
        self.input_blobs.append("blob:" + name)
        return "blob:" + name

    def code(self, code, args=None, function="main", **more):
        return self.run(dict({"code": code, "skill": None, "function": function, "args": args or {}}, **more))

    def execute(self, name, args=None, function="main", **more):
        return self.run(dict({"code": None, "skill": name, "function": function, "args": args or {}}, **more))

    def run(self, job, before="", raw=None, bootstrap=False, code_frame=b"", code_kind=b"K"):
        before, code_frame = job.pop("before", before), job.pop("code_frame", code_frame)
        job = dict(
            {
                "run_id": "run_0123456789abcdef",
                "timeout_ms": 60000,
                "skills": self.skills,
                "blobs": self.input_blobs,
                "env": {"HOME": self.path("workspace"), "TMPDIR": self.path("tmp"), "PATH": "/usr/bin:/bin"},
                "secrets": {},
                "output_bytes": 4096,
            },
            **job,
        )
        ours, theirs = socket.socketpair()
        pipe_r, pipe_w = os.pipe()
        interpreter = [sys.executable, "-I", "-S", "-B"]
        if bootstrap:
            command = ["sh", "-c", 'fd=$1; shift; exec "$@" 3<&"$fd"', "sh", str(theirs.fileno())]
            command += interpreter + [os.path.join(LIBRARY, "bootstrap.py")]
        else:
            command = interpreter + ["-c", _SERVE, str(theirs.fileno()), LIBRARY, self.root, before]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipe_w,
            stderr=pipe_w,
            cwd=self.path("workspace"),
            env={},
            pass_fds=(theirs.fileno(),),
        )
        os.close(pipe_w)
        theirs.close()
        outcome = Outcome()
        logs = []
        reader = threading.Thread(target=_drain, args=(pipe_r, logs))
        reader.start()
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.start()
        try:
            payload = raw if raw is not None else json.dumps(job).encode("utf-8")
            self._serve(ours, outcome, [(b"J", payload)] + ([(code_kind, code_frame)] if code_frame else []))
            outcome.exit = process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            ours.close()
            reader.join()
        outcome.logs = b"".join(logs).decode("utf-8")
        return outcome

    def _serve(self, sock, outcome, frames):
        writers, stored, ended = {}, dict(self.serve_inputs_by_channel), 0
        for kind, payload in frames:
            _send(sock, kind, payload)
        while True:
            frame = _receive(sock)
            if frame is None:
                return
            kind, payload = frame
            if kind == b"R":
                outcome.results += 1
                if outcome.results == 1:
                    outcome.result = _strict_loads(payload)
                continue
            outcome.requests.append(kind.decode())
            if kind.decode() in self.refuse:
                error = {"error": self.refuse[kind.decode()], "message": "refused by the test"}
                _send(sock, b"E", json.dumps(error).encode())
            elif kind == b"C" and not _KIND.fullmatch(json.loads(payload)["kind"]):
                _send(sock, b"E", b'{"error":"invalid","message":"kind must be a MIME type"}')
            elif kind == b"C" and len(writers) - ended == self.written_at_once_max:
                _send(sock, b"E", b'{"error":"too_many","message":"so many blobs at once"}')
            elif kind == b"C":
                writers[len(writers) + 1] = (json.loads(payload)["kind"], bytearray())
                _send(sock, b"O", json.dumps({"writer": len(writers)}).encode())
            elif kind == b"W":
                outcome.largest_write = max(outcome.largest_write, len(payload) - 8)
                writers[int.from_bytes(payload[:8], "little")][1].extend(payload[8:])
                _send(sock, b"O", b"{}")
            elif kind == b"F":
                request = json.loads(payload)
                ended += 1
                if not request["commit"]:
                    outcome.aborted += 1
                    _send(sock, b"O", b"{}")
                    continue
                blob_kind, content = writers[request["writer"]]
                blob_id = "blob:made%d" % request["writer"]
                stored[blob_id] = bytes(content)
                outcome.blobs[blob_id] = (blob_kind, bytes(content))
                _send(sock, b"O", json.dumps({"id": blob_id}).encode())
            elif kind == b"G":
                request = json.loads(payload)
                content = stored.get(request["id"])
                if content is None:
                    _send(sock, b"E", b'{"error":"not_found","message":"no such blob"}')
                else:
                    _send(sock, b"D", content[request["offset"] : request["offset"] + request["len"]])
            else:
                raise AssertionError("frame of type %r" % kind)


def _strict_loads(payload):
    def refuse(what):
        raise AssertionError("%s in a result" % what)

    def pairs(items):
        names = [name for name, _ in items]
        assert len(names) == len(set(names)), "a name twice in a result"
        return dict(items)

    return json.loads(payload.decode("utf-8"), parse_constant=refuse, object_pairs_hook=pairs)


def _send(sock, kind, payload):
    try:
        sock.sendall((len(payload) + 1).to_bytes(4, "little") + kind + payload)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the guest has closed its end: the read sees it


def _receive(sock):
    head = _exactly(sock, 4)
    if head is None:
        return None
    length = int.from_bytes(head, "little")
    assert 1 <= length <= FRAME_BYTES_MAX, "a frame of %d bytes" % length
    body = _exactly(sock, length)
    # None: the guest ended half-way through a frame, which to a sandbox is an end without a result.
    return None if body is None else (body[:1], body[1:])


def _exactly(sock, count):
    data = b""
    while len(data) < count:
        try:
            piece = sock.recv(min(count - len(data), 1 << 20))
        except ConnectionResetError:
            piece = b""
        if not piece:
            return None
        data += piece
    return data


def _drain(fd, into):
    with os.fdopen(fd, "rb") as pipe:
        for piece in iter(lambda: pipe.read1(65536), b""):
            into.append(piece)
