"""What an error says first, to whoever wrote the code for a place that it does not run in."""

import importlib.util
import os
import sys
import textwrap
import unittest

from test_failures import Case

MAIN = "import os, sys, subprocess\nfrom runtime import blobs, log, run\nimport runtime\ndef main(args):\n    "
VERSION = "this run has Python %d.%d\n" % sys.version_info[:2]
SAYS_NAMES = sys.version_info >= (3, 10)
GONE_IN_3_13 = "aifc audioop cgi chunk crypt lib2to3 mailcap nis nntplib spwd sunau telnetlib".split()


def is_of_the_library(name):
    """By its list where there is one, also of what a distribution has left out."""
    return name in sys.stdlib_module_names if SAYS_NAMES else importlib.util.find_spec(name) is not None


class Hints(Case):
    def unhinted(self, code, kind, **more):
        message = self.check(code, kind, **more)
        self.assertTrue(message.startswith("Traceback"), message)
        return message


class Wrapped(Hints):
    def test_code_that_is_wrapped_as_in_a_chat(self):
        fenced = "the code is to be Python alone, without the lines of ``` around it\n"
        self.hinted("```python\ndef main(args): return 1\n```", "SyntaxError", fenced)
        self.hinted("def main(args): return 1\n```\n", "SyntaxError", fenced)
        self.hinted("def main(args): return `1`\n", "SyntaxError", VERSION)

    def test_code_that_is_escaped_once_too_often(self):
        escaped = "a line of the code ends with a newline, and not with a backslash and an n\n"
        self.hinted(r"def main(args):\n    return 1\n", "SyntaxError", escaped)
        self.hinted("def main(args): return 1 \\ + 2\n", "SyntaxError", VERSION)


class Arguments(Hints):
    def test_one_that_the_call_has_not(self):
        given = {"csv_blob": 1, "n\n": 2}
        for line in ("return args['csv']", "return [args['csv'] for _ in 'x']", "return {**args, 'x': args['csv']}"):
            self.hinted("def main(args):\n    " + line, "KeyError", "the arguments of this call have no 'csv': they have 'csv_blob', 'n\\n'\n", args=given)
        self.hinted("def main(a):\n    return a['csv']", "KeyError", "the arguments of this call have no 'csv': there are none\n")
        self.hinted("def main(a):\n    return f(a)\ndef f(options):\n    return options['csv']", "KeyError", "the arguments of this call have no 'csv'")

    def test_one_that_the_code_does_without(self):
        without = MAIN + "try: args['csv']\n    except KeyError%s"
        self.unhinted(without % ": 1 / 0", "ZeroDivisionError")
        self.hinted(without % " as exc: raise ValueError('no table') from exc", "ValueError", "the arguments of this call have no 'csv'")

    def test_through_an_exception_that_is_false(self):
        for truth in ("__len__(self): return 0", "__bool__(self): raise SystemExit"):
            code = MAIN.replace("def main", "class Own(Exception):\n    def %s\ndef main" % truth)
            code += "try:\n        try: args['csv']\n        except KeyError as exc: raise Own from exc\n"
            code += "    except Own as exc: raise ValueError('no table') from exc"
            self.hinted(code, "ValueError", "the arguments of this call have no 'csv'")

    def test_what_is_missing_elsewhere(self):
        for line in ("return args['a']['csv']", "return {}['csv']", "raise KeyError('csv')", "args[5]", "args['a'].pop('csv')", "x = dict(args); x['csv']"):
            self.unhinted("def main(args):\n    " + line, "KeyError", args={"a": {}})


