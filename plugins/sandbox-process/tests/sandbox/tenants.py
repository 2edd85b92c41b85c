"""A run of a tenant: draws from every source of randomness, and looks everywhere for marks that are not its own."""

import ctypes
import os
import random
import re
import secrets
import ssl
import tempfile
import uuid

# In two parts, so that the pattern is not a mark.
MARK = re.compile(b"CN" + b"RY-[0-9a-f]{16}")
MARK_BYTES = 21
PIECE_BYTES = 64 << 10
FILE_BYTES_MAX = 1 << 20


def draws():
    return {
        "ssl": ssl.RAND_bytes(8).hex(), "random": random.random(), "bits": random.getrandbits(64), "uuid1": str(uuid.uuid1()),
        "uuid4": str(uuid.uuid4()), "secrets": secrets.token_hex(8), "urandom": os.urandom(8).hex(),
        "choice": "".join(random.choices("abcdefghij", k=16)), "system": random.SystemRandom().random(),
        "temporary": os.path.basename(tempfile.mktemp()), "directory": os.path.basename(tempfile.mkdtemp()),
    }


def memory():
    """Everything that can be read and written: what was there before this run is in it."""
    # Through a pipe: what is gone by the time it is looked at is an error then, and not the end.
    out, into = os.pipe()
    write = ctypes.CDLL(None).write
    write.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    for line in open("/proc/self/maps").read().splitlines():
        span, rights = line.split()[:2]
        if rights.startswith("rw"):
            begin, end = (int(at, 16) for at in span.split("-"))
            # A mark that lies across the end of a piece is whole in the next.
            for at in range(begin, end, PIECE_BYTES - MARK_BYTES):
                size = write(into, at, min(PIECE_BYTES, end - at))
                if size <= 0:
                    break
                yield line, os.read(out, size)


def files():
    for top in ("/workspace", "/tmp", "/dev/shm", "/skills", "/blobs", "/.run"):
        for directory, _, names in os.walk(top):
            yield directory, " ".join(names).encode()
            for name in names:
                with open(os.path.join(directory, name), "rb") as f:
                    yield os.path.join(directory, name), f.read(FILE_BYTES_MAX)


def descriptors():
    for name in os.listdir("/proc/self/fd"):
        try:
            yield name, os.readlink("/proc/self/fd/" + name).encode()
        except FileNotFoundError:
            pass  # the one that lists them


def places():
    for path in ("cmdline", "cgroup", "net/unix", "comm"):
        yield "/proc/self/" + path, open("/proc/self/" + path, "rb").read()
    yield "environment", repr(os.environ).encode()
    yield from descriptors()
    yield from files()
    yield from memory()


def main(args):
    mine = set(mark.encode() for mark in args["mine"])
    drawn = draws()
    foreign = {}
    for place, text in places():
        for mark in set(MARK.findall(text)) - mine:
            foreign[place] = mark.decode()
    # Left behind on purpose, for the next one to find.
    for directory in ("/workspace", "/tmp", "/dev/shm"):
        with open(directory + "/left", "w") as f:
            f.write(args["mine"][0])
    os.environ["LEFT"] = args["mine"][0]
    random.left = tempfile.left = args["mine"][0]
    # The last of what is drawn too: a generator that is seeded alike goes on alike.
    return {"draws": drawn, "again": draws(), "foreign": foreign, "pid": os.getpid()}
