"""A zygote: warms itself, then makes children of itself on the launcher's orders (`zygote.rs`). Everything below
`tend()` happens in a child, once."""

import sys


def main():
    import gc
    import os

    guest, module, modules = sys.argv[1], sys.argv[2], sys.argv[3:]
    sys.argv = ["-c"]
    del os.environ["GLIBC_TUNABLES"], os.environ["LD_BIND_NOW"]  # the C library's, at its start
    sys.path.append(guest)
    import _imp
    import bootstrap
    from importlib.machinery import ModuleSpec

    native = _imp.create_dynamic(ModuleSpec("_skillgate_zygote", None, origin=module))
    sys.modules.pop("_skillgate_zygote", None)
    __import__("linecache").cache.clear()  # since 3.13 it has this text
    prepare, rehearse, serve = bootstrap.prepare, bootstrap.rehearse, bootstrap.serve
    tend, is_idle, activate = native.tend, native.is_idle, native.activate
    for name in modules:
        __import__(name)  # first: an import later would undo some of what a rehearsal brings into the interpreter's caches
    rehearse(8, 9, times=20)
    bootstrap.warm(modules)
    gc.disable()
    tend()
    prepared = prepare(3, settled=True)
    idle = is_idle()
    if idle:
        rehearse(8, 9, skill=idle == 1)
    activate()
    serve(prepared, lingers=True)


main()
