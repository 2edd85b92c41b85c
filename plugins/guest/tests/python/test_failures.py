"""What a caller reads when the code fails, and code that fails on purpose in odd ways."""

import sys
import textwrap
import unittest

from support import Sandbox


class Case(unittest.TestCase):
    def setUp(self):
        self.sandbox = Sandbox()
        self.addCleanup(self.sandbox.close)

    def check(self, code, kind, *fragments, **more):
        outcome = self.sandbox.code(textwrap.dedent(code), **more)
        self.assertEqual(outcome.status, "failed", outcome.result)
        if kind is not None:
            self.assertEqual(outcome.error["type"], kind, outcome.error)
        for fragment in fragments:
            self.assertIn(fragment, outcome.error["message"])
        self.assertLessEqual(len(outcome.error["message"].encode("utf-8")), 8 * 1024)
        self.assertNotIn("_skillgate", outcome.error["message"])
        self.assertEqual((outcome.exit, outcome.results), (0, 1))
        return outcome.error["message"]

    def hinted(self, code, kind, hint, **more):
        """The last line is the exception's own: it is the run's summary."""
        message = self.check(code, kind, **more)
        self.assertTrue(message.startswith(hint), message)
        return message


class Tracebacks(Case):
    def test_the_whole_text(self):
        message = self.check("def main(args):\n    return inner(1)\n\ndef inner(x):\n    raise ValueError(f'bad {x}')\n", "ValueError")
        file = self.sandbox.path("tmp/run_code.py")
        # Since 3.13 Python has none below a call that is all that is returned.
        marks = "           ^^^^^^^^\n" if (3, 11) <= sys.version_info < (3, 13) else ""
        self.assertEqual(
            message,
            "Traceback (most recent call last):\n"
            f'  File "{file}", line 2, in main\n    return inner(1)\n{marks}'
            f"  File \"{file}\", line 5, in inner\n    raise ValueError(f'bad {{x}}')\n"
            "ValueError: bad 1",
        )

    @unittest.skipIf(sys.version_info < (3, 11), "an interpreter that does not say which part of a line it executed")
    def test_the_last_line_is_marked_like_any_other_where_nothing_ends_it(self):
        line = "def main(args): return 1 + args['one'] + args['two']"
        with_end, without = (self.check(line + end, "KeyError") for end in ("\n", ""))
        self.assertEqual(without, with_end)

    def test_the_part_of_a_line_is_marked_as_python_marks_it(self):
        code = """
            import traceback

            def inner(*args):
                return args

            def main(args):
                try:
                    PART
                except Exception as exc:
                    print("".join(traceback.format_exception(type(exc), exc, exc.__traceback__)), end="")
                    raise
        """
        code = textwrap.dedent(code)
        parts = [
            "args['a']['b']['c']",
            "1 + args['one'] + args['two']",
            "'ä' + '\U0001f600' + args['one']",
            "[n for n in (1, 0)][2]",
            "raise ValueError(args)",
            "int('x'); int('1')",
            "args['a']['c']['d'](**args['a'])",
            "inner(args, 1 // 0, '" + "x" * 120 + "')",
            "assert args['a'] is None",
        ]
        if sys.version_info < (3, 13):
            parts.append("max(\n            args['one'],\n            None)")  # since then it prints the other lines too
        codes = [code.replace("PART", part) for part in parts]
        codes.append(codes[0].replace("    ", "\t"))
        marked = 0
        for code in codes:
            outcome = self.sandbox.code(code, args={"a": {"b": None, "c": {}}, "one": 1, "two": "2"})
            self.assertEqual(outcome.error["message"] + "\n", outcome.logs)
            marked += "^" in outcome.error["message"]
        # Python 3.9 and 3.10 mark nothing.
        self.assertEqual(marked > 6, sys.version_info >= (3, 11), marked)

    def test_what_marks_cannot_be_below(self):
        for line in ("int('x', '" + "y" * 200 + "')", "int('\x0c\x1b')"):
            self.assertNotIn("^", self.check("def main(args):\n    return 1 + " + line, "TypeError" if "y" in line else "ValueError"))

    def test_frames_of_the_standard_library_stay(self):
        self.check("import json\ndef main(args): json.loads('{')", "JSONDecodeError", "json/decoder.py", "json.decoder.JSONDecodeError: ")

    def test_lines_are_counted_as_python_counts_them(self):
        for ends in ("\n", "\r\n", "\r"):
            lines = ["x = '\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029'", "\x0c", "import inspect"]
            main = ["def main(args):", "    '\u2028'", "    raise ValueError(inspect.getsource(main))"]
            message = self.check(ends.join(lines + main + ["y = 1"]), "ValueError", "line 6, in main\n" + main[2])
            self.assertTrue(message.endswith("ValueError: " + "\n".join(main)), message)

    def test_at_import_time(self):
        self.check("import os\n1/0", "ZeroDivisionError", "line 2, in <module>", "    1/0")

    def test_syntax_errors(self):
        message = self.check("def main(args):\n    return (1 +\n", "SyntaxError", "run_code.py", "SyntaxError: ")
        self.assertNotIn("Traceback", message)
        self.check("def main(args):\nreturn 1", "IndentationError", "line 2")
        self.check("if 1:\n\tx\n        y", "TabError")
        self.check("x = '\x00'", "SyntaxError", "null byte")
        self.check("return 1", "SyntaxError", "'return' outside function")

    def test_what_is_cut_has_a_mark_where_it_is(self):
        # What is before it may be half of a secret: whoever looks for these knows the mark.
        code = """
            import ast
            def main(args):
                text = 'x' * 7000 + 'ß'
                try:
                    %s
                except Exception as exc:
                    raise ValueError('read') from exc
        """
        for line in ("ast.literal_eval(text + '=')", "exc = ValueError('a'); exc.add_note(text); exc.add_note('b'); raise exc"):
            if "add_note" in line and not hasattr(BaseException, "add_note"):
                continue
            message = self.check(textwrap.dedent(code) % line, "ValueError")
            self.assertIn("x…\n", message)
            self.assertNotIn("ß", message)

    def test_deep_nesting(self):
        outcome = self.sandbox.code("x = " + "(" * 10000 + ")" * 10000)
        self.assertEqual(outcome.status, "failed")
        self.assertIn(outcome.error["type"], ("SyntaxError", "MemoryError", "RecursionError"))

    def test_chains(self):
        message = self.check(
            """
            def main(args):
                try:
                    try:
                        {}["a"]
                    except KeyError as first:
                        raise ValueError("second") from first
                except ValueError:
                    raise TypeError("third")
            """,
            "TypeError", "KeyError: 'a'", "direct cause", "ValueError: second", "During handling", "TypeError: third",
        )
        self.assertTrue(message.endswith("TypeError: third"))
        message = self.check("def main(args):\n    try: 1/0\n    except Exception: raise ValueError('x') from None", "ValueError")
        self.assertNotIn("ZeroDivisionError", message)

    def test_chains_that_go_round(self):
        self.check("def main(args):\n    a, b = ValueError('a'), ValueError('b')\n    a.__cause__ = b\n    b.__cause__ = a\n    raise a", "ValueError")
        self.check(
            "def main(args):\n    last = None\n    for n in range(5000):\n        e = ValueError(n); e.__cause__ = last; last = e\n    raise last",
            "ValueError", "ValueError: 4999",
        )

    def test_recursion(self):
        self.check("def main(args): return main(args)", "RecursionError", "[Previous line repeated ", "more times]", "RecursionError: maximum")
        self.check("import sys\ndef f(n): return f(n + 1) if n else g(n)\ndef g(n): return f(n + 1)\ndef main(args):\n    sys.setrecursionlimit(20000)\n    return f(0)", "RecursionError")

    def test_a_low_recursion_limit_does_not_reach_us(self):
        outcome = self.sandbox.code("import sys\ndef main(args):\n    sys.setrecursionlimit(sys.getrecursionlimit() // 20)\n    return " + "[" * 60 + "]" * 60)
        self.assertEqual(outcome.status, "completed", outcome.result)

    def test_many_frames(self):
        message = self.check(
            """
            def odd(n): return even(n - 1) if n else 1/0
            def even(n): return odd(n - 1) if n else 1/0
            def main(args): return odd(400)
            """,
            "ZeroDivisionError", "more frames]",
        )
        self.assertIn("in main", message)

    def test_notes(self):
        self.check("def main(args):\n    e = ValueError('x'); e.__notes__ = ['look here', 5]\n    raise e", "ValueError", "ValueError: x\nlook here")

    def test_classes_of_the_code_and_of_skills(self):
        self.check("class Bad(Exception): pass\ndef main(args): raise Bad('x')", "Bad", "\nBad: x")
        self.sandbox.skill("acme.pay", {"code/main.py": "import errors\ndef main(args): raise errors.PaymentError('no')",
                                        "code/errors.py": "class PaymentError(Exception): pass"})
        outcome = self.sandbox.execute("acme.pay")
        self.assertEqual(outcome.error["type"], "PaymentError")
        self.assertIn("skills.acme.pay.errors.PaymentError: no", outcome.error["message"])


