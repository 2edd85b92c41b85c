# Run once, outside, with the operator's interpreter: what does it need to start? Reads the guest's files (a JSON object
# of name and text) and the directory that they will be in, prints one JSON object.
import sys, json

said = {"version": list(sys.version_info[:2]), "implementation": sys.implementation.name}
if sys.version_info < (3, 9) or sys.implementation.name != "cpython":
    # That is enough to be refused, and what follows may not be there.
    print(json.dumps(said))
    sys.exit()

import os, struct
from importlib import _bootstrap_external, util

def elf(path):
    """The dynamic loader and the SONAME that an ELF file names."""
    with open(path, "rb") as f:
        data = f.read()
    if data[:4] != b"\x7fELF" or data[4] != 2:
        return None, None
    phoff, = struct.unpack_from("<Q", data, 32)
    phentsize, phnum = struct.unpack_from("<HH", data, 54)
    loads, interp, dynamic = [], None, None
    for i in range(phnum):
        kind, _, off, vaddr, _, filesz = struct.unpack_from("<IIQQQQ", data, phoff + i * phentsize)
        if kind == 1:
            loads.append((vaddr, off, filesz))
        elif kind == 2:
            dynamic = (off, filesz)
        elif kind == 3:
            interp = data[off:off + filesz].split(b"\0")[0].decode()
    def at(addr):
        for vaddr, off, filesz in loads:
            if vaddr <= addr < vaddr + filesz:
                return addr - vaddr + off
    strtab = soname = None
    if dynamic:
        for off in range(dynamic[0], dynamic[0] + dynamic[1], 16):
            tag, value = struct.unpack_from("<QQ", data, off)
            if tag == 0:
                break
            if tag == 5:
                strtab = at(value)
            if tag == 14:
                soname = value
    if strtab is None or soname is None:
        return interp, None
    start = strtab + soname
    return interp, data[start:data.index(b"\0", start)].decode()

stdlib = os.path.dirname(os.path.realpath(os.__file__))
# Where it has been compiled; a run could not keep what it compiles of it, and most modules are taken as all of them.
modules = [os.path.join(stdlib, name) for name in os.listdir(stdlib) if name.endswith(".py")]
is_compiled = sum(os.path.exists(util.cache_from_source(path)) for path in modules) * 2 >= len(modules)
dynload = [p for p in sys.path if p.endswith("lib-dynload") and os.path.isdir(p)]
# Load what the library's extension modules load. Those for windows, sound, NIS, dbm's databases, examples and Python's own tests stay out.
skip = ("_tkinter", "xxlimited", "xxsubtype", "_xx", "_test", "_ctypes_test", "nis", "ossaudiodev", "_gdbm", "_dbm")
for directory in dynload:
    for name in sorted(os.listdir(directory)):
        module = name.split(".")[0]
        if name.endswith(".so") and not module.startswith(skip):
            try:
                __import__(module)
            except Exception:
                pass
# Loaded by name when a thread is cancelled or ends (libgcc_s), or a user is looked up (before glibc 2.34).
try:
    import ctypes
    for name in ("libgcc_s.so.1", "libnss_files.so.2"):
        try:
            ctypes.CDLL(name)
        except OSError:
            pass
except ImportError:
    pass

# The guest's modules, compiled: a run could not keep what it compiles. "Unchecked": the source is read-only.
given = json.load(sys.stdin)
compiled = {}
for name, text in given["guest"].items():
    if name.endswith(".py"):
        code = compile(text, os.path.join(given["directory"], name), "exec", dont_inherit=True)
        data = _bootstrap_external._code_to_hash_pyc(code, util.source_hash(text.encode()), False)
        compiled[os.path.relpath(util.cache_from_source("/" + name), "/")] = bytes(data).hex()

program = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
files = set()
with open("/proc/self/maps") as f:
    for line in f:
        fields = line.rstrip("\n").split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/"):
            files.add(fields[5])
loader, _ = elf(program)
libraries = []
for path in sorted(files):
    real = os.path.realpath(path)
    if real == program or real.startswith(stdlib + "/") or any(real.startswith(os.path.realpath(d) + "/") for d in dynload):
        continue
    try:
        with open(real, "rb") as f:
            if f.read(4) != b"\x7fELF":
                continue
    except OSError:
        continue
    libraries.append([real, elf(real)[1] or os.path.basename(path)])
# The host's trusted certificates, for where OpenSSL looks when nobody tells it where.
certificates = None
try:
    import ssl
    at = ssl.get_default_verify_paths().openssl_cafile
    places = (at, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem")
    found = [p for p in places if os.path.isfile(p)]
    if found and os.path.isabs(at):
        certificates = [os.path.normpath(at), os.path.realpath(found[0])]
except ImportError:
    pass

said.update({
    "head_bytes": object.__basicsize__,
    "program": program,
    "prefixes": sorted({os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix)}),
    "stdlib": stdlib,
    "is_compiled": is_compiled,
    "dynload": [os.path.realpath(p) for p in dynload],
    "loader": loader,
    "libraries": libraries,
    "compiled": compiled,
    "certificates": certificates,
})
print(json.dumps(said))
