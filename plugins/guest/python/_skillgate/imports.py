"""How mounted skills are imported.

`skills.<name>` is the module of that skill's entrypoint (`-` in a name reads as `_`), and at the same time a package
whose path is the entrypoint's directory. Inside the skill its neighbours are found in three ways, as the author
likes: `from . import sibling`, `import sibling`, `import skills.<name>.sibling`. All three give the same module
object, `skills.<name>.sibling`, so two skills with equally named neighbours never meet.

`import sibling` works because each skill's modules get builtins of their own whose `__import__` looks at the
skill's directory first, as Python does for a script. The standard library and other skills do not see it.

A mounted skill wins over what a skill with a shorter name has at that place: with `acme` and `acme.sync` mounted,
`skills.acme.sync` is always the second skill, whatever `acme` defines. `acme` itself keeps its own `sync`: its
functions by the ordinary rules of Python, a neighbour `sync.py` under the name `skills.acme.__own__.sync`.

Only Python source is loaded: no .pyc (it could say something else than the source that was reviewed) and no
extension modules (`loading`). What has been compiled before is taken for the very same source alone (`compiled`).
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Callable, Dict, Optional, Set

from . import not_found, state
from .loading import VirtualPackage, new_package, source_spec

PACKAGE = "skills"
_OWN = "__own__"
# A skill cannot take these names for its neighbours: they mean the same everywhere in a run, or are no modules.
_RESERVED = frozenset((PACKAGE, "runtime", "__pycache__", "__init__")) | frozenset(sys.builtin_module_names)
# Files whose functions are between an import statement and the finder.
_MACHINERY = ("<frozen importlib", importlib.__file__, __file__)
# Modules of the standard library, by name, and what changes each when it is imported (`library`).
CHANGED: Dict[str, Callable[[ModuleType], None]] = {}

_import = builtins.__import__
_import_module = importlib.import_module

_copied_builtins: Optional[dict] = None


def copy_builtins() -> None:
    """For an interpreter from which runs are forked: the copy that the first skill of a run gets. To make one is to
    write to every object in it."""
    global _copied_builtins
    _copied_builtins = dict(vars(builtins))


def module_name(skill: str) -> str:
    """`salesforce.lead-sync` -> `skills.salesforce.lead_sync`."""
    return PACKAGE + "." + skill.replace("-", "_")


def entry_file(root: str, skill: dict) -> str:
    return "%s/%s/%s" % (root, skill["name"], skill["entrypoint"])


def load(full: str) -> ModuleType:
    """`importlib.import_module` of a whole name, which in C needs no frame of its own in a traceback."""
    _import(full)
    return sys.modules[full]


def install(skills, root: str, untouched: bool) -> "Finder":
    """Makes the mounted skills importable; they are as in the job, an instruction skill's `entrypoint` is None. Once,
    in the process of the run. `untouched`: no code runs before a skill's, so nothing has changed the builtins."""
    finder = Finder(skills, root, _copied_builtins if untouched else None)
    sys.meta_path.insert(0, finder)
    importlib.import_module = _import_module_for_skills
    return finder


