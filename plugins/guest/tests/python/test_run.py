"""A run from the job to the result."""

import os
import textwrap
import time
import unittest

from support import Sandbox


class Case(unittest.TestCase):
    def setUp(self):
        self.sandbox = Sandbox()
        self.addCleanup(self.sandbox.close)

    def completed(self, outcome, output):
        self.assertEqual(outcome.result.get("error"), None)
        self.assertEqual(outcome.status, "completed")
        self.assertEqual(outcome.output, output)
        self.assertEqual((outcome.exit, outcome.results), (0, 1))

    def failed(self, outcome, kind, *fragments):
        self.assertEqual(outcome.status, "failed", outcome.result)
        self.assertEqual(outcome.error["type"], kind)
        self.assertNotIn("output", outcome.result)
        for fragment in fragments:
            self.assertIn(fragment, outcome.error["message"])
        self.assertEqual((outcome.exit, outcome.results), (0, 1))


class Code(Case):
    def test_the_function_gets_args_and_its_value_is_the_output(self):
        self.completed(self.sandbox.code("def main(args): return args", {"a": [1, "é", None]}), {"a": [1, "é", None]})
        self.completed(self.sandbox.code("def go(args): return args", function="go"), {})
        self.completed(self.sandbox.code("main = lambda args: 'x'"), "x")

    def test_nothing_returned_is_null(self):
        self.completed(self.sandbox.code("def main(args): pass"), None)

    def test_through_the_bootstrap(self):
        job = {"code": "def main(args): return __file__[-12:]", "skill": None, "function": "main", "args": {}}
        self.completed(self.sandbox.run(job, bootstrap=True), "/run_code.py")

    def test_the_code_is_a_module(self):
        code = """
            import dataclasses, inspect, os, pickle, sys, __main__

            @dataclasses.dataclass
            class Point:
                x: int

            def main(args):
                point = pickle.loads(pickle.dumps(Point(3)))
                return {
                    "name": __name__, "same": sys.modules[__name__].Point is Point, "x": point.x,
                    "source": inspect.getsource(Point).split()[0], "file": os.path.basename(__file__),
                    "argv": len(sys.argv), "main": __main__ is sys.modules[__name__],
                }
        """
        self.completed(
            self.sandbox.code(_dedent(code)),
            {"name": "run_code", "same": True, "x": 3, "source": "@dataclasses.dataclass", "file": "run_code.py",
             "argv": 1, "main": True},
        )

    def test_the_library_finds_it_as_the_main_module(self):
        code = """
            import cProfile, doctest, pickle, timeit, unittest
            from unittest import mock

            def double(n):
                "\\n>>> double(2)\\n5"
                return 2 * n

            class Test(unittest.TestCase):
                def test_it(self):
                    self.assertEqual(double(2), 5)

            def main(args):
                tests = unittest.main(exit=False).result
                docs = doctest.testmod()
                cProfile.run("double(2)")
                assert timeit.timeit("double(2)", "from __main__ import double", number=2) > 0
                with mock.patch("__main__.double", lambda n: "patched"):
                    patched = double(2)
                return [tests.testsRun, len(tests.failures), *docs, patched, pickle.loads(b"c__main__\\ndouble\\n.")(3), __name__]
        """
        code, found = _dedent(code), [1, 1, 1, 1, "patched", 6]
        rehearsed = Rehearsal.BEFORE + "main = sys.modules['__main__']\nrehearse(*ends, layout)\nassert sys.modules['__main__'] is main"
        for before in ("", rehearsed):
            outcome = self.sandbox.code(code, before=before)
            self.completed(outcome, found + ["run_code"])
            self.assertIn("Ran 1 test", outcome.logs)
        for below in (False, True):  # of another mounted one: there it is imported
            if below:
                self.sandbox.skill("t", {"code/main.py": ""})
            else:
                self.sandbox.skill("t.tested", {"code/main.py": code})
            for before in ("", rehearsed):
                self.completed(self.sandbox.execute("t.tested", before=before), found + ["skills.t.tested"])

    def test_the_workspace_is_the_current_directory_and_empty(self):
        code = "import os\ndef main(args): return [os.getcwd(), os.listdir('.')]"
        self.completed(self.sandbox.code(code), [os.path.realpath(self.sandbox.path("workspace")), []])

    def test_the_environment_is_the_jobs_and_nothing_else(self):
        outcome = self.sandbox.code(
            "import os\ndef main(args): return dict(os.environ)",
            env={"HOME": "/workspace", "TMPDIR": self.sandbox.path("tmp"), "SKILLGATE_RUN_ID": "run_1"},
            secrets={"API_KEY": "s3cret"},
        )
        self.assertEqual(
            outcome.output,
            {"HOME": "/workspace", "TMPDIR": self.sandbox.path("tmp"), "SKILLGATE_RUN_ID": "run_1",
             "API_KEY": "s3cret", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        )

    def test_a_temporary_directory_that_cannot_be_written(self):
        outcome = self.sandbox.code("def main(args):\n    return no_such", env={"TMPDIR": "/proc/nowhere"})
        self.failed(outcome, "NameError", "line 2, in main", "    return no_such")

    def test_what_is_on_the_path(self):
        outcome = self.sandbox.code("import sys\ndef main(args): return [sys.path[-1], sys.dont_write_bytecode]")
        self.assertTrue(outcome.output[0].endswith("/python"))
        self.assertTrue(outcome.output[1])
        self.assertEqual(os.listdir(self.sandbox.path("workspace")), [])

    def test_a_byte_order_mark_and_an_encoding_line(self):
        self.completed(self.sandbox.code("\ufeff# -*- coding: latin-1 -*-\ndef main(args): return 'é'"), "é")
        code = "\ufeffdef main(args):\n    import ast, inspect\n    return ast.parse(inspect.getsource(main)).body[0].name"
        self.completed(self.sandbox.code(code), "main")

    def test_a_coroutine_that_was_left_behind_is_said_to_be_the_codes(self):
        code = """
            async def left(): pass
            def main(args):
                late = left()
                left()
        """
        code = textwrap.dedent(code)
        outcome = self.sandbox.code(code)
        file = self.sandbox.path("tmp/run_code.py")
        at_once, late = ("%s:%d: RuntimeWarning: coroutine 'left' was never awaited\n  %s\n" % (file, n, code.split("\n")[n - 1].strip()) for n in (5, 2))
        self.assertTrue(outcome.logs.startswith(at_once) and late in outcome.logs, outcome.logs)
        self.assertNotIn("_skillgate", outcome.logs)
        for debug in (False, True):
            debugged = "import sys\nsys.set_coroutine_origin_tracking_depth(1)\n" if debug else ""
            self.assertEqual("Coroutine created at" in self.sandbox.code(debugged + code).logs, debug)

    def test_help(self):
        code = "import sys\ndef main(args):\n    'Says it.'\n    before = 'pydoc' in sys.modules\n    help(%s)\n    return before"
        for asked, said in (("main", "Help on function main in module run_code:\n\nmain(args)\n    Says it.\n\n"), ("", "\nhelp> ")):
            outcome = self.sandbox.code(code % asked)
            self.completed(outcome, False)
            self.assertIn(said, outcome.logs)

    def test_async(self):
        code = "import asyncio\nasync def main(args):\n    await asyncio.sleep(0)\n    return args"
        self.completed(self.sandbox.code(code, {"a": 1}), {"a": 1})
        self.completed(self.sandbox.code(code + "\ndef go(args): return main(args)", {"a": 1}, "go"), {"a": 1})

    def test_async_that_fails_and_leaves_work_behind(self):
        code = """
            import asyncio, time
            async def main(args):
                asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
                task = asyncio.ensure_future(other())
                await asyncio.sleep(0)
                raise KeyError("x")
            async def other():
                try:
                    await asyncio.sleep(600)
                finally:
                    print("cleaned up")
        """
        outcome = self.sandbox.code(_dedent(code))
        self.failed(outcome, "KeyError", "in main")
        self.assertIn("cleaned up", outcome.logs)

    def test_threads_do_not_hold_the_result(self):
        code = """
            import threading, time, atexit
            atexit.register(time.sleep, 600)
            def main(args):
                threading.Thread(target=time.sleep, args=(600,)).start()
                return "done"
        """
        self.completed(self.sandbox.code(_dedent(code)), "done")

    def test_this_run(self):
        code = """
            import time
            from runtime import run
            import runtime
            def main(args):
                assert run.args is args and runtime.run is run
                assert 50 < run.remaining() <= 60 and 50 < run.deadline - time.time() <= 60
                return run.id
        """
        self.completed(self.sandbox.code(_dedent(code)), "run_0123456789abcdef")
        code = "from runtime import run\ndef main(args): return [run.deadline, run.remaining()]"
        self.completed(self.sandbox.code(code, timeout_ms=None), [None, None])
        # A run may have waited before it has its job.
        ends = time.monotonic_ns() + 20 * 10**9
        remaining, deadline = self.sandbox.code(code.replace("deadline, run.remaining()", "remaining(), run.deadline"), deadline_ns=ends).output
        self.assertTrue(10 < remaining <= 20 and 0 < deadline - time.time() <= 20, (remaining, deadline))

    def test_logs_keep_their_order_and_their_marks(self):
        code = """
            import contextlib, io, sys
            from runtime import log
            def main(args):
                print("one")
                print("two", file=sys.stderr)
                log.info("three\\nthree and a half")
                print("four", end=" ")
                log.error(5)
                log.warning("")
                log.debug("\\ud800")
                with contextlib.redirect_stderr(io.StringIO()):
                    log.info("not lost")
                print("\\ud800 é")
        """
        self.assertEqual(
            self.sandbox.code(_dedent(code)).logs,
            "one\ntwo\n[info] three\n[info] three and a half\nfour [error] 5\n[warning] \n[debug] \\ud800\n"
            "[info] not lost\n\\ud800 é\n",
        )

    def test_a_warm_interpreter(self):
        code = "import random\ndef main(args): return [random.random(), args]"
        first = self.sandbox.code(code, {"n": 1}, before="import random; random.seed(1); warm(['random', 'uuid', 'tempfile'])")
        second = self.sandbox.code(code, {"n": 2}, before="import random; random.seed(1); warm(['random', 'uuid', 'tempfile'])")
        self.assertEqual((first.output[1], second.output[1]), ({"n": 1}, {"n": 2}))
        self.assertNotEqual(first.output[0], second.output[0])

    def test_processes_are_forked_where_python_has_another_default(self):
        import multiprocessing
        import shutil

        library = self.sandbox.path("library")
        shutil.copytree(os.path.dirname(multiprocessing.__file__), library + "/multiprocessing")
        with open(library + "/multiprocessing/context.py", "r+") as file:
            text = file.read().replace("DefaultContext(_concrete_contexts['fork'])", "DefaultContext(_concrete_contexts['forkserver'])")
            self.assertIn("DefaultContext(_concrete_contexts['forkserver'])", text)  # as Python 3.14 has it
            file.seek(0)
            file.write(text)
        pool = """
            import multiprocessing
            def square(n): return n * n
            def main(args):
                assert multiprocessing.__file__.startswith(args["library"])
                assert multiprocessing.get_start_method() == "fork"
                with multiprocessing.Pool(2) as pool:
                    return pool.map(square, [1, 2, 3])
        """
        chosen = """
            import multiprocessing
            def main(args):
                multiprocessing.set_start_method("spawn")
                return multiprocessing.get_start_method()
        """
        for warmed in ("", "; warm(['multiprocessing'])", "; warm(['multiprocessing.context'])", "; warm()"):
            before = "sys.path.insert(0, root + '/library')" + warmed
            self.completed(self.sandbox.code(_dedent(pool), {"library": library}, before=before), [1, 4, 9])
            self.completed(self.sandbox.code(_dedent(chosen), before=before), "spawn")

    def test_a_run_counts_the_processors_that_it_is_given(self):
        code = """
            import concurrent.futures, multiprocessing, os
            def main(args):
                count = getattr(os, "process_cpu_count", os.cpu_count)
                with multiprocessing.get_context("spawn").Pool(1) as pool: anew = pool.apply(os.cpu_count)
                return [os.cpu_count(), count(), multiprocessing.cpu_count(), concurrent.futures.ProcessPoolExecutor()._max_workers, anew]
        """
        self.completed(self.sandbox.code(_dedent(code), processors=1), [1] * 5)
        for given in (1000, None):
            self.assertEqual(self.sandbox.code(_dedent(code), processors=given).output[0], os.cpu_count())

    def test_processes_that_begin_anew_find_what_the_run_finds(self):
        code = """
            import multiprocessing, os, sys
            from concurrent.futures import ProcessPoolExecutor
            from runtime import blobs, run
            from skills.acme import cubes
            class Bad(Exception): pass
            def square(n): return n * n
            def fail(n): raise Bad(n)
            def there(n):
                try:
                    blobs.write_text("x")
                except RuntimeError as exc:
                    print(exc, "\\ud800")
                return [run.id, run.args["how"], len(run.args), run.remaining() > 0, __name__, os.path.basename(sys.argv[0]), os.getcwd()]
            def main(args):
                os.chdir(os.environ["TMPDIR"])
                context = multiprocessing.get_context(args["how"])
                with context.Pool(2) as pool:
                    out = [pool.map(square, [1, 2, 3]), cubes(pool, [1, 2])]
                with ProcessPoolExecutor(1, context) as pool:
                    assert pool.submit(there, 1).result() == there(1)
                    try:
                        pool.submit(fail, 5).result()
                    except Bad as exc:
                        return out + [repr(exc)]
        """
        main = "import util\ndef cubes(pool, numbers): return pool.map(util.cube, numbers)\n"
        main += "def main(args):\n    import multiprocessing\n    with multiprocessing.get_context('spawn').Pool(1) as pool: return cubes(pool, [3])"
        self.sandbox.skill("acme", {"code/main.py": main, "code/util.py": "def cube(n): return n * n * n"})
        for how, before in (("spawn", ""), ("forkserver", ""), ("spawn", "warm(['multiprocessing'])")):
            outcome = self.sandbox.code(_dedent(code), {"how": how}, before=before)
            self.completed(outcome, [[1, 4, 9], [1, 8], "Bad(5)"])
            self.assertEqual(outcome.logs, "runtime.blobs works in the first process of the run, not in a forked child \\ud800\n")
        self.completed(self.sandbox.execute("acme"), [27])

    def test_processes_that_begin_anew_have_the_arguments(self):
        code = """
            import multiprocessing
            from runtime import run
            N = run.args['n']
            class Config: pass
            def there(_): return N, sorted(run.args)
            def main(args):
                args.update({'no value': lambda: 0, 'of the code': Config(), 'function': there})
                with multiprocessing.get_context('spawn').Pool(1) as pool:
                    return pool.map(there, [1])
        """
        self.completed(self.sandbox.code(_dedent(code), {"n": 3, "m": None}), [[3, ["m", "n"]]])

    def test_a_task_that_cannot_put_away_what_it_has_is_heard_of(self):
        code = """
            import asyncio
            async def behind():
                try: await asyncio.sleep(100)
                finally: 1 / 0
            async def main(args):
                task = asyncio.ensure_future(behind())
                await asyncio.sleep(0)
                return 1
        """
        outcome = self.sandbox.code(_dedent(code))
        self.completed(outcome, 1)
        self.assertIn("ZeroDivisionError", outcome.logs)

    def test_children_of_a_warm_interpreter_share_no_randomness(self):
        # Two children of one parent, as a launcher makes them; each prints what it would have drawn.
        before = """
            import os, random, ssl, tempfile, uuid
            warm()
            next(tempfile._get_candidate_names()); random.random(); uuid.uuid1()
            from _skillgate.main import refresh_randomness
            for _ in range(2):
                if os.fork() == 0:
                    refresh_randomness()
                    print(random.random(), next(tempfile._get_candidate_names()), ssl.RAND_bytes(8).hex(), flush=True)
                    os._exit(0)
                os.wait()
        """
        outcome = self.sandbox.code("def main(args): pass", before=_dedent(before))
        first, second = outcome.logs.splitlines()
        self.assertFalse(set(first.split()) & set(second.split()))


    def test_refreshing_does_not_trust_the_pid(self):
        # In namespaces of their own, parent and children can all have the same pid: then nothing notices the fork.
        before = """
            import ssl, tempfile, uuid
            next(tempfile._get_candidate_names()); uuid._node = 5
            added = []
            ssl.RAND_add = lambda data, entropy: added.append((len(set(data)) > 20, entropy))
            from _skillgate.main import refresh_randomness
            refresh_randomness()
            print(added, tempfile._name_sequence, uuid._node, flush=True)
        """
        outcome = self.sandbox.code("def main(args): pass", before=_dedent(before))
        self.assertEqual(outcome.logs, "[(True, 48.0)] None None\n")



class Rehearsal(Case):
    CODE = """
        import gc, importlib, linecache, os, sys, runtime
        def main(args):
            return {
                "argv": sys.argv, "finders": len(sys.meta_path), "import": importlib.import_module.__name__, "gc": gc.isenabled(),
                "lines": sorted(linecache.cache), "modules": sorted(sys.modules), "env": sorted(os.environ),
                "tmp": os.listdir(os.environ["TMPDIR"]), "run": [runtime.run.id, runtime.run.args],
                "fds": len(os.listdir("/proc/self/fd")),
            }
    """
    BEFORE = """
import os, socket
from _skillgate.main import rehearse
from _skillgate.state import Layout
ends = [s.detach() for s in socket.socketpair()]
layout = Layout(root + "/skills", root + "/blobs", root + "/workspace", root + "/tmp")
"""

    def test_it_leaves_no_trace(self):
        job = {"code": _dedent(self.CODE), "skill": None, "function": "main", "args": {"a": 1}}
        job["env"] = {"TMPDIR": self.sandbox.path("tmp")}
        without = self.sandbox.run(job, before=self.BEFORE + "for e in ends: os.close(e)")
        # What it prints it prints: the code, and the skill by the log.
        code, skill = "hello x\n", "[info] Hello, x!\n"
        for how, said in (("times=1", code + skill), ("times=2", (code + skill) * 2), ("skill=False", code)):
            after = self.sandbox.run(job, before=self.BEFORE + "rehearse(*ends, layout, %s)" % how)
            self.assertEqual(after.output, without.output)
            self.assertEqual(after.logs, said)

    def test_the_one_that_is_forked_from_moves_its_code(self):
        moved = """
from _skillgate import main
code = main._answer.__code__
rehearse(*ends, layout, times=%d)
assert (main._answer.__code__ is code) == (%d == 1)
"""
        for times in (1, 2):
            job = {"code": "def main(args): return 1", "skill": None, "function": "main", "args": {}}
            self.assertEqual(self.sandbox.run(job, before=self.BEFORE + moved % (times, times)).output, 1)

    def test_before_a_skill(self):
        self.sandbox.skill("a", {"code/main.py": "import util\ndef main(args): return util.who", "code/util.py": "who = 'a'"})
        for before in ("rehearse(*ends, layout)", "warm(); rehearse(*ends, layout)", "rehearse(*ends, layout); warm()"):
            self.completed(self.sandbox.execute("a", before=self.BEFORE + before), "a")


class Output(Case):
    def test_the_last_blob_is_the_output_whatever_threads_do(self):
        code = """
            import threading
            from runtime import blobs
            def store():
                while True: blobs.write_text("x")
            def main(args):
                first = blobs.write_text("x")
                for _ in range(4): threading.Thread(target=store, daemon=True).start()
                return "y" * 5000
        """
        for _ in range(10):
            outcome = self.sandbox.code(_dedent(code))
            self.assertTrue(outcome.result["spilled"])
            self.assertEqual(list(outcome.blobs.values())[-1], ("application/json", b'"' + b"y" * 5000 + b'"'))

    def test_exactly_the_limit_is_inline_and_more_is_spilled(self):
        outcome = self.sandbox.code("def main(args): return 'x' * 4094")
        self.completed(outcome, "x" * 4094)
        self.assertFalse(outcome.result["spilled"])
        outcome = self.sandbox.code("def main(args): return 'x' * 4095")
        self.assertEqual(outcome.status, "completed")
        self.assertTrue(outcome.result["spilled"])
        self.assertNotIn("output", outcome.result)
        self.assertEqual(list(outcome.blobs.values()), [("application/json", b'"' + b"x" * 4095 + b'"')])

    def test_a_large_value_that_turns_out_not_to_be_json_leaves_no_blob(self):
        outcome = self.sandbox.code("def main(args): return {'rows': ['x' * 1000] * 2000 + [float('nan')]}")
        self.failed(outcome, "OutputNotSerializable", "$.rows[2000]")
        self.assertEqual((outcome.blobs, outcome.aborted), ({}, 1))

    def test_a_value_that_is_not_json(self):
        self.failed(
            self.sandbox.code("def main(args): return {'rows': [1, {'price': float('inf')}]}"),
            "OutputNotSerializable",
            "the return value is not JSON: the value at $.rows[1].price is inf",
        )

    def test_a_store_that_refuses_the_spilled_value(self):
        code = "import runtime\ndef main(args):\n    runtime.summary('Sent 742 mails.')\n    return 'x' * 9999"
        hint = "main() has returned; what it returned is too large for an answer and could not be stored as a blob: return less\n"
        for refuse, kind in (({"C": "disk_full"}, "DiskFull"), ({"W": "too_large"}, "BlobTooLarge"), ({"F": "unavailable"}, "BlobError")):
            self.sandbox.refuse = refuse
            outcome = self.sandbox.code(code)
            self.failed(outcome, kind, hint, "refused by the test")
            self.assertEqual(outcome.result["summary"], "Sent 742 mails.")
        # What the code itself stores is another matter.
        outcome = self.sandbox.code("from runtime import blobs\ndef main(args): blobs.write_text('x')")
        self.assertNotIn("has returned", outcome.error["message"])

    def test_summary(self):
        say = "import runtime\ndef main(args):\n    runtime.summary('said')\n    return {'summary': 'returned'}"
        self.assertEqual(self.sandbox.code(say).result["summary"], "said")
        cases = {
            "{'summary': 'returned', 'n': 1}": "returned",
            "{'summary': 5}": None,
            "'summary'": None,
            "{'summary': 'from a spilled value', 'x': 'y' * 9999}": "from a spilled value",
            "{'summary': 'x' * 2000}": "x" * 999 + "…",
        }
        for value, expected in cases.items():
            outcome = self.sandbox.code("def main(args): return " + value)
            self.assertEqual(outcome.result["summary"], expected, value)

    def test_a_summary_is_kept_when_the_run_fails(self):
        outcome = self.sandbox.code("import runtime\ndef main(args):\n    runtime.summary('half \\ud800 done')\n    1/0")
        self.assertEqual(outcome.result["summary"], "half \\ud800 done")
        self.failed(outcome, "ZeroDivisionError")
        self.failed(self.sandbox.code("import runtime\ndef main(args): runtime.summary(5)"), "TypeError", "takes a str")


class Entrypoints(Case):
    def test_missing(self):
        code = "from os.path import join\nX = 5\ndef run(args): pass\ndef _hidden(): pass\n"
        self.failed(
            self.sandbox.code(code), "EntrypointNotFound", "no function 'main' in the code; its functions: run"
        )
        self.failed(self.sandbox.code(code, function="X"), "EntrypointNotFound", "'X' is a int and not a function")
        self.failed(self.sandbox.code("", function="main"), "EntrypointNotFound", "its functions: none")
        self.failed(self.sandbox.code("print(1)"), "EntrypointNotFound", "write `def main(args):`, which returns the result")
        guarded = "is done, but nothing below `if __name__ == '__main__':`, which is not so in a run; write `def main(args):`, which does that and "
        for code in ("\ufeffif __name__ == '__main__':\n    print(1)", 'x = 1\nif "__main__" == __name__ and x: print(1)'):
            self.failed(self.sandbox.code(code), "EntrypointNotFound", guarded + "returns the result")
        for code in ("# if __name__ == '__main__':", 's = """\nif __name__ == \'__main__\':\n"""', "if 1: __name__", "if %s1: 1" % ("-" * 90)):
            self.failed(self.sandbox.code(code), "EntrypointNotFound", "what it does outside of functions is done; write `def")
        self.sandbox.skill("t.up", {"code/main.py": "def other(args): pass"})
        self.failed(self.sandbox.execute("t.up"), "EntrypointNotFound", "its functions: other (define it, or correct runtime.export")
        for name in ("__class__", "__builtins__", "__name__", "__dict__", "print", "a.b", "", "x\ny" * 500):
            self.failed(self.sandbox.code(code, function=name), "EntrypointNotFound")

    def test_wrong_signature_is_a_type_error(self):
        called = "called with one argument, a dict with the arguments of the call"
        for parameters in ("", "**args", "name, count", "*, name"):
            self.failed(self.sandbox.code("def main(%s): pass" % parameters), "TypeError", "main() is %s\n" % called, "TypeError: main()")
        self.sandbox.skill("a", {"code/main.py": "def main(name, count): pass"})
        self.failed(self.sandbox.execute("a"), "TypeError", "main() is %s\n" % called, "'count'")
        for body in ("int([])", "len(5)", "other()"):
            outcome = self.sandbox.code("def other(x): pass\ndef main(args): " + body)
            self.failed(outcome, "TypeError", "line 2, in main")
            self.assertNotIn(called, outcome.error["message"])

    def test_skill(self):
        self.sandbox.skill("acme.hello", {"code/main.py": "def main(args):\n    return [args, __name__, __file__]"})
        outcome = self.sandbox.execute("acme.hello", {"a": 1})
        self.assertEqual(outcome.output[:2], [{"a": 1}, "skills.acme.hello"])
        self.assertTrue(outcome.output[2].endswith("/skills/acme.hello/code/main.py"))

    def test_skill_without_its_function_or_file(self):
        self.sandbox.skill("acme.a", {"code/main.py": "def other(args): pass"})
        self.sandbox.skill("acme.b", {"code/other.py": ""})
        self.failed(self.sandbox.execute("acme.a"), "EntrypointNotFound", "/skills/acme.a/code/main.py", "other")
        self.failed(self.sandbox.execute("acme.b"), "EntrypointNotFound", "'acme.b' has no file 'code/main.py'")

    def test_async_skill(self):
        self.sandbox.skill("a", {"code/main.py": "async def main(args): return 1"})
        self.completed(self.sandbox.execute("a"), 1)


class Jobs(Case):
    def test_arguments_that_python_cannot_read(self):
        raw = b'{"function":"main","code":"","args":{"a":%s}}'
        self.failed(self.sandbox.run({}, raw=raw % (b"[" * 100000 + b"]" * 100000)), "RecursionError")
        outcome = self.sandbox.run({}, raw=raw % (b"9" * 5000))
        self.assertEqual(outcome.status, "failed")

    def test_a_job_that_is_none(self):
        for raw in (b"", b"[]", b"{}", b'{"function":"main"}'):
            outcome = self.sandbox.run({}, raw=raw)
            self.assertEqual(outcome.status, "failed", raw)


def _dedent(code):
    import textwrap

    return textwrap.dedent(code)


if __name__ == "__main__":
    unittest.main()
