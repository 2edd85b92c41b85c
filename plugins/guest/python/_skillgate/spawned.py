"""Processes that the code starts by `multiprocessing`'s `spawn` and `forkserver`: new interpreters, which find the code and
the skills as the run does.

Such an interpreter is told how to begin before it is given its work. Here that is told more (`_Beginning`), and not what
`__main__` is: the code or the skill, which is loaded here, and has a name of its own.
"""

from __future__ import annotations

import os
import sys

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BEGIN = "import sys; sys.path.append(library); from _skillgate.spawned import begin; begin(*told)"


def prepare(context) -> None:
    """Changes how these start, in `multiprocessing.context`."""
    for method in ("spawn", "forkserver"):
        process = context._concrete_contexts[method].Process
        process._Popen = staticmethod(_telling(process._Popen))


def _telling(start):
    def popen(process):
        from multiprocessing import spawn

        if spawn.get_preparation_data.__module__ != __name__:
            spawn.get_preparation_data = _more(spawn.get_preparation_data)
        return start(process)

    return popen


def _more(preparation_data):
    def with_beginning(name):
        told = preparation_data(name)
        told.pop("init_main_from_name", None)
        told.pop("init_main_from_path", None)
        told["skillgate"] = _Beginning()
        return told

    return with_beginning


class _Beginning:
    """To unpickle it is to begin: that comes before anything that is the code's."""

    def __reduce__(self):
        from . import main, state
        import runtime.run as run

        now = state.current
        of_run = run.id, run.deadline, run._ends, _pickled(run.args)
        told = list(sys.path), tuple(now.layout), now.job, main.code_file(), of_run
        return exec, (_BEGIN, {"library": _LIBRARY, "told": told})


def _pickled(args: dict) -> list:
    """The arguments are data; the code may have put something else among them since, also what nobody there can read yet."""
    import pickle

    told = []
    for member in args.items():
        try:
            told.append(pickle.dumps(member))
        except Exception:
            continue
    return told


def _unpickled(told: list) -> dict:
    import pickle

    args = {}
    for member in told:
        try:
            name, value = pickle.loads(member)
        except Exception:
            continue  # of a class of the code's own
        args[name] = value
    return args


def begin(path, layout, job, code_file, of_run) -> None:
    """In the new process."""
    from . import imports, main, state
    from .channel import NoChannel
    import runtime.run as run

    sys.path[:] = path
    main.set_streams()
    state.current = state.Run(NoChannel(), state.Layout(*layout), job)
    run.id, run.deadline, run._ends, told = of_run
    run.args = _unpickled(told)
    imports.change_loaded()
    finder = imports.install(job["skills"] or (), state.current.layout.skills, untouched=False)
    # As the main module of a program is loaded in each of its processes.
    if job["code"] is not None:
        main.module_of_code(job["code"], code_file)
    else:
        finder.load_first(imports.module_name(job["skill"]))