class Finder:
    """Finds everything below `skills`, where nothing else looks, and loads what is only a part of names. Of the library it
    finds what is to be changed."""

    def __init__(self, skills, root: str, copied_builtins: Optional[dict]):
        self._root = root
        self._copied_builtins = copied_builtins
        # module name -> skill; two names that read the same make both ambiguous.
        self._skills: Dict[str, dict] = {}
        self._ambiguous: Dict[str, Set[str]] = {}
        # every package above a skill -> the segments of skills or packages directly below it
        self._below: Dict[str, Set[str]] = {PACKAGE: set()}
        self._owners: Dict[str, _Owner] = {}
        for skill in skills:
            full = module_name(skill["name"])
            if full in self._skills and self._skills[full]["name"] != skill["name"]:
                self._ambiguous.setdefault(full, {self._skills[full]["name"]}).add(skill["name"])
            self._skills[full] = skill
            parent, _, last = full.rpartition(".")
            while parent:
                self._below.setdefault(parent, set()).add(last)
                parent, _, last = parent.rpartition(".")

    def find_spec(self, fullname, path=None, target=None):
        if fullname != PACKAGE and not fullname.startswith(PACKAGE + "."):
            return _changed_spec(fullname, path) if fullname in CHANGED else None
        skill = self._skills.get(fullname)
        if skill is not None:
            return self._skill_spec(fullname, skill)
        owner = self._owner_of(fullname)
        if owner is not None:
            spec = self._neighbour_spec(fullname, owner)
            if spec is not None:
                return spec
        if fullname in self._below:
            return self._virtual_spec(fullname)
        if owner is not None:
            # With `name`, so that `from skills.x import missing` gives Python's own text.
            raise ModuleNotFoundError(self._no_module(fullname, owner), name=fullname)
        raise self._not_mounted(fullname)

    def create_module(self, spec):
        return VirtualPackage(spec.name)

    def exec_module(self, module):
        module.__dict__["__mounted__"] = frozenset(self._below.get(module.__name__, ()))

    def get_resource_reader(self, fullname):
        """For `importlib.resources`: the files of a directory without `__init__.py`."""
        path = sys.modules[fullname].__path__
        try:
            from importlib.readers import FileReader
        except ImportError:
            return None  # Python 3.9, in which only packages with `__init__.py` have resources
        return FileReader(SourceFileLoader(fullname, path[0] + "/__init__.py")) if path else None

    def load_first(self, full: str) -> ModuleType:
        """A skill whose file is there, when nothing below `skills` is loaded yet: as a script is, with no lock against
        other threads that import it meanwhile, since only its own code could start them. The way of an import takes as
        long as the rest, for the skill and for each package that is only a part of its name."""
        above = None
        for name in _names_above(full):
            if name in self._skills:
                module = load(full)
                break
            above = self._load_now(self._virtual_spec(name), above)
        else:
            module = self._load_now(self._skill_spec(full, self._skills[full], is_there=True), above)
        sys.modules["__main__"] = module  # what the library calls a program is here the skill that is executed
        return module

    def _load_now(self, spec: ModuleSpec, above: Optional[ModuleType]) -> ModuleType:
        name = spec.name
        module = sys.modules[name] = new_package(spec)
        spec._initializing = True  # for Python's own words to who imports it in a circle
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        finally:
            spec._initializing = False
        module = sys.modules[name]  # it may have put another in its place
        if above is not None:
            # As setattr would, which looks at the class first.
            above.__dict__[name.rpartition(".")[2]] = module
        return module

    def skills_below(self, package: str) -> frozenset:
        if package not in self._below:
            return frozenset()
        return frozenset(name for name in self._below[package] if package + "." + name in self._skills)

    def new_builtins(self) -> dict:
        """A copy, for one skill."""
        copied, self._copied_builtins = self._copied_builtins, None
        return dict(vars(builtins)) if copied is None else copied

    # -- specs ------------------------------------------------------------------------------------------------

    def _skill_spec(self, fullname: str, skill: dict, is_there: bool = False) -> ModuleSpec:
        """`is_there`: its file has just been seen."""
        names = self._ambiguous.get(fullname)
        if names:
            raise ImportError("the mounted skills %s have the same module name %s" % (_and(names), fullname))
        name, entrypoint = skill["name"], skill.get("entrypoint")
        if not entrypoint:
            if fullname in self._below:
                return self._virtual_spec(fullname)
            raise ImportError(
                "skill %r is an instruction skill: it has files to read and no code to import" % name
            )
        file = entry_file(self._root, skill)
        if not is_there and not os.path.isfile(file):
            raise ImportError("skill %r has no file %r, which its manifest names as entrypoint" % (name, entrypoint))
        owner = self._owners.get(fullname)
        if owner is None:
            owner = self._owners[fullname] = _Owner(self, fullname, file)
        return source_spec(fullname, file, owner, [owner.directory], entry=True)

    def _neighbour_spec(self, fullname: str, owner: "_Owner") -> Optional[ModuleSpec]:
        parts = fullname[len(owner.package) + 1 :].split(".")
        if parts[0] == _OWN:
            parts = parts[1:]
            if not parts:
                return self._virtual_spec(fullname)
        if not all(part.isidentifier() for part in parts):
            return None
        base = os.path.join(owner.directory, *parts)
        init = os.path.join(base, "__init__.py")
        if os.path.isfile(init):
            return source_spec(fullname, init, owner, [base])
        if os.path.isfile(base + ".py"):
            # A module that has mounted skills below its name must be a package for them to be found.
            return source_spec(fullname, base + ".py", owner, [] if fullname in self._below else None)
        if os.path.isdir(base):
            return self._virtual_spec(fullname, base)
        return None

    def _virtual_spec(self, fullname: str, *directory: str) -> ModuleSpec:
        """`directory`: where who asks for the files of the package finds them. Nobody but this finder looks for modules."""
        spec = ModuleSpec(fullname, self, is_package=True)
        spec.submodule_search_locations = list(directory)
        return spec

    def _owner_of(self, fullname: str) -> Optional["_Owner"]:
        """The skill with the longest name above `fullname`. Its module is loaded: parents are imported first."""
        parent = fullname.rpartition(".")[0]
        while parent:
            if parent in self._owners:
                return self._owners[parent]
            parent = parent.rpartition(".")[0]
        return None

    def _no_module(self, fullname: str, owner: "_Owner") -> str:
        full = owner.package
        wanted = _name_as_written(fullname)[len(full) + 1 :]
        names = getattr(sys.modules.get(full), "__dict__", {})  # it may have put another in its place
        return not_found.no_module(wanted, full, self._skills, names, owner.neighbours())

    def _not_mounted(self, fullname: str) -> ModuleNotFoundError:
        outside = _relative_import_under_way()
        if outside is not None:
            # A directory beside the entrypoint's, as files lie: what it would be as a module is no skill at all.
            return ModuleNotFoundError(outside)
        # Without `name`: with it, `from skills import x` would replace this text by a shorter one.
        return ModuleNotFoundError(self._to_mount(_name_as_written(fullname)))

    def _to_mount(self, fullname: str) -> str:
        can_be_named = state.current is None or state.current.job["code"] is not None
        return not_found.not_mounted(fullname[len(PACKAGE) + 1 :], self._skills, can_be_named)

    def no_attribute(self, package: str, name: str) -> str:
        """Of a package that is only a part of names, from which a skill may have been taken without an import of its own."""
        text, full = "package %r has no attribute %r" % (package, name), "%s.%s" % (package, name)
        # A directory of a skill has that skill's files.
        return text if self._owner_of(full) is not None else "%s: %s" % (text, self._to_mount(full))