class Lacking(Hints):
    def test_what_a_run_does_not_have(self):
        refused = "exec(compile('raise PermissionError(1)', socket.__file__, 'exec'))"  # as a sandbox refuses a socket
        for line, kind in (("socket.getaddrinfo('a.example', 80, flags=socket.AI_NUMERICHOST)", "gaierror"), (refused, "PermissionError")):
            code = "import os, socket\ndef main(args):\n    os.environ.update(args)\n    "
            self.hinted(code + line, kind, "this run has no network: ")
            self.hinted(code + line, kind, "this run reaches its granted hosts through the proxy", args={"HTTPS_PROXY": "http://127.0.0.1:3128"})
            self.check(code + "os.environ = None; " + line, kind)
            wrapped = "try: %s\n    except OSError as exc: raise ValueError('cannot fetch') from exc" % line
            message = self.hinted(code + wrapped, "ValueError", "this run has no network: ")
            self.assertTrue(message.endswith("\nValueError: cannot fetch"), "its summary is its last line")
        run = "import subprocess, sys\ndef main(args): subprocess.run(%s)"
        self.hinted(run % "['no-such-program']", "FileNotFoundError", "a run has no shell")
        as_started = "exec(compile('raise OSError(%s, os.strerror(%s))', subprocess.__file__, 'exec'))"
        self.hinted(MAIN + as_started % (13, 13), "PermissionError", "a run has no shell")
        # The program is there; one is to be another user's.
        self.hinted(MAIN + as_started % (1, 1), "PermissionError", "the sandbox refuses this system call to every run")
        message = self.check(run % "[sys.executable, '-c', '1'], cwd='/none'", "FileNotFoundError")
        self.assertNotIn("a run has", message)
        for line, kind in (("raise PermissionError(1)", "PermissionError"), ("open('/nothing')", "FileNotFoundError"), ("__import__('socket').socket(9999)", "OSError")):
            message = self.check("def main(args): " + line, kind)
            self.assertNotIn("has no", message)

    def test_a_server_that_no_address_has(self):
        code = """
            import asyncio, socket
            made, raised = socket.socket, "def socket(*family): raise PermissionError(1, 'Operation not permitted')"
            exec(compile(raised, socket.__file__, "exec"))  # as a sandbox refuses it
            refused, there_is = socket, __import__("socket")
            def other(*family):
                if family: raise OSError(97, "no such family")
                return made()
            async def main(args):
                there_is.socket = {"none": refused, "another": other}.get(args["there_is"], made)
                server = await asyncio.start_server(print, "127.0.0.1", 0)
                server.close()
                return "served"
        """
        code = textwrap.dedent(code)
        hint = "this run has no network: a skill names hosts in permissions.network, and the policy grants them or not; within it AF_UNIX works\n"
        for before in ("", "warm(['asyncio'])"):
            message = self.hinted(code, "PermissionError", hint, args={"there_is": "none"}, before=before)
            self.assertIn('await asyncio.start_server(print, "127.0.0.1", 0)', message)
            message = self.check(code, "OSError", "could not bind on any address", args={"there_is": "another"}, before=before)
            self.assertNotIn("network", message)
            self.assertEqual(self.sandbox.code(code, {"there_is": "any"}, before=before).output, "served")

    def test_what_can_be_imported(self):
        told = "a run can import the standard library, `runtime` and mounted skills (`from skills.<name> import ...`), and nothing can be installed"
        beside = told + "; the modules beside this skill's entrypoint are imported by their own names: `import %s`\n"
        without = beside[:-1] + ", without `code.`\n"
        self.hinted("import helpr\ndef main(args): pass", "ModuleNotFoundError", told + "\n")
        for line, hint in (
            ("import helpr", beside % "helper"),
            ("from lib.helper import g", beside % "helper"),
            ("import importlib; importlib.import_module('helpr')", beside % "helper"),
            ("from code.helper import g", without % "helper"),
            ("import code.lib.helper", without % "lib"),
            # Not the skill's own: another module has asked for it.
            ("import builtins; exec('import helpr', {'__builtins__': builtins})", told + "\n"),
        ):
            self.sandbox.skills.clear()
            self.sandbox.skill("t.up", {"code/main.py": "def main(args):\n    " + line, "code/helper.py": "g = 1"})
            executed = self.sandbox.execute("t.up").error
            imported = self.sandbox.code("from skills.t.up import main").error
            for error in (executed, imported):
                self.assertEqual(error["type"], "ModuleNotFoundError")
                self.assertTrue(error["message"].startswith(hint + "Traceback"), error["message"])

    def test_what_the_code_has_written_itself(self):
        workspace, tmp = os.path.realpath(self.sandbox.path("workspace")), self.sandbox.path("tmp")
        for write, name, directory, called in (
            ("os.makedirs('pack', exist_ok=True)", "pack", workspace, "os.getcwd()"),
            ("open('helper.py', 'w').close()", "helper", workspace, "os.getcwd()"),
            ("open(os.environ['TMPDIR'] + '/beside.py', 'w').close()", "beside", tmp, "tempfile.gettempdir()"),
        ):
            hint = "no import looks in %s, where `%s` is: `sys.path.insert(0, %s)` before it\n" % (directory, name, called)
            code = MAIN + write + "; %simport " + name
            self.hinted(code % "" + ".none", "ModuleNotFoundError", hint)
            self.hinted(code % "", "ModuleNotFoundError", hint)
            outcome = self.sandbox.code(code % ("import tempfile; sys.path.insert(0, %s); " % called))
            self.assertEqual(outcome.status, "completed", outcome.result)
        raised = MAIN + "%s; raise ModuleNotFoundError('x', name='%s')"
        self.hinted(raised % ("open('imp.py', 'w').close()", "imp"), "ModuleNotFoundError", "no import looks in ")
        late = "`helper` was just written: `importlib.invalidate_caches()` before the import\n"
        self.hinted(raised % ("sys.path.append(os.getcwd())", "helper"), "ModuleNotFoundError", late)
        for name in ("pack.none", "none", "../tmp/beside", ".", ""):
            told = "a run can import the standard library"
            self.hinted(raised % ("sys.path.append(os.getcwd())", name), "ModuleNotFoundError", told)

    def test_a_module_beside_the_entrypoint_whose_directory_is_called_like_one_of_the_library(self):
        hint = "the modules beside this skill's entrypoint are imported by their own names: `import helper`, and not from `code`\n"
        # Not the skill's own: it may be a name of another version's library.
        for line, hinted in (
            ("from code import helper", hint),
            ("from code import InteractiveConsole, helper as h", hint),
            ("from code import helpr", VERSION),
            ("from json import helper", VERSION),
            ("raise ImportError('cannot import name', name=7)", ""),
            ("exc = ImportError(name='code'); exc.msg = 7; raise exc", ""),
            ("import builtins; exec('from code import helper', {'__builtins__': builtins})", VERSION),
        ):
            self.sandbox.skills.clear()
            self.sandbox.skill("t.up", {"code/main.py": "def main(args):\n    " + line, "code/helper.py": "g = 1"})
            error = self.sandbox.execute("t.up").error
            self.assertEqual(error["type"], "ImportError", line)
            self.assertTrue(error["message"].startswith(hinted + "Traceback"), error["message"])

    def test_names_that_a_function_of_c_looks_up(self):
        # As `socket.gethostbyname`, `gethostbyaddr` and `connect` fail: no frame of the library is in between.
        for line, kind in (
            ("_socket.getaddrinfo('a.example', 80, flags=socket.AI_NUMERICHOST)", "gaierror"),
            ("raise socket.herror(1, 'Unknown host')", "herror"),
            # An address, and the proxy is not asked.
            ("raise OSError(101, os.strerror(101))", "OSError"),
        ):
            code = "import _socket, os, socket\ndef main(args):\n    os.environ.update(args)\n    " + line
            self.hinted(code, kind, "this run has no network: ")
            self.hinted(code, kind, "this run reaches its granted hosts through the proxy", args={"HTTPS_PROXY": "http://127.0.0.1:3128"})
        self.assertNotIn("this run", self.check("class gaierror(Exception): pass\ndef main(args): raise gaierror('x')", "gaierror"))

    def test_addresses_that_a_function_of_c_connects_to(self):
        # As a sandbox refuses it to a run that has a proxy; one that has none has no socket.
        code = "import os, socket\ndef main(args):\n    os.environ.update(args)\n    raise PermissionError(%s)"
        proxy = {"HTTPS_PROXY": "http://127.0.0.1:3128"}
        refused = "13, os.strerror(13)"
        self.hinted(code % refused, "PermissionError", "this run reaches its granted hosts through the proxy", args=proxy)
        for other, args in ((refused, {}), (refused + ", 'file'", proxy), ("13, 'no'", proxy), ("'13'", proxy), ("13.0, 'x'", proxy)):
            self.assertNotIn("this run", self.check(code % other, "PermissionError", args=args))

    def test_a_variable_that_is_not_there(self):
        hint = (
            "this run has no variable MY_KEY: a skill names its secrets in permissions.secrets, and the policy grants them or not; "
            "code that mounts a skill does not get that skill's\n"
        )
        code = "import os\ndef main(args):\n    %s"
        for line, kind in (
            ("os.environ['MY_KEY']", "KeyError"),
            ("os.environ.pop('MY_KEY')", "KeyError"),
            ("try: os.environ['MY_KEY']\n    except KeyError as exc: raise RuntimeError('set a key') from exc", "RuntimeError"),
        ):
            message = self.hinted(code % line, kind, hint)
            self.assertNotIn("/usr/bin", message, "no value of another")
        self.hinted(code % "os.environb[b'MY_KEY']", "KeyError", hint.replace("variable MY_KEY", "such variable"))
        long = "'M' * 5000 + '\\n'"
        self.hinted(code % "os.environ[%s]" % long, "KeyError", "this run has no variable %s…: a skill" % ("M" * 79))
        login = "this run has no variable %s, since nobody is logged in: it has HOME, LANG, PATH and TMPDIR, and its directory is os.getcwd()\n"
        for name in ("USER", "PWD", "SHELL", "LOGNAME", "TERM", "HOSTNAME"):
            self.hinted(code % ("os.environ['%s']" % name), "KeyError", login % name)
        for line in ("{}['MY_KEY']", "os.environ = {}; os.environ['MY_KEY']", "raise KeyError('MY_KEY')"):
            self.assertNotIn("this run", self.check(code % line, "KeyError"))

    def test_what_the_sandbox_refuses(self):
        # As it refuses them.
        refused = "import errno, os\ndef main(args): raise OSError(errno.%s, os.strerror(errno.%s)%s)"
        call = "the sandbox refuses this system call to every run: do without it\n"
        self.hinted(refused % ("EPERM", "EPERM", ""), "PermissionError", call)
        self.hinted("def main(args):\n    try: raise OSError(1, __import__('os').strerror(1))\n    except OSError as exc: raise ValueError('no') from exc", "ValueError", call)
        # An error of the code's own, in words of its own.
        for raised in ("OSError(1, 'the account is locked')", "type('ApiError', (OSError,), {})(1, 'the account is locked')"):
            message = self.check("def main(args): raise " + raised, None)
            self.assertNotIn("system call", message)
        places = "a run writes files below its current directory (%s) and %s alone\n" % (self.sandbox.path("workspace"), self.sandbox.path("tmp"))
        # Of a file that may be read elsewhere, or written: which of them it was the error does not say.
        reads = "a run may not open this file: it reads its skills, its blobs, the Python library and what it wrote itself, and writes" + places[len("a run writes files"):]
        for name, kind, said in (("EACCES", "PermissionError", reads), ("EROFS", "OSError", places)):
            self.hinted(refused % (name, name, ", __file__.replace('tmp/', 'skills/')"), kind, said)
            for file in ("", ", 'own'", ", __file__", ", b'/x'", ", 3"):
                message = self.check(refused % (name, name, file), kind)
                self.assertNotIn("a run writes", message)
                self.assertNotIn("a run may not", message)
        said = "nobody types anything in a run: what it needs comes with the arguments of the call\n"
        message = self.hinted("def main(args): return input()", "EOFError", said)
        self.assertTrue(message.endswith("\nEOFError: EOF when reading a line"), message)
        self.assertNotIn("nobody", self.check("import pickle\ndef main(args): pickle.loads(b'')", "EOFError"))

    def test_a_shell_that_is_not_there(self):
        code = "import os, pickle\ndef main(args): return pickle.loads(pickle.dumps(os.system))('exit 127')"
        said = "[warning] os.system: a run has no shell and, unless its operator gives it some, no programs but Python: do it in Python\n"
        for shell, logs in (("/none", said), ("", "")):
            before = "import _skillgate.machine; _skillgate.machine._SHELL = root + %r" % shell
            outcome = self.sandbox.code(code, before=before)
            self.assertEqual((outcome.output, outcome.logs), (127 << 8, logs))


