"""What an error says first, to whoever wrote the code for a place that it does not run in."""

import sys
import unittest

from test_failures import Case

MAIN = "import os, sys, subprocess\nfrom runtime import blobs, log, run\nimport runtime\ndef main(args):\n    "
VERSION = "this run has Python %d.%d\n" % sys.version_info[:2]
SAYS_NAMES = sys.version_info >= (3, 10)


class Hints(Case):
    def unhinted(self, code, kind, **more):
        message = self.check(code, kind, **more)
        self.assertTrue(message.startswith("Traceback"), message)
        return message


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
        code = "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): pass\ndef main(args):\n    sys = __import__('sys')\n    unittest.main(module=sys.modules[T.__module__]%s)"
        self.hinted(code % "", "SystemExit", "the code ended the interpreter before main() returned: call `unittest.main(exit=False)`\n")
        outcome = self.sandbox.code(code % ", exit=False")
        self.assertEqual(outcome.status, "completed", outcome.result)

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
        ):
            self.hinted(MAIN + line, kind, hint)
        for line, kind in (
            ("[][1]", "IndexError"),
            ("text = sys.stdin.read()\n    __import__('json').loads(text)", "JSONDecodeError"),
            ("raise KeyError(sys.argv)", "KeyError"),
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
        for code, kind in (("def main(args):\n    return (1 +\n", "SyntaxError"), ("def main(args):\nreturn 1", "IndentationError"), ("x = '\x00'", "SyntaxError")):
            self.hinted(code, kind, VERSION)
        self.sandbox.skill("t.bad", {"code/main.py": "def main(args: return"})
        self.assertTrue(self.sandbox.execute("t.bad").error["message"].startswith(VERSION))
        self.hinted("from skills.t.bad import main", "SyntaxError", VERSION)

    def test_syntax_of_other_texts(self):
        for line in ("compile('(', 'x', 'exec')", "__import__('ast').literal_eval('(')", "raise SyntaxError('x')"):
            message = self.check(MAIN + line, "SyntaxError")
            self.assertNotIn("this run has Python", message)

    @unittest.skipUnless(SAYS_NAMES, "an interpreter that does not know the names of the library")
    def test_names_of_the_library(self):
        self.hinted("from typing import overrides\ndef main(args): pass", "ImportError", VERSION)
        self.hinted("from collections.abc import Bufer\ndef main(args): pass", "ImportError", VERSION)
        self.sandbox.skill("t.up", {"code/main.py": "def main(args): pass"})
        self.unhinted("from skills.t.up import nothing", "ImportError")
        for more in ("'x', name='typing'", "name='typing'", "'cannot import name', name=3"):
            self.unhinted(MAIN + "raise ImportError(%s)" % more, "ImportError")


if __name__ == "__main__":
    unittest.main()
