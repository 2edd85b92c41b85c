"""What whoever reads a failure is to do, in one sentence before the traceback."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from itertools import islice

from . import state
from .imports import SkillImport
from .loading import compile_source
from .raised import (
    LIBRARY,
    LINE_CHARS_MAX,
    cause_of,
    chain,
    errno_of,
    filename_of,
    frames_of,
    is_ours,
    last_frame,
    local_of,
    name_of,
    object_of,
    raised_by,
    raised_in,
    source_line,
    source_lines,
    strerror_of,
    text_of,
    traceback_of,
)
from .text import one_line, type_name

# Of an import that fails, what is between its statement and the error.
_IMPORTING = (LIBRARY, "<frozen importlib", importlib.__file__)
_STANDARD = os.path.dirname(os.__file__) + os.sep
_SOCKET = _STANDARD + "socket.py"
_SUBPROCESS = _STANDARD + "subprocess.py"
_GETPASS = _STANDARD + "getpass.py"
_UNITTEST = _STANDARD + "unittest/main.py"
_COMMAND_LINES = (_STANDARD + "argparse.py", _STANDARD + "optparse.py")
_GET_VARIABLE = type(os.environ).__getitem__.__code__

_RUNTIME = ("runtime", "runtime.blobs", "runtime.log", "runtime.run")
# The protocol's methods, of which code may think that they are its functions.
_TOOLS = frozenset(
    "create_blob create_skill describe_skill execute_skill list_skills load_skills_protocol_guide read_blob read_skill_file run_code".split()
)
_NAMES_MAX = 64
_NAMES_CHARS_MAX = 400
_PLACES_MAX = 8
_INSTALLERS = frozenset(("pip", "pip3", "ensurepip", "uv", "conda"))
# What some version of the library had, and what does the same ...
_NOTHING = "nothing else there does the same"
_GONE = {
    "aifc": _NOTHING,
    "asynchat": "use asyncio",
    "asyncore": "use asyncio",
    "audioop": _NOTHING,
    "cgi": "use urllib.parse.parse_qs for a query, html.escape for a text, and email.message for a header",
    "cgitb": "use traceback",
    "chunk": _NOTHING,
    "crypt": "use hashlib.scrypt or hashlib.pbkdf2_hmac",
    "distutils": "compare versions as tuples of numbers; shutil, subprocess and sysconfig do most of the rest",
    "imghdr": "compare the first bytes of the file",
    "imp": "use importlib",
    "lib2to3": "use ast",
    "mailcap": "use mimetypes",
    "nis": _NOTHING,
    "nntplib": _NOTHING,
    "pipes": "use shlex.quote for a word, and subprocess",
    "smtpd": "nobody outside can connect to a run",
    "sndhdr": "compare the first bytes of the file",
    "spwd": _NOTHING,
    "sunau": _NOTHING,
    "telnetlib": _NOTHING,
    "uu": "use binascii.a2b_uu and b2a_uu",
    "xdrlib": "use struct",
}
# ... and what it has since this one.
_SINCE = {"annotationlib": "3.14", "compression": "3.14", "tomllib": "3.11"}
# What Python has on Windows alone, whatever its version.
_OF_WINDOWS = frozenset(
    "asyncio.ProactorEventLoop asyncio.WindowsProactorEventLoopPolicy asyncio.WindowsSelectorEventLoopPolicy asyncio.windows_events "
    "asyncio.windows_utils ctypes.WinDLL ctypes.windll encodings.mbcs encodings.oem multiprocessing.popen_spawn_win32 "
    "os.O_BINARY os.add_dll_directory os.startfile signal.CTRL_BREAK_EVENT signal.CTRL_C_EVENT subprocess.CREATE_NEW_CONSOLE "
    "subprocess.CREATE_NEW_PROCESS_GROUP subprocess.CREATE_NO_WINDOW subprocess.STARTF_USESHOWWINDOW subprocess.STARTUPINFO".split()
)
_OF_A_TERMINAL = ("sys.argv", "sys.stdin", "import stdin", "open(0")
_OF_A_LOGIN = frozenset(("HOSTNAME", "LOGNAME", "PWD", "SHELL", "TERM", "USER"))
# How Python says that there were no words, and no number in none.
_OF_NOTHING = ("not enough values to unpack", "invalid literal for int() with base 10: ''", "could not convert string to float: ''")
_READS_BLOBS = (
    'a blob is read by `from runtime import blobs`: blobs.read_text(id), blobs.open(id, "r"), or blobs.path(id) for a file\'s name; '
    "its id must be in input_blobs of the call"
)
_AWAITED = ("'await'", "'async for'", "'async with'", "asynchronous comprehension")
_OF_NO_VERSION = ("was never closed", "unterminated ", "EOL while scanning", "EOF while scanning", "unexpected EOF")
_F_STRINGS = ("f'", 'f"', "fr'", 'fr"')
_VERSION = "this run has Python %d.%d" % sys.version_info[:2]
NO_SHELL = "a run has no shell and, unless its operator gives it some, no programs but Python: do it in Python"


def hint(exc, kind, function):
    """Of an exception that has left the code whose `function` was to be called; None when Python's own words do."""
    if kind is SystemExit:
        return _ended(raised_in(exc)) % one_line(function, 80)
    if kind is TypeError and is_ours(exc):
        # No line of the function has run: its call was refused.
        return "%s() is called with one argument, a dict with the arguments of the call" % one_line(function, 80)
    if issubclass(kind, OSError) and is_ours(exc) and _is_of_blobs(kind):
        # Whoever reads this must not call it again for that: what it does is done.
        return (
            "%s() has returned; what it returned is too large for an answer and could not be stored as a blob: return less"
            % one_line(function, 80)
        )
    missing = _missing(exc) if kind is ModuleNotFoundError and type(exc.name) is str else None
    if missing:
        return missing
    if kind is ImportError:
        return _module_of_the_directory(exc) or _names_of(exc.name) or _version_of(exc)
    if issubclass(kind, SyntaxError) and raised_by(exc) is compile_source.__code__:
        return _no_program(exc, one_line(function, 80))  # not of a text that the code reads or has compiled
    cause = exc
    # Python calls these "temporary failure" and "no such file": that sends its reader to try again, or to look for the file.
    for link in chain(exc):
        where = raised_in(link)
        has_proxy = "HTTPS_PROXY" in os.environ or "HTTP_PROXY" in os.environ
        if _is_of_the_network(link, where, has_proxy):
            if has_proxy:
                return "this run reaches its granted hosts through the proxy that HTTPS_PROXY names, and not directly"
            said = "this run has no network: a skill names hosts in permissions.network, and the policy grants them or not"
            return said + "; within it AF_UNIX works" if type(link) is PermissionError else said  # it is a socket that was refused
        if _installs(link, where):
            return "nothing can be installed in a run: it has the standard library, `runtime` and mounted skills"
        if where == _SUBPROCESS and issubclass(type(link), OSError) and errno_of(link) in (errno.ENOENT, errno.EACCES):
            # It names the directory that the program was to begin in, where that is what is not there.
            return None if filename_of(link) is not None and filename_of(link) is local_of(link, "cwd") else NO_SHELL
        if type(link) is KeyError and raised_by(link) is _GET_VARIABLE:
            return _no_variable(link)
        # One that the code was handling is not what it failed by, unless it has said so by `from`.
        lacks = (_no_attribute(link) or _no_argument(link)) if link is cause else None
        said = _refused(link, where) or _misnamed(link) or lacks
        if said:
            return said
        cause = cause_of(link) if link is cause else None
    return None


