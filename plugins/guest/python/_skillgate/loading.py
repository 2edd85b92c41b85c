"""What the modules of mounted skills are, and how their source becomes code.

`owner` is the skill whose module it is (`imports`): its `package`, the `stem` of its entrypoint's file, the `builtins` of
its modules, and the skills `mounted` below its name.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from io import FileIO
from types import ModuleType

from . import compiled

_import_module = importlib.import_module


class SkillModule(ModuleType):
    """The module of a skill's entrypoint. It is a package too, but its submodules are not written into its
    namespace: `def report()` beside `report.py` stays the function, as in a script."""

    def __setattr__(self, name, value):
        if isinstance(value, ModuleType) and sys.modules.get("%s.%s" % (self.__name__, name)) is value:
            return
        super().__setattr__(name, value)

    def __getattr__(self, name):
        module = sys.modules.get("%s.%s" % (self.__name__, name))
        if module is None:
            raise AttributeError("module %r has no attribute %r" % (self.__name__, name))
        return module


class OverlaidModule(SkillModule):
    """One with other skills mounted below its name: from outside, those win over its own attributes."""

    def __getattribute__(self, name):
        get = super().__getattribute__
        if name in get("__dict__").get("__mounted__", ()):
            return _import_module("%s.%s" % (get("__name__"), name))
        return get(name)


class VirtualPackage(ModuleType):
    """A package that is only a part of skills' names."""

    def __getattr__(self, name):
        if name in self.__dict__.get("__mounted__", ()):
            return _import_module("%s.%s" % (self.__name__, name))
        # What Python itself looks for is no skill, and may be what this asks for.
        if name.startswith("__"):
            raise AttributeError("package %r has no attribute %r" % (self.__name__, name))
        raise AttributeError(self.__spec__.loader.no_attribute(self.__name__, name))

    def __dir__(self):
        return sorted(set(super().__dir__()) | set(self.__dict__.get("__mounted__", ())))


class _SourceLoader(SourceFileLoader):
    """Reads the source itself, each time, and runs it with the skill's builtins."""

    def __init__(self, fullname: str, path: str, owner, entry: bool):
        super().__init__(fullname, path)
        self._owner = owner
        self._entry = entry

    def get_code(self, fullname):
        return _compile_file(self.get_filename(fullname))

    def create_module(self, spec):
        if not self._entry:
            return None
        if not self._owner.mounted:
            return SkillModule(spec.name)
        module = OverlaidModule(spec.name)
        module.__dict__["__mounted__"] = self._owner.mounted
        return module

    def exec_module(self, module):
        owner = self._owner
        code = _compile_file(self.path)
        names = module.__dict__
        names["__builtins__"] = owner.builtins
        alias = "%s.%s" % (owner.package, owner.stem)
        if self._entry and owner.stem and owner.stem not in owner.mounted:
            # `from . import main` in a neighbour means this module, not a second copy of it.
            sys.modules[alias] = module
        try:
            exec(code, names)
        except BaseException:
            if sys.modules.get(alias) is module:
                del sys.modules[alias]
            raise


def source_spec(fullname: str, file: str, owner, path, entry: bool = False) -> ModuleSpec:
    loader = _SourceLoader(fullname, file, owner, entry)
    spec = ModuleSpec(fullname, loader, origin=file, is_package=path is not None)
    if path is not None:
        spec.submodule_search_locations = path
    spec.has_location = True
    return spec


def new_package(spec: ModuleSpec) -> ModuleType:
    """What `importlib.util.module_from_spec` gives, without `__cached__`, since nothing is cached: that function looks for
    each attribute first, and goes through the class of the module to set it."""
    module = spec.loader.create_module(spec)
    names = module.__dict__
    names["__loader__"] = spec.loader
    names["__package__"] = spec.name
    names["__spec__"] = spec
    names["__path__"] = spec.submodule_search_locations
    if spec.origin is not None:
        names["__file__"] = spec.origin
    return module


def compile_source(source, path: str):
    """Code of a module. Every way in which Python says that text is no program becomes a SyntaxError."""
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError:
        raise
    except ValueError as cause:  # null characters, before Python 3.12
        raise SyntaxError("%s: %s" % (path, cause)) from None


def _compile_file(path: str):
    with FileIO(path) as file:
        source = file.readall()
    code = compiled.code_of(path, source)
    return compile_source(source, path) if code is None else code