class _Owner:
    """A skill with code, and what its own modules need."""

    def __init__(self, finder: Finder, package: str, file: str):
        self.package = package
        self.directory, _, entry = file.rpartition("/")
        self.stem = entry[:-3] if entry.endswith(".py") else None
        self._names: Optional[frozenset] = None
        # Skills whose place is in this one's module, and neighbours at whose place another skill is mounted.
        self.mounted = finder.skills_below(package)
        self.hidden = self.neighbours() & self.mounted if self.mounted else frozenset()
        self.builtins = finder.new_builtins()
        self.builtins["__import__"] = SkillImport(self)

    def has(self, name: str) -> bool:
        """Whether `name` is a neighbour's. The directory is looked at when the first name comes that could be: skills are
        read-only, so one look is enough, and one that imports nothing of its own needs none."""
        return name not in _RESERVED and name in self.neighbours()

    def neighbours(self) -> frozenset:
        if self._names is None:
            self._names = _top_level_names(self.directory)
        return self._names


class SkillImport:
    """The `__import__` of one skill's modules."""

    def __init__(self, owner: _Owner):
        self._owner = owner
        self.directory = owner.directory

    def __call__(self, name, globals=None, locals=None, fromlist=(), level=0):
        owner = self._owner
        if level == 0:
            head = name.partition(".")[0]
            if not owner.has(head):
                return _import(name, globals, locals, fromlist, 0)
            if name == owner.stem:
                return sys.modules[owner.package]
            full = self._canonical(name)
            leaf = load(full)
            if fromlist:
                return _import(full, globals, locals, fromlist, 0)
            return leaf if head == name else sys.modules[self._canonical(head)]
        if not owner.hidden:
            return _import(name, globals, locals, fromlist, level)
        return self._relative(name, globals, locals, fromlist, level)

    def module(self, name: str, package: Optional[str]):
        """`importlib.import_module` as one of the skill's modules calls it."""
        if name.startswith(".") and type(package) is str and self.knows(package.partition(".")[0]):
            return _import_module(name, self._canonical(package))
        if name.startswith(".") or not self.knows(name.partition(".")[0]):
            return _import_module(name, package)
        if name == self._owner.stem:
            return sys.modules[self._owner.package]
        return _import_module(self._canonical(name))

    def knows(self, head: str) -> bool:
        """Whether the skill has a neighbour of this name."""
        return self._owner.has(head)

    def whole_name(self, name) -> Optional[str]:
        """Of a neighbour as its skill names it, or of what is in one; None for anything else."""
        if type(name) is not str or not self.knows(name.partition(".")[0]):
            return None
        return self._owner.package if name == self._owner.stem else self._canonical(name)

    def advice(self, name: str, globals) -> str:
        """For a module that has written `from ..name import`, with dots that lead out of the skill."""
        own = self._owner.package
        package = (globals or {}).get("__package__") or own
        return not_found.outside(self.directory, name, package.count(".") - own.count("."))

    @property
    def builtins(self) -> dict:
        return self._owner.builtins

    def _canonical(self, name: str) -> str:
        own = self._owner
        middle = "." + _OWN + "." if name.partition(".")[0] in own.hidden else "."
        return own.package + middle + name

    def _relative(self, name, globals, locals, fromlist, level):
        """`from .x import y` in a skill of whose neighbours some are hidden by other skills."""
        own = self._owner
        package = (globals or {}).get("__package__") or own.package
        prefix = own.package + "." + _OWN
        if package == prefix:
            package = own.package  # a hidden module: its neighbours are those of the entrypoint
        for _ in range(level - 1):
            package = package.rpartition(".")[0]
        inside = package[len(own.package) + 1 :]
        if package != own.package and not package.startswith(own.package + "."):
            return _import(name, globals, locals, fromlist, level)
        if inside.partition(".")[0] == _OWN:
            inside = inside[len(_OWN) + 1 :]
        target = ".".join(part for part in (inside, name) if part)
        if target:
            return _import(self._canonical(target), globals, locals, fromlist, 0)
        found = _import(own.package, globals, locals, tuple(n for n in fromlist if n not in own.hidden) or ("__name__",), 0)
        if not any(n in own.hidden for n in fromlist):
            return found
        answer = ModuleType(own.package)
        for wanted in fromlist:
            if wanted in own.hidden:
                setattr(answer, wanted, _import_module(self._canonical(wanted)))
            elif wanted == "*":
                answer.__dict__.update({k: v for k, v in found.__dict__.items() if not k.startswith("_")})
            else:
                setattr(answer, wanted, getattr(found, wanted))
        return answer