def _ended(where) -> str:
    if where in _COMMAND_LINES:
        return "a run has no command line: read what is needed from args, the dict that %s() gets"
    text = "the code ended the interpreter before %s() returned: "
    return text + ("call `unittest.main(exit=False)`, and return what its `.result` says" if where == _UNITTEST else "return a value instead")


def _no_program(exc, function: str):
    """For what is wrapped as in a chat, escaped once too often, or written for a notebook; else in another version it may be
    right, if not in none."""
    line = exc.text if type(exc.text) is str else ""
    said = exc.msg if type(exc.msg) is str else ""
    if line.lstrip().startswith("```"):
        return "the code is to be Python alone, without the lines of ``` around it"
    if exc.msg == "unexpected character after line continuation character" and "\\n" in line:
        return "a line of the code ends with a newline, and not with a backslash and an n"
    if "asynchronous comprehension" in said and sys.version_info < (3, 11):
        return _VERSION  # which takes it within another comprehension
    if said.startswith(_AWAITED) and "outside" in said:
        return "what awaits is to be in an `async def`: write `async def %s(args):`, which is awaited" % function
    if said == "'return' outside function":
        return "there is nothing to return from: put the code into `def %s(args):`, whose value is the result" % function
    is_f_string = any(begins in line.lower() for begins in _F_STRINGS)  # since 3.12 it may have its own quotes in it, and lines
    is_of_none = issubclass(type(exc), IndentationError) or any(word in said for word in _OF_NO_VERSION) and not is_f_string
    return None if is_of_none else _VERSION