class Endings(Case):
    def test_exits(self):
        hint = "the code ended the interpreter before main() returned: return a value instead\n"
        self.check("import sys\ndef main(args): sys.exit(0)", "SystemExit", "SystemExit: 0", hint)
        self.check("import sys\ndef main(args): sys.exit('no more')", "SystemExit", "SystemExit: no more", hint)
        self.check("raise SystemExit", "SystemExit", hint)
        for name in ("exit", "quit"):
            self.check("def main(args): %s(3)" % name, "SystemExit", "SystemExit: 3", hint)
        self.sandbox.skill("acme.ends", {"code/main.py": "def main(args): exit('no more')"})
        for before in ("", "warm()"):
            outcome = self.sandbox.execute("acme.ends", before=before)
            self.assertEqual((outcome.error["type"], hint in outcome.error["message"]), ("SystemExit", True), outcome.error)
        self.check("def main(args): raise KeyboardInterrupt", "KeyboardInterrupt")
        self.check("def main(args): raise GeneratorExit", "GeneratorExit")
        self.check("async def main(args): raise SystemExit(3)", "SystemExit", "SystemExit: 3", hint)

    def test_exit_without_a_word(self):
        outcome = self.sandbox.code("import os\ndef main(args): os._exit(0)")
        self.assertEqual((outcome.result, outcome.exit), (None, 0))

    def test_limits_that_python_reports(self):
        self.check("import errno\ndef main(args): raise OSError(errno.ENOSPC, 'No space left on device')", "DiskFull", "OSError: [Errno 28]")
        self.check("import errno\ndef main(args): raise OSError(errno.EFBIG, 'File too large')", "DiskFull", "OSError: [Errno 27]")
        self.check("def main(args): raise RuntimeError(\"can't start new thread\")", "TooManyProcesses")
        # What compares in its own way, and cannot be compared with a text or a number.
        own = "class Own:\n    def __eq__(self, other): return self.x == other.x\n    __hash__ = None\ndef main(args):\n    raise "
        self.check(own + "RuntimeError(Own())", "RuntimeError", "line 5, in main")
        self.check(own + "OSError(Own(), 'x')", "OSError", "line 5, in main")
        self.check("def main(args): raise MemoryError", "MemoryError")
        self.check(
            """
            import resource
            def main(args):
                resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
                hold = []
                while True:
                    hold.append(bytearray(1 << 20))
            """,
            "MemoryError", "hold.append",
        )
        self.check(
            """
            import resource
            def main(args):
                resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
                hold = []
                while True:
                    hold.append([None] * 3)
            """,
            "MemoryError",
        )