class Blobs(Hints):
    HINT = (
        "a blob is read by `from runtime import blobs`: blobs.read_text(id), blobs.open(id, \"r\"), or blobs.path(id) for a file's name; "
        "its id must be in input_blobs of the call\n"
    )

    def test_one_that_is_opened_by_its_id(self):
        blob = self.sandbox.blob("abc", b"1")
        for line in (
            "open('%s')" % blob,
            "__import__('pathlib').Path('%s').read_text()" % blob,
            "open(%r)" % self.sandbox.path("blobs", blob),
            "os.stat(%r)" % self.sandbox.path("blobs", "none"),
        ):
            self.hinted(MAIN + line, "FileNotFoundError", self.HINT)
        self.hinted(MAIN + "try: open('blob:x')\n    except OSError as exc: raise ValueError('no') from exc", "ValueError", self.HINT)

    def test_what_says_it_already_and_what_is_no_blob(self):
        self.unhinted(MAIN + "blobs.read_text('blob:none')", "BlobNotFound")
        for line in ("open('blobs')", "open('/none/blob:abc')", "open(b'blob:abc')", "raise FileNotFoundError(2, 'x', ['blob:'])"):
            self.unhinted(MAIN + line, "FileNotFoundError")


@unittest.skipUnless(SAYS_NAMES, "an interpreter that does not say what was looked for")
class Names(Hints):
    def test_of_runtimes_modules(self):
        for line, hint in (
            ("blobs.create('x')", "runtime.blobs has BlobError, BlobNotFound, BlobTooLarge, DiskFull, created, list, open, path, read_bytes, "),
            ("blobs.read_file('x')", "runtime.blobs has BlobError, "),
            ("runtime.log.inform('x')", "runtime.log has debug, error, info, warning\n"),
            ("run.arg", "runtime.run has args, deadline, id, remaining\n"),
            ("runtime.blob", "runtime has BlobError, BlobNotFound, BlobTooLarge, DiskFull, blobs, log, run, summary\n"),
        ):
            message = self.hinted(MAIN + line, "AttributeError", hint)
            self.assertNotIn("Did you mean", message)
        self.hinted(MAIN + "try: blobs.get\n    except AttributeError: raise ValueError('no')", "ValueError", "runtime.blobs has BlobError, ")

    def test_of_other_objects(self):
        own = MAIN + "blobs = type(sys)('runtime.blobs'); blobs.creatde = 1; blobs.created"
        self.assertIn("Did you mean: 'creatde'?", self.unhinted(own, "AttributeError"))
        self.unhinted(MAIN + "raise AttributeError('x')", "AttributeError")
        self.unhinted(MAIN + "sys.modules['runtime.log'] = None; None.x", "AttributeError")
        for names in ("None", "[1]"):  # the code's own doing
            self.unhinted(MAIN + "log.__all__ = %s; log.inform" % names, "AttributeError")

    def test_of_tools(self):
        mount = "%s is a tool of the caller's, and no function of the code: mount the skill, and `from skills.<name> import main`\n"
        for name in ("execute_skill", "run_code", "list_skills", "describe_skill", "read_skill_file", "create_skill", "load_skills_protocol_guide"):
            self.hinted(MAIN + name + "('csv.stats', {})", "NameError", mount % name)
        blob = (
            "%s is a tool of the caller's, and no function of the code: `from runtime import blobs`, then blobs.read_text(id), "
            "blobs.write_text(text, kind=...)\n"
        )
        for name in ("create_blob", "read_blob"):
            self.hinted(MAIN + name + "('x')", "NameError", blob % name)
        self.unhinted(MAIN + "execute_skills('csv.stats')", "NameError")
        self.unhinted(MAIN + "raise NameError('execute_skill')", "NameError")
        self.unhinted(MAIN + "raise type('Own', (NameError,), {})('x', name='run_code')", "Own")


