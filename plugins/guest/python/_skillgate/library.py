"""The standard library where it works on a skill's behalf.

A skill's neighbours have no names of their own among the interpreter's modules, and its modules have builtins of their own
(`imports`). A module of the library that is given a name to import, or that puts something into the builtins, does so for
whoever calls it: it is changed when it is imported, to do it as that skill would.
"""

from __future__ import annotations

import builtins
import os
import sys
import warnings
from functools import wraps
from typing import Optional

from . import imports, spawned

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_import = builtins.__import__


def install() -> None:
    imports.CHANGED.update(
        {
            "asyncio.base_events": _of_asyncio,
            "gettext": _of_gettext,
            "importlib.util": _of_importlib_util,
            "logging.config": _of_logging_config,
            "multiprocessing.context": _of_multiprocessing,
            "pkgutil": _of_pkgutil,
            "runpy": _of_runpy,
        }
    )
    warnings._warn_unawaited_coroutine = _at_a_line_of_the_code(warnings._warn_unawaited_coroutine)


def _skill() -> Optional[imports.SkillImport]:
    """On whose behalf the caller of this function is called."""
    return imports.skill_above(sys._getframe(2))


def _of_asyncio(base_events) -> None:
    """Where the system has no socket for it, as in a run without network, some versions serve at no address and say nothing, and
    later ones do not say why."""
    create_server = base_events.BaseEventLoop.create_server

    @wraps(create_server)
    async def create_server_somewhere(self, *given, **named):
        failed = OSError("could not bind on any address")
        try:
            server = await create_server(self, *given, **named)
        except OSError as exc:
            if exc.errno is not None:
                raise
            failed = exc
        else:
            if server.sockets:
                return server
            server.close()
        base_events.socket.socket().close()  # it says why
        raise failed

    base_events.BaseEventLoop.create_server = create_server_somewhere


def _of_gettext(gettext) -> None:
    install = gettext.NullTranslations.install

    @wraps(install)
    def install_for_skill(self, names=None):
        install(self, names)
        skill = _skill()
        if skill:
            skill.builtins.update((name, vars(builtins)[name]) for name in ("_", *(names or ())) if name in vars(builtins))

    gettext.NullTranslations.install = install_for_skill


def _of_importlib_util(util) -> None:
    find_spec = util.find_spec

    @wraps(find_spec)
    def find_spec_for_skill(name, package=None):
        skill = _skill()
        whole = skill and skill.whole_name(name)
        if not whole:
            return find_spec(name, package)
        try:
            return find_spec(whole)
        except ModuleNotFoundError as missing:
            if missing.name != whole:
                raise  # what it is in is not there
            return None

    util.find_spec = find_spec_for_skill


def _of_logging_config(config) -> None:
    def import_for_skill(name, *more, **named):
        return (_skill() or _import)(name, *more, **named)

    # What its functions call, and what a `BaseConfigurator` has as the documented way to import.
    config.__import__ = import_for_skill
    config.BaseConfigurator.importer = staticmethod(import_for_skill)


def _of_multiprocessing(context) -> None:
    """Python 3.14 has another default, by which each process of a run would begin with an interpreter. The code may still choose
    for itself, which `set_start_method` would let nobody do again, and then that finds what the run finds."""
    context._default_context._default_context = context._concrete_contexts["fork"]
    spawned.prepare(context)


def _of_pkgutil(pkgutil) -> None:
    get_data = pkgutil.get_data

    @wraps(get_data)
    def get_data_for_skill(package, resource):
        skill = _skill()
        # It would load a module again that is there under its whole name.
        return get_data(skill and skill.whole_name(package) or package, resource)

    pkgutil.get_data = get_data_for_skill


def _of_runpy(runpy) -> None:
    run_module = runpy.run_module

    @wraps(run_module)
    def run_module_for_skill(mod_name, init_globals=None, run_name=None, alter_sys=False):
        skill = _skill()
        whole = skill and skill.whole_name(mod_name)
        if not whole:
            return run_module(mod_name, init_globals, run_name, alter_sys)
        # With them it finds the neighbours that it imports.
        names = {"__builtins__": skill.builtins, **(init_globals or {})}
        return run_module(whole, names, run_name, alter_sys)

    runpy.run_module = run_module_for_skill


def _at_a_line_of_the_code(warn):
    """One that the code's function leaves behind in a variable is thrown away when that has returned: the line under way is
    one of ours, which says nothing to the code's author. It was made by the function that the warning names."""

    @wraps(warn)
    def warn_unawaited_coroutine(coroutine):
        if coroutine.cr_origin is not None:
            return warn(coroutine)  # who debugs has asked for more: each line by which it was made
        text = "coroutine '%s' was never awaited" % coroutine.__qualname__
        if sys._getframe(1).f_code.co_filename.startswith(_LIBRARY):
            code = coroutine.cr_code
            warnings.warn_explicit(text, RuntimeWarning, code.co_filename, code.co_firstlineno, source=coroutine)
        else:
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=coroutine)

    return warn_unawaited_coroutine