class Hostile(Case):
    def test_texts(self):
        for body in ("raise KeyError", "raise SystemExit", "return 5", "raise self", "return self.__str__()", "del self.x"):
            self.check("class E(Exception):\n    def __str__(self): %s\n    __repr__ = __str__\ndef main(args): raise E()" % body, "E", "<str() of this exception failed>")
        self.check("class E(Exception):\n    def __str__(self): return 'x' * (64 << 20)\ndef main(args): raise E()", "E", "characters left out")
        self.check("class S(str):\n    def __len__(self): return 3\n    def __getitem__(self, i): raise KeyError\n    def encode(self, *a): raise KeyError\n"
                  "class E(Exception):\n    def __str__(self): return S('real')\ndef main(args): raise E()", "E", "E: real")
        self.check("def main(args): raise ValueError('a\\ud800b\\x00c')", "ValueError", "a\\ud800b\x00c")
        self.check("def main(args): raise ValueError('é' * 100000)", "ValueError", " left out]")
        self.check("def main(args): raise ValueError('\U0001f600\\n' * 9000)", "ValueError")

    def test_classes(self):
        self.check("E = type('A\\nB\\x1b[31m' + 'x' * 500, (Exception,), {})\ndef main(args): raise E()", "A B [31m" + "x" * 119 + "…")
        self.check("E = type('\\n', (Exception,), {})\ndef main(args): raise E()", "Exception")
        self.check("class M(type):\n    __name__ = property(lambda c: 1/0)\n    __module__ = __name__\n    def __getattribute__(c, n): raise KeyError(n)\n"
                  "class E(Exception, metaclass=M):\n    pass\ndef main(args): raise E('x')", "E")
        self.check("class S(str):\n    def __getitem__(self, i): raise KeyError(i)\n    encode = __len__ = startswith = __getitem__\n"
                   "class E(Exception): pass\nE.__name__ = E.__qualname__ = E.__module__ = S('Real')\n"
                   "def main(args): raise E('x')\nmain.__code__ = main.__code__.replace(co_filename=S('file'), co_name=S('name'))", "Real")
        self.check("class E(Exception):\n    __class__ = ValueError\n    def __getattribute__(self, n): raise KeyError(n)\ndef main(args): raise E('x')", "E")
        self.check("class E(Exception):\n    __module__ = 'a\\nb' * 100\ndef main(args): raise E('x')", "E")
        self.check("class E(Exception):\n    __traceback__ = __cause__ = __context__ = property(lambda s: 1/0)\ndef main(args): raise E('x')", "E", "E: x")
        self.check("class E(SyntaxError):\n    filename = text = property(lambda s: 1/0)\ndef main(args): raise E('x')", "E")
        self.check("def main(args):\n    e = SyntaxError('x'); e.lineno = 'y'; e.text = 5; e.offset = object(); e.filename = 3\n    raise e", "SyntaxError")
        self.check("def main(args): raise SyntaxError('x', ('f' * 9999, 10**9, 10**9, 't' * 99999))", "SyntaxError")

    def test_files_named_by_code_objects(self):
        self.sandbox.blob("x", b"")
        for name in ("/dev/zero", "/proc/self/mem", "/", "fifo", "a\nFile fake, line 1" * 50, "\ud800"):
            code = "import os\ntry: os.mkfifo('fifo')\nexcept OSError: pass\ndef main(args): exec(compile('1/0', %a, 'exec'))" % name
            try:
                self.check(code, "ZeroDivisionError")
            except AssertionError as exc:
                if name != "\ud800":
                    raise
                self.assertIn("UnicodeEncodeError", str(exc))  # refused by compile itself

    def test_source_lines_that_are_no_lines(self):
        code = """
            import linecache

            class Line(str):
                def strip(self, *_): raise KeyError("strip")
                def isprintable(self): raise KeyError("isprintable")

            def main(args):
                lines = {"class": [Line("raise ValueError(1) or 2")] * 20, "none": [None] * 20, "blank": [" \\n"] * 20}
                linecache.cache[__file__] = (1, None, lines[args["of"]], __file__)
                raise ValueError("x")
        """
        for of, shown in (("class", "    raise ValueError(1) or 2\n"), ("none", "ValueError: x"), ("blank", "ValueError: x")):
            self.assertIn("line 11, in main\n" + shown, self.check(code, "ValueError", args={"of": of}))

    def test_source_lines_of_huge_files_are_not_read(self):
        code = "def main(args):\n    open('big', 'w').write('1/0 #here' + ' ' * %d)\n    exec(compile('1/0', 'big', 'exec'))"
        self.assertIn("#here", self.check(code % 1000, "ZeroDivisionError"))
        self.assertNotIn("#here", self.check(code % (5 << 20), "ZeroDivisionError"))

    def test_groups(self):
        code = """
            def main(args):
                try:
                    group = ExceptionGroup
                except NameError:
                    raise ValueError("an exception of 3.9: x0")
                deep = ValueError("x0")
                for _ in range(200): deep = group("deep", [deep])
                raise group("many", [ValueError(f"x{n}") for n in range(3)] + [deep] + [OSError()] * 100)
        """
        outcome = self.sandbox.code(textwrap.dedent(code))
        self.assertIn(outcome.error["type"], ("ExceptionGroup", "ValueError"))
        self.assertIn("x0", outcome.error["message"])
        self.assertLessEqual(len(outcome.error["message"]), 8192)
        if outcome.error["type"] == "ExceptionGroup":
            self.assertIn("many (104 sub-exceptions)", outcome.error["message"])
            self.assertIn("    | and 96 more exceptions\n    +-----", outcome.error["message"])
            self.assertIn("\n  +-+---------------- 1 ----------------\n    | ValueError: x0\n", outcome.error["message"])

    def test_groups_are_drawn_as_python_draws_them(self):
        if sys.version_info < (3, 11):
            self.skipTest("an interpreter of before there were groups")
        # Without what is ours on the way it is the text that `traceback` makes.
        code = """
            import traceback

            def made():
                inner = ExceptionGroup("inner", [KeyError(1), ExceptionGroup("innermost", [OSError("x")])])
                try:
                    raise inner
                except ExceptionGroup as exc:
                    try:
                        raise ValueError("two\\n\\nlines") from exc
                    except ValueError as second:
                        second.add_note("a note")
                        return ExceptionGroup("outer", [TypeError("t"), second, ExceptionGroup("last", [KeyError(2)])])

            def main(args):
                try:
                    if args["raised"]:
                        raise made()
                    else:
                        raise LookupError("l") from made()
                except Exception as exc:
                    print("".join(traceback.format_exception(exc)), end="")
                    raise
        """
        for raised in (True, False):
            outcome = self.sandbox.code(textwrap.dedent(code), args={"raised": raised})
            self.assertEqual(outcome.error["message"] + "\n", outcome.logs)
            self.assertIn("| ExceptionGroup: outer (3 sub-exceptions)\n  +-+---------------- 1 -----", outcome.logs)