class NamesThatAreImported(Hints):
    def test_of_runtimes_modules(self):
        self.hinted("from runtime import blob\ndef main(args): pass", "ImportError", "runtime has BlobError, ")
        self.hinted("from runtime.blobs import create\ndef main(args): pass", "ImportError", "runtime.blobs has BlobError, ")
        self.hinted("from runtime.log import warn\ndef main(args): pass", "ImportError", "runtime.log has debug, ")
        for more in ("name='runtime.main'", "name=['runtime']"):
            self.unhinted(MAIN + "raise ImportError('x', %s)" % more, "ImportError")


    def test_modules_that_runtime_does_not_have(self):
        for line, hint in (
            ("import runtime.blob", "runtime has BlobError, BlobNotFound, BlobTooLarge, DiskFull, blobs, log, run, summary\n"),
            ("import runtime.logs as log", "runtime has BlobError, "),
            ("from runtime.blob import read_text", "runtime has BlobError, "),
            ("import runtime.blobs.files", "runtime.blobs has BlobError, "),
            ("import importlib; importlib.import_module('runtime.blob')", "runtime has BlobError, "),
        ):
            self.hinted(line + "\ndef main(args): pass", "ModuleNotFoundError", hint)
        for name in ("runtime", "runtime.none.blob", "skills", "skills.x"):
            self.unhinted(MAIN + "raise ModuleNotFoundError('x', name=%r)" % name, "ModuleNotFoundError")

    def test_modules_that_are_gone(self):
        hint = VERSION[:-1] + ", whose library has no `%s`: %s"
        for name, said in (
            ("imp", "use importlib\n"),
            ("distutils.version", "compare versions as tuples of numbers; "),
            ("cgi", "use urllib.parse.parse_qs for a query, "),
            ("telnetlib", "nothing else there does the same\n"),
            ("pipes", "use shlex.quote for a word, and subprocess\n"),
            ("audioop", "nothing else there does the same\n"),
            ("lib2to3.refactor", "use ast\n"),
        ):
            head = name.partition(".")[0]
            raised = MAIN + "raise ModuleNotFoundError('x', name=%r)" % name
            if head == name or not is_of_the_library(head):
                self.hinted(raised, "ModuleNotFoundError", hint % (head, said))
            else:
                self.hinted(raised, "ModuleNotFoundError", VERSION[:-1] + ", whose library has no `%s`\n" % name)
        if sys.version_info < (3, 12):
            none = VERSION[:-1] + ", whose library has no `distutils.nope`\n"
            self.hinted("import distutils.nope\ndef main(args): pass", "ModuleNotFoundError", none)
        for since, names in (((3, 12), ("imp", "asyncore", "asynchat", "smtpd", "distutils.version")), ((3, 13), GONE_IN_3_13)):
            for name in names if sys.version_info >= since else ():
                self.hinted("import %s\ndef main(args): pass" % name, "ModuleNotFoundError", hint % (name.partition(".")[0], ""))


    def test_modules_that_are_still_to_come(self):
        hint = VERSION[:-1] + ", whose library has no `%s`: %s is the first that has it\n"
        for name, since in (("tomllib", "3.11"), ("compression.zstd", "3.14"), ("annotationlib", "3.14")):
            head = name.partition(".")[0]
            raised, missing = MAIN + "raise ModuleNotFoundError('x', name=%r)", "import %s\ndef main(args): pass"
            if sys.version_info < tuple(map(int, since.split("."))):
                for code in (raised % name, missing % name, missing % (head + ".x")):
                    self.hinted(code, "ModuleNotFoundError", hint % (head, since))
                continue
            self.hinted(raised % head, "ModuleNotFoundError", "a run can import the standard library, ")
            said = VERSION[:-1] + ", whose library has no `%s.x`\n" % head
            for code in (raised, missing):
                self.hinted(code % (head + ".x"), "ModuleNotFoundError", said)

    def test_parts_of_a_module_of_the_library(self):
        for line, name in (("import json.schema", "json.schema"), ("from os.files import walk", "os.files"), ("import math.more", "math.more")):
            hint = VERSION[:-1] + ", whose library has no `%s`\n" % name
            self.hinted(line + "\ndef main(args): pass", "ModuleNotFoundError", hint)