def _missing(exc):
    head = exc.name.partition(".")[0]
    if head == "skills":
        return None  # its own text says it
    if head == "runtime":
        return _names_of(exc.name.rpartition(".")[0])
    written = _written(exc.name)
    if written:
        return written
    # What the list of the library's names has may be a package of its own in a distribution, and not be here.
    if head in _GONE and (head == exc.name or not _is_of_the_library(head)):
        return "%s, whose library has no `%s`: %s" % (_VERSION, head, _GONE[head])
    if head in _SINCE and not _is_of_the_library(head):
        return "%s, whose library has no `%s`: %s is the first that has it" % (_VERSION, head, _SINCE[head])
    skill = _importer(exc)
    if head != exc.name and _is_of_the_library(head) and (skill is None or head != skill.directory.rpartition("/")[2]):
        return "%s, whose library has no `%s`" % (_VERSION, one_line(exc.name, 80))
    can = "a run can import the standard library, `runtime` and mounted skills (`from skills.<name> import ...`)"
    return can + ", and nothing can be installed" + _beside(exc)


def _written(name):
    """Of a module that the code has made itself: where it may write, Python does not look."""
    head = name.partition(".")[0]
    layout = None if state.current is None else state.current.layout
    for directory, called in ((os.getcwd(), "os.getcwd()"), (layout and layout.tmp, "tempfile.gettempdir()")):
        path = "%s/%s" % (directory, head)
        if not head.isidentifier() or not (os.path.isfile(path + ".py") or os.path.isdir(path)):
            continue
        if directory not in (os.path.abspath(place or ".") for place in sys.path if type(place) is str):
            return "no import looks in %s, where `%s` is: `sys.path.insert(0, %s)` before it" % (directory, one_line(head, 80), called)
        if head == name:  # it has looked there, perhaps before it was written
            return "`%s` was just written: `importlib.invalidate_caches()` before the import" % one_line(head, 80)
    return None


def _version_of(exc):
    """For a name that the library may have in another version."""
    name, text = exc.name, exc.msg
    if type(name) is not str or type(text) is not str or not text.startswith("cannot import name "):
        return None
    return _VERSION if _is_of_the_library(name.partition(".")[0]) else None


def _is_of_the_library(head: str) -> bool:
    names = getattr(sys, "stdlib_module_names", None)
    if names is not None:
        return head in names
    from importlib.machinery import PathFinder  # Python 3.9 has no list of them

    places = [_STANDARD, _STANDARD + "lib-dynload"]
    return head in sys.builtin_module_names or head.isidentifier() and PathFinder.find_spec(head, places) is not None


def _installs(exc, where) -> bool:
    """Whether it is of a program that installs packages, and that failed or could not be started."""
    failed = type(exc) is getattr(sys.modules.get("subprocess"), "CalledProcessError", None)
    command = exc.cmd if failed else local_of(exc, "args") if where == _SUBPROCESS else None
    items = command[:64] if type(command) in (list, tuple) else (command,)
    words = " ".join(item[:LINE_CHARS_MAX] for item in items if type(item) is str).split()
    return not _INSTALLERS.isdisjoint(word.rpartition("/")[2] for word in words)


def _names_of(name):
    """What a module of `runtime` has, for who has asked it for something else."""
    module = sys.modules.get(name) if type(name) is str and name in _RUNTIME else None
    names = module.__dict__.get("__all__") if type(module) is type(sys) else None
    return "%s has %s" % (name, one_line(", ".join(names[:_NAMES_MAX]), _NAMES_CHARS_MAX)) if type(names) is list else None


def runtime_of(exc):
    """The name of runtime's module that has no such attribute."""
    wanted = object_of(exc) if object_of and type(exc) is AttributeError else None
    return next((name for name in _RUNTIME if wanted is not None and sys.modules.get(name) is wanted), None)