class _ChangingLoader(SourceFileLoader):
    """Of a module of the standard library that is changed."""

    def exec_module(self, module):
        super().exec_module(module)
        CHANGED[self.name](module)


def _changed_spec(fullname: str, path) -> Optional[ModuleSpec]:
    spec = PathFinder.find_spec(fullname, path)
    if spec is not None and type(spec.loader) is SourceFileLoader:
        spec.loader = _ChangingLoader(fullname, spec.origin)
    return spec


def change_loaded() -> None:
    """For an interpreter that has imported some of these perhaps, before there is a finder."""
    for name, change in CHANGED.items():
        module = sys.modules.get(name)
        if module:
            change(module)


def _import_module_for_skills(name, package=None):
    """`importlib.import_module` that honours the `__import__` of the skill that calls it, and of the skill for which the
    library calls it: `importlib.resources.files("certifi")`, which `requests` needs for its certificates."""
    frame = sys._getframe(1)
    caller = frame.f_builtins.get("__import__")
    if type(caller) is SkillImport:
        return caller.module(name, package)
    try:
        return _import_module(name, package)
    except ModuleNotFoundError as missing:
        head = name.partition(".")[0]
        if not head or missing.name != head:
            raise
        skill = skill_above(frame)
        if skill is None or not skill.knows(head):
            raise
        return skill.module(name, package)


def skill_above(frame) -> Optional[SkillImport]:
    """The `__import__` of the skill on whose behalf a frame runs."""
    while frame is not None:
        found = frame.f_builtins.get("__import__")
        if type(found) is SkillImport:
            return found
        frame = frame.f_back
    return None


def _names_above(full: str):
    """The packages that a module's name says it is in, from the outermost."""
    parts = full.split(".")[:-1]
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def _top_level_names(directory: str) -> frozenset:
    """Importable names in a skill's directory."""
    names = set()
    for file in os.listdir(directory):
        name = file[:-3] if file.endswith(".py") else file
        if not name.isidentifier() or name in _RESERVED:
            continue
        if name != file or _is_package(name, "%s/%s" % (directory, file)):
            names.add(name)
    return frozenset(names)


def _is_package(name: str, path: str) -> bool:
    """Whether `import name` beside a script means this directory. One without `__init__.py` (of data, often) does not come
    before any module that there is further on: `html/page.tmpl` leaves `html` what it is."""
    if os.path.isfile(path + "/__init__.py"):
        return True
    if not os.path.isdir(path):
        return False
    found = PathFinder.find_spec(name)
    return found is None or found.origin is None  # without: a directory too


def _name_as_written(fullname: str) -> str:
    """The whole name of the import statement under way: Python imports the packages above it first."""
    frame, name = sys._getframe(1), fullname
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load":
            candidate = frame.f_locals.get("name")
            if type(candidate) is str and candidate.startswith(fullname + "."):
                name = candidate
            elif candidate != fullname:
                break
        frame = frame.f_back
    return name


def _relative_import_under_way() -> Optional[str]:
    """Of one that a skill's module makes, and that leads out of the skill: what to do. Frames as in `_name_as_written`."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_MACHINERY):
        names = frame.f_locals
        if frame.f_code is SkillImport.__call__.__code__:
            return names["self"].advice(names["name"], names["globals"]) if names["level"] > 0 else None
        if frame.f_code is SkillImport.module.__code__:
            dots = names["name"].startswith(".")
            return names["self"].advice(names["name"].lstrip("."), {"__package__": names["package"]}) if dots else None
        frame = frame.f_back
    return None


def _and(names) -> str:
    return " and ".join(repr(name) for name in sorted(names))