class NobodyStartsIt(Hints):
    def test_arguments_that_are_parsed(self):
        hint = "a run has no command line: read what is needed from args, the dict that %s() gets\n"
        for code in (
            "import argparse\n    p = argparse.ArgumentParser(); p.add_argument('file'); p.parse_args()",
            "import optparse\n    optparse.OptionParser().error('x')",
        ):
            self.hinted(MAIN + code, "SystemExit", hint % "main")
        self.hinted((MAIN + code).replace("main", "begin"), "SystemExit", hint % "begin", function="begin")

    def test_tests(self):
        code = "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): pass\ndef main(args):\n    %s"
        hint = "the code ended the interpreter before main() returned: call `unittest.main(exit=False)`, and return what its `.result` says\n"
        self.hinted(code % "unittest.main()", "SystemExit", hint)
        outcome = self.sandbox.code(code % "return str(unittest.main(exit=False).result)")
        self.assertEqual(outcome.output, "<unittest.runner.TextTestResult run=1 errors=0 failures=0>", outcome.result)

    def test_passwords(self):
        said = "nobody types anything in a run: what it needs comes with the arguments of the call\n"
        # As where there is no terminal, which whoever runs this may have.
        self.hinted(MAIN + "import getpass; getpass.fallback_getpass('x')", "EOFError", said)

    def test_lines_that_read_what_a_program_is_started_with(self):
        hint = "a run has no command line and no standard input: what it needs is in the arguments of the call\n"
        for line, kind in (
            ("sys.argv[1]", "IndexError"),
            ("__import__('json').load(sys.stdin)", "JSONDecodeError"),
            ("__import__('pickle').load(sys.stdin.buffer)", "EOFError"),
            ("a, b = sys.argv[1:]", "ValueError"),
            ("_, a, *b = sys.argv", "ValueError"),
            ("int(sys.stdin.readline())", "ValueError"),
            ("float(sys.stdin.read())", "ValueError"),
            ("next(__import__('csv').reader(sys.stdin))", "StopIteration"),
            ("int(open(0).readline())", "ValueError"),
        ):
            self.hinted(MAIN + line, kind, hint)
        hint = "if this reads a command line or standard input: a run has neither, and what it needs is in the arguments of the call\n"
        for line, kind in (
            ("text = sys.stdin.read()\n    __import__('json').loads(text)", "JSONDecodeError"),
            ("data = sys.stdin.read().split()\n    data[0]", "IndexError"),
            ("given = sys.argv[1:]\n    [int(n) for n in given[0]]", "IndexError"),
            ("lines = iter(open(0))\n    first(lines)\ndef first(lines):\n    return next(lines)", "StopIteration"),
        ):
            self.hinted(MAIN + line, kind, hint)
        for before in ("import sys\ninput = sys.stdin.readline\n", "from sys import stdin\ndef input():\n    return stdin.readline()\n"):
            self.hinted(before + "def main(args):\n    n = int(input())", "ValueError", hint)
        for line, kind in (
            ("[][1]", "IndexError"),
            ("__import__('json').loads('')\n    sys.stdin.read()\ndef other():\n    return sys.stdin.read()", "JSONDecodeError"),
            ("next(iter([]))", "StopIteration"),
            ("raise KeyError(sys.argv)", "KeyError"),
            ("a, b = [1]", "ValueError"),
            ("int('')", "ValueError"),
            ("int(sys.argv[0])", "ValueError"),
            ("raise ValueError(f'not enough: {sys.argv}')", "ValueError"),
        ):
            self.unhinted(MAIN + line, kind)