@unittest.skipIf(sys.version_info < (3, 10), "an interpreter that does not say what was looked for")
class NamesThatWereMeant(Case):
    def test_of_a_name(self):
        code = "def main(args):\n    valuable = 1\n    return %s\nglobe = 1"
        for written, meant in (("valuabel", "valuable"), ("glob_e", "globe"), ("sortde", "sorted")):
            message = self.check(code % written, "NameError", "NameError: name %r is not defined" % written)
            self.assertTrue(message.endswith(" is not defined. Did you mean: '%s'?" % meant), message)
        for written in ("quite_another", "v" * 41, "_valuable"):
            self.assertTrue(self.check(code % written, "NameError").endswith(" is not defined"))
        message = self.check(code % "json.dumps(1)", "NameError")
        self.assertTrue(message.endswith("name 'json' is not defined. Did you forget to import 'json'?"), message)
        message = self.check("jso = 1\n" + code % "json.dumps(1)", "NameError")
        self.assertTrue(message.endswith(" is not defined. Did you mean: 'jso'? Or did you forget to import 'json'?"), message)
        self.check("def main(args):\n    if not args: x = 1\n    return x", "UnboundLocalError", args={"a": 1})

    def test_of_an_attribute(self):
        code = """
            import math
            class A:
                __slots__ = ("total",)
                def count(self): pass
            class B(A):
                def __init__(self): self.average = 1
                def __dir__(self): raise SystemExit("not asked")
            def main(args): return {}
        """
        for written, meant in (
            ("'x'.stripp()", "strip"), ("math.squrt", "sqrt"), ("A.cuont", "count"), ("A().totl", "total"), ("B().avrage", "average"),
            ("B().totl", "total"),
        ):
            message = self.check(textwrap.dedent(code).format(written), "AttributeError")
            self.assertTrue(message.endswith(" has no attribute '%s'. Did you mean: '%s'?" % (written.strip("()").split(".")[1], meant)), message)
        self.assertTrue(self.check(textwrap.dedent(code).format("A().other"), "AttributeError").endswith("no attribute 'other'"))

    def test_a_text_of_the_codes_own_is_left_alone(self):
        self.assertTrue(self.check("def main(args): raise NameError('maim')", "NameError").endswith("NameError: maim"))
        self.assertTrue(self.check("def main(args): raise AttributeError('maim')", "AttributeError").endswith("AttributeError: maim"))

    def test_what_lies_about_its_names(self):
        code = """
            class Names(dict):
                def __iter__(self): raise SystemExit("not asked")
            class A:
                @property
                def __dict__(self): return Names()
            def main(args):
                {}
        """
        self.check(textwrap.dedent(code).format("A().x"), "AttributeError", "has no attribute 'x'")
        self.check(textwrap.dedent(code).format("raise AttributeError(name='y', obj=A())"), "AttributeError")
        many = "def main(args):\n    globals().update((f'valuable{n}', n) for n in range(1000))\n    valuabel"
        self.assertTrue(self.check(many, "NameError").endswith("'valuabel' is not defined"))


if __name__ == "__main__":
    unittest.main()