def _no_attribute(exc):
    """For `datetime.UTC`, where the module is the library's, and for `xml.sax` after `import xml`."""
    begins, text = "module '", text_of(exc) if type(exc) is AttributeError else ""
    module, _, rest = text[len(begins) :].partition("'")
    if not text.startswith(begins) or not _is_of_the_library(module.partition(".")[0]):
        return None
    attribute = rest.partition("'")[2].partition("'")[0]
    whole = one_line("%s.%s" % (module, attribute), 80)
    if whole in _OF_WINDOWS:
        return "`%s` is there on Windows alone, where no run is: do without it" % whole
    if _lies_in(module, attribute):
        return "`%s` is a module, and it is not imported: `import %s` before it" % (whole, whole)
    return _VERSION


def _lies_in(package: str, name: str) -> bool:
    """Whether a package that is imported has such a module. Its files say so: to look for a spec is to ask finders that may be
    the code's own."""
    module = sys.modules.get(package)
    places = module.__dict__.get("__path__") if type(module) is type(sys) else None
    if type(places) is not list or not name.isidentifier():
        return False
    paths = ["%s/%s" % (place, name) for place in places[:_PLACES_MAX] if type(place) is str]
    return any(os.path.isfile(path + ".py") or os.path.isfile(path + "/__init__.py") for path in paths)


def _misnamed(exc):
    name = name_of(exc) if name_of and type(exc) is NameError else None
    if type(name) is not str or name not in _TOOLS:
        return _names_of(runtime_of(exc))
    text = "%s is a tool of the caller's, and no function of the code: " % name
    if name.endswith("_blob"):
        return text + "`from runtime import blobs`, then blobs.read_text(id), blobs.write_text(text, kind=...)"
    return text + "mount the skill, and `from skills.<name> import main`"


def _no_argument(exc):
    """For `args["x"]` of a call that has no `x`."""
    from runtime.run import args

    key = exc.args[0] if type(exc) is KeyError and len(exc.args) == 1 else None
    head, _, tail = frames_of(traceback_of(exc))
    if type(key) is not str or type(args) is not dict or key in args or not head:
        return None
    filename, line, code, _, names = (tail or head)[-1]
    frame = last_frame(exc)
    source = source_line(filename, line, names) if frame.f_code is code else ""
    asked = ("[%r]" % key, '["%s"]' % key)
    if not any(value is args and (name + asked[0] in source or name + asked[1] in source) for name, value in frame.f_locals.items()):
        return None
    there = ", ".join(repr(name) for name in islice(args, _NAMES_MAX) if type(name) is str)
    there = "they have " + one_line(there, _NAMES_CHARS_MAX) if there else "there are none"
    return "the arguments of this call have no %s: %s" % (one_line(repr(key), 80), there)


def _is_of_the_network(exc, where, has_proxy: bool) -> bool:
    if not issubclass(type(exc), OSError):
        return False
    # Names are looked up, and addresses connected to, by functions of C, whose caller may be any code.
    name, number = type_name(type(exc)), errno_of(exc)
    if type(number) is int and number in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return True
    if name == "PermissionError" and where != _SOCKET:
        # What is refused may be a file; that of a socket has no name. Without a proxy there is no such socket.
        is_refused = type(number) is int and number == errno.EACCES and strerror_of(exc) == os.strerror(errno.EACCES)
        return has_proxy and is_refused and filename_of(exc) is None and "_socket" in sys.modules
    return name in ("gaierror", "herror", "PermissionError")


def _no_variable(exc) -> str:
    name = exc.args[0] if len(exc.args) == 1 else None
    if type(name) is str and name in _OF_A_LOGIN:
        return "this run has no variable %s, since nobody is logged in: it has HOME, LANG, PATH and TMPDIR, and its directory is os.getcwd()" % name
    return (
        "this run has no %s: a skill names its secrets in permissions.secrets, and the policy grants them or not; "
        "code that mounts a skill does not get that skill's"
    ) % ("variable " + one_line(name, 80) if type(name) is str else "such variable")