class Packages(Hints):
    HINT = "nothing can be installed in a run: it has the standard library, `runtime` and mounted skills\n"

    def test_programs_that_install(self):
        for command, kind in (
            ("check_call([sys.executable, '-m', 'pip_none', 'install', 'pip'])", "CalledProcessError"),
            ("run(['/none/pip3', 'install', 'x'])", "FileNotFoundError"),
            ("run('conda', env={'PATH': '/none'})", "FileNotFoundError"),
            ("run('exit 3; uv add x', shell=True, check=True)", "CalledProcessError"),
            ("run((sys.executable, '-c', '1/0', 'ensurepip'), check=True)", "CalledProcessError"),
        ):
            self.hinted(MAIN + "subprocess." + command, kind, self.HINT)

    def test_other_programs(self):
        for command, kind in (
            ("run(['/none/pipe', 'pips'])", "FileNotFoundError"),
            ("run([sys.executable, '-c', '1/0'], check=True)", "CalledProcessError"),
            ("Popen(3)", None),
        ):
            self.assertNotIn("installed", self.check(MAIN + "subprocess." + command, kind))
        for command in ("None", "[1, type('S', (str,), {})('pip')]", "type('L', (list,), {})(['pip'])"):
            self.unhinted(MAIN + "raise subprocess.CalledProcessError(1, %s)" % command, "CalledProcessError")
        # It names the directory that is not there.
        self.assertNotIn("a run has no shell", self.check(MAIN + "subprocess.run(['x'], cwd='/none')", "FileNotFoundError"))


class Versions(Hints):
    def test_syntax(self):
        later = ("x = f'{x['a']}'", 'x = f"{a\n}"', "x = Fr'{a\n}'")
        for code in ("def main(args):\n    return 1 +\n", "x = '\x00'", "print 1", *(later if sys.version_info < (3, 12) else ())):
            self.hinted(code, "SyntaxError", VERSION)
        self.sandbox.skill("t.bad", {"code/main.py": "def main(args: return"})
        self.assertTrue(self.sandbox.execute("t.bad").error["message"].startswith(VERSION))
        self.hinted("from skills.t.bad import main", "SyntaxError", VERSION)

    def test_what_is_right_in_no_version(self):
        for code, kind in (
            ("def main(args):\n    return (1 +\n", "SyntaxError"),
            ("x = 'abc\n", "SyntaxError"),
            ("x = '''abc\n", "SyntaxError"),
            ("def main(args):\nreturn 1", "IndentationError"),
            ("x = 1\n y = 2", "IndentationError"),
            ("if 1:\n\tx = 1\n        y = 2", "TabError"),
        ):
            message = self.check(code, kind)
            self.assertTrue(message.startswith("  File ") or message.startswith(kind), message)

    def test_what_is_written_for_a_notebook(self):
        hint = "what awaits is to be in an `async def`: write `async def go(args):`, which is awaited\n"
        for code in ("await x", "def go(args):\n    await x", "def go(args):\n    async with x: pass", "async for a in b: pass"):
            self.hinted(code, "SyntaxError", hint, function="go")
        # Before 3.11 Python says the same of one that a later version takes.
        said = hint if sys.version_info >= (3, 11) else VERSION
        self.hinted("def go(args): return [x async for x in y]", "SyntaxError", said, function="go")
        self.hinted("x = 1\nreturn x", "SyntaxError", "there is nothing to return from: put the code into `def main(args):`, whose value is the result\n")

    def test_syntax_of_other_texts(self):
        for line in ("compile('(', 'x', 'exec')", "__import__('ast').literal_eval('(')", "raise SyntaxError('x')"):
            message = self.check(MAIN + line, "SyntaxError")
            self.assertNotIn("this run has Python", message)

    def test_names_of_the_library(self):
        for line in ("from typing import overrides", "from math import cubed", "from itertools import batch"):
            self.hinted(line + "\ndef main(args): pass", "ImportError", VERSION)
        self.hinted("from collections.abc import Bufer\ndef main(args): pass", "ImportError", VERSION)
        self.sandbox.skill("t.up", {"code/main.py": "def main(args): pass"})
        self.unhinted("from skills.t.up import nothing", "ImportError")
        for more in ("'x', name='typing'", "name='typing'", "'cannot import name', name=3"):
            self.unhinted(MAIN + "raise ImportError(%s)" % more, "ImportError")

    def test_attributes_of_modules_of_the_library(self):
        for line in ("import datetime; datetime.NONE", "import math; math.cubed(8)", "import os.path; os.path.none", "sys.none"):
            self.hinted(MAIN + line, "AttributeError", VERSION)
            self.hinted(MAIN + "try: %s\n    except AttributeError as exc: raise ValueError('no') from exc" % line, "ValueError", VERSION)
            # What failed is what came after it.
            for after in ("int('no')", "raise ValueError('no')", "raise ValueError('no') from None"):
                self.unhinted(MAIN + "try: %s\n    except AttributeError: %s" % (line, after), "ValueError")
            handled = "try: %s\n    except AttributeError as exc:\n        try: raise KeyError() from exc\n        except KeyError: int('no')"
            self.unhinted(MAIN + handled % line, "ValueError")
        self.sandbox.skill("t.up", {"code/main.py": "def main(args): pass"})
        own = "import skills.t.up as up; up.nothing"
        for line in (own, "type(sys)('json_').x", "(1).x", "import datetime; datetime.datetime.x", "raise type('Own', (AttributeError,), {})"):
            self.assertNotIn("this run has", self.check(MAIN + line, "Own" if "Own" in line else "AttributeError"))

    def test_modules_of_a_package_of_the_library_that_are_not_imported(self):
        hint = "`%s` is a module, and it is not imported: `import %s` before it\n"
        for name in ("xml.sax", "concurrent.futures", "wsgiref.util", "email.mime.text"):
            package = name.rpartition(".")[0]
            self.hinted(MAIN + "import %s; %s" % (package, name), "AttributeError", hint % (name, name))
            outcome = self.sandbox.code(MAIN + "import %s; %s" % (name, name))
            self.assertEqual(outcome.status, "completed", outcome.result)
        for line in ("import xml; xml.none", "import json; json.JSONB", "import os; os.path.sax"):
            self.hinted(MAIN + line, "AttributeError", VERSION)

    def test_no_finder_and_no_object_of_the_code_is_asked_for_them(self):
        raised = "raise AttributeError(\"module '%s' has no attribute '%s'\")"
        # What is not imported stays so.
        self.hinted(MAIN + raised % ("wsgiref", "util"), "AttributeError", VERSION)
        # What reports the failure may import something itself: only what is asked about this module counts.
        evil = MAIN.replace("def main(args):", textwrap.dedent("""
            import xml
            def asked(*of):
                if len(of) < 2 or type(of[1]) is not str or "sax" in of[1]: blobs.write_text("asked", kind="text/plain")
                raise SystemExit
            class Evil(%s): __fspath__ = __str__ = __iter__ = __getitem__ = __len__ = __bool__ = __eq__ = __getattribute__ = asked
            class Finder:
                def find_spec(self, name, *more): return asked(self, name) if "xml" in name else None
            def hook(path):
                if "xml" in path: asked(0, "sax")
                raise ImportError
            def main(args):"""))
        for base, line, is_found in (
            ("object", "sys.meta_path.insert(0, Finder())", True),
            ("object", "sys.path_hooks.insert(0, hook); sys.path_importer_cache.clear()", True),
            ("object", "xml.__path__ = object.__new__(Evil)", False),
            ("object", "xml.__path__[:0] = [object.__new__(Evil)]", True),
            ("list", "xml.__path__ = list.__new__(Evil, [])", False),
            ("str", "xml.__path__ = [str.__new__(Evil, '/')]", False),
            ("type(sys)", "sys.modules['xml'] = Evil.__new__(Evil, 'xml')", False),
            ("object", "xml.__path__ = ['\\0', 3, None]", False),
        ):
            for name in ("sax", "../xml/sax", "", "s\\0x"):
                outcome = self.sandbox.code(evil % base + line + "; " + raised % ("xml", name))
                self.assertEqual((outcome.error["type"], outcome.blobs), ("AttributeError", {}), (line, name))
                said = "`xml.sax` is a module" if is_found and name == "sax" else VERSION
                self.assertTrue(outcome.error["message"].startswith(said), outcome.error["message"])

    def test_what_is_of_windows_alone(self):
        hint = "`%s` is there on Windows alone, where no run is: do without it\n"
        for name in ("os.startfile", "ctypes.windll", "asyncio.windows_events", "signal.CTRL_C_EVENT", "subprocess.STARTUPINFO"):
            self.hinted(MAIN + "import %s; %s" % (name.partition(".")[0], name), "AttributeError", hint % name)


if __name__ == "__main__":
    unittest.main()