def _beside(exc) -> str:
    """What a skill's own code can import besides. Its author knows the file as the manifest has it: `code/helper.py`."""
    skill = _importer(exc)
    if skill is None:
        return ""
    text = "; the modules beside this skill's entrypoint are imported by their own names: `import %s`"
    head, _, rest = exc.name.partition(".")
    if rest and head == skill.directory.rpartition("/")[2]:
        return text % one_line(rest, 80) + ", without `%s.`" % one_line(head, 80)
    return text % "helper"


def _module_of_the_directory(exc):
    """`from code import helper`, where the library has a module `code` too: Python says that this has no `helper`."""
    skill = _importer(exc)
    if skill is None or exc.name != skill.directory.rpartition("/")[2] or type(exc.msg) is not str:
        return None
    wanted = exc.msg.partition("cannot import name '")[2].partition("'")[0]
    if not skill.knows(wanted):
        return None
    return "the modules beside this skill's entrypoint are imported by their own names: `import %s`, and not from `%s`" % (
        one_line(wanted, 80),
        one_line(exc.name, 80),
    )


def _importer(exc):
    """The import of the skill whose module has the statement that failed."""
    found, trace = None, traceback_of(exc)
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_IMPORTING):
            found = trace.tb_frame
        trace = trace.tb_next
    skill = None if found is None else found.f_builtins.get("__import__")
    return skill if type(skill) is SkillImport else None


def _is_of_blobs(kind) -> bool:
    from runtime.blobs import BlobError

    return issubclass(kind, BlobError)


def _asks_a_terminal(exc) -> bool:
    """Whether the code's own line that led to it reads what whoever starts a program gives it."""
    head, _, tail = frames_of(traceback_of(exc))
    for filename, line, _, _, names in reversed(head + tail):
        if not filename.startswith((_STANDARD, "<frozen")):
            source = source_line(filename, line, names)  # of a statement of several lines it is one
            return _names_a_terminal(source)
    return False


def _may_have_asked_a_terminal(exc) -> bool:
    """Whether that is done above it: by the functions under way, up to their lines, or outside of functions."""
    head, _, tail = frames_of(traceback_of(exc))
    under_way = {(filename, code.co_firstlineno, line): names for filename, line, code, _, names in head + tail}
    for (filename, first, line), names in under_way.items():
        if filename.startswith((_STANDARD, "<frozen")):
            continue
        for n, source in enumerate(source_lines(filename, names), 1):
            if (first <= n <= line or not source[:1].isspace()) and _names_a_terminal(source):
                return True
    return False


def _names_a_terminal(source: str) -> bool:
    return any(name in source for name in _OF_A_TERMINAL)


def _refused(exc, where):
    """For what the system says of a sandbox as it would of a user who lacks a right, or who has pressed a key."""
    if type(exc) is EOFError and (where == _GETPASS or text_of(exc) == "EOF when reading a line"):
        return "nobody types anything in a run: what it needs comes with the arguments of the call"
    is_of_none = type_name(type(exc)) in ("IndexError", "JSONDecodeError", "EOFError", "StopIteration")
    if is_of_none or type(exc) is ValueError and text_of(exc).startswith(_OF_NOTHING):
        if _asks_a_terminal(exc):
            return "a run has no command line and no standard input: what it needs is in the arguments of the call"
        if _may_have_asked_a_terminal(exc):
            return "if this reads a command line or standard input: a run has neither, and what it needs is in the arguments of the call"
    if not issubclass(type(exc), OSError):
        return None
    number, file = errno_of(exc), filename_of(exc)
    # The code may raise it, too, in words of its own.
    if number == errno.EPERM and strerror_of(exc) == os.strerror(errno.EPERM):
        return "the sandbox refuses this system call to every run: do without it"
    blobs = ("blob:",) if state.current is None else ("blob:", state.current.layout.blobs + "/")
    if number == errno.ENOENT and type(file) is str and file.startswith(blobs) and not _is_of_blobs(type(exc)):
        return _READS_BLOBS
    if number in (errno.EACCES, errno.EROFS) and type(file) is str and state.current is not None:
        layout = state.current.layout
        if not os.path.abspath(file).startswith((layout.workspace + "/", layout.tmp + "/")):
            text = "a run writes files"
            if number == errno.EACCES:
                # It may have been opened to be read: that it says of both.
                text = "a run may not open this file: it reads its skills, its blobs, the Python library and what it wrote itself, and writes"
            return text + " below its current directory (%s) and %s alone" % (layout.workspace, layout.tmp)
    return None
