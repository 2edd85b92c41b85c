"""What the log says of work that the code has begun and not waited for."""

import textwrap
import unittest

from support import Sandbox

_ONE = "[warning] 1 %s still worked when main() returned and was ended with the run: join() or end it first\n"
_MORE = "[warning] %s still worked when main() returned and were ended with the run: join() or end them first\n"
_FOREVER = "threading.Event().wait"
# Of a process: as long as the run lasts, since here nothing else ends it.
_WORK = """
import multiprocessing, os, threading
def work(): multiprocessing.parent_process().join()
def last(): work(); os._exit(0)
def begin(): threading.Thread(target=last, daemon=True).start()
"""


class Case(unittest.TestCase):
    def setUp(self):
        self.sandbox = Sandbox()
        self.addCleanup(self.sandbox.close)

    def said(self, body, logs, imports="import threading, time", **more):
        body = textwrap.indent(textwrap.dedent(body), "    ")
        outcome = self.sandbox.code("%s\ndef main(args):\n%s\n    return 'fine'" % (imports, body), **more)
        self.assertEqual((outcome.status, outcome.result.get("output")), ("completed", "fine"), outcome.result)
        self.assertEqual((outcome.exit, outcome.results), (0, 1))
        self.assertEqual(outcome.logs, logs, body)


class Threads(Case):
    def test_one_and_more(self):
        start = "threading.Thread(target=%s).start()" % _FOREVER
        self.said(start, _ONE % "thread")
        self.said("print('first', end='')\n" + start, "first" + _ONE % "thread")
        self.said("for _ in range(3): " + start, _MORE % "3 threads")
        self.said("threading.Timer(600, print).start()", _ONE % "thread")
        self.said("class T(threading.Thread):\n    def run(self): %s()\nT().start()" % _FOREVER, _ONE % "thread")

    def test_of_a_skill_and_of_its_function(self):
        self.sandbox.skill("a", {"code/main.py": "import threading\ndef go(args):\n    threading.Thread(target=%s).start()" % _FOREVER})
        outcome = self.sandbox.execute("a", function="go")
        self.assertEqual((outcome.status, outcome.logs), ("completed", (_ONE % "thread").replace("main()", "go()")))

    def test_those_that_nobody_needs_to_wait_for(self):
        self.said("threading.Thread(target=%s, daemon=True).start()" % _FOREVER, "")
        self.said("t = threading.Thread(target=print, args=('x',)); t.start(); t.join()", "x\n")
        self.said("import _thread; _thread.start_new_thread(%s, ())" % _FOREVER, "")

    def test_one_that_has_told_that_it_is_done(self):
        body = """
            import asyncio
            done = threading.Event()
            threading.Thread(target=done.set).start()
            done.wait()
            loop = asyncio.new_event_loop()
            done = loop.create_future()
            threading.Thread(target=loop.call_soon_threadsafe, args=(done.set_result, 1)).start()
            loop.run_until_complete(done)
        """
        for _ in range(5):
            self.said(body, "")

    def test_a_thread_that_was_the_first_to_import_them(self):
        body = """
            import _thread
            begun = _thread.allocate_lock()
            begun.acquire()
            def work():
                import threading
                begun.release()
                threading.Event().wait()
            _thread.start_new_thread(work, ())
            begun.acquire()
        """
        self.said(body, "", imports="import sys\nassert 'threading' not in sys.modules")

    def test_a_run_that_fails_says_how(self):
        outcome = self.sandbox.code("import threading\ndef main(args):\n    threading.Thread(target=%s).start()\n    1/0" % _FOREVER)
        self.assertEqual((outcome.error["type"], outcome.logs), ("ZeroDivisionError", ""))


class Executors(Case):
    IMPORTS = "import asyncio, threading, time\nfrom concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor"

    def test_of_threads(self):
        for body, logs in (
            ("global pool; pool = ThreadPoolExecutor(2); list(pool.map(str, range(9)))", ""),
            ("global pool; pool = ThreadPoolExecutor(2); pool.submit(str, 1).result()", ""),
            ("global pool; pool = ThreadPoolExecutor(2); pool.submit(str, 1).result(); pool.submit(%s)" % _FOREVER, _ONE % "thread"),
            ("global pool; pool = ThreadPoolExecutor(2); [pool.submit(time.sleep, 600) for _ in range(5)]", _MORE % "2 threads"),
        ):
            self.said(body, logs, self.IMPORTS)

    def test_of_coroutines(self):
        call = "loop.run_in_executor(None, %s)"
        code = self.IMPORTS + "\nasync def main(args):\n    loop = asyncio.get_running_loop()\n    %s\n    return 'fine'"
        for line, logs in (("await " + call % "str", ""), (call % _FOREVER, _ONE % "thread")):
            for _ in range(5):
                outcome = self.sandbox.code(code % line)
                self.assertEqual((outcome.output, outcome.logs), ("fine", logs))

    def test_of_processes(self):
        for body, logs in (
            ("global pool; pool = ProcessPoolExecutor(2, initializer=begin); list(pool.map(abs, [0, 0, 0]))", ""),
            ("global pool; pool = ProcessPoolExecutor(1, initializer=begin); pool.submit(abs, 0).result(); pool.submit(work)", _ONE % "process"),
        ):
            self.said(body, logs, self.IMPORTS + _WORK)


class Processes(Case):
    IMPORTS = _WORK

    def test_of_each_way_to_start_them(self):
        for how in ("fork", "spawn", "forkserver"):
            start = "how = multiprocessing.get_context(%r)\nend, there = how.Pipe()\n" % how
            tell = _WORK + "\ndef tell(there): there.send(1); work()"
            self.said(start + "how.Process(target=tell, args=(there,)).start(); end.recv()", _ONE % "process", tell)
            self.said(start + "p = how.Process(target=abs, args=(0,)); p.start(); p.join()", "", tell)

    def test_with_threads(self):
        body = "[multiprocessing.Process(target=work).start() for _ in range(2)]\nthreading.Thread(target=%s).start()" % _FOREVER
        self.said(body, _MORE % "1 thread and 2 processes", self.IMPORTS)

    def test_those_that_nobody_needs_to_wait_for(self):
        self.said("multiprocessing.Process(target=work, daemon=True).start()", "", self.IMPORTS)
        self.said("global pool; pool = multiprocessing.Pool(2, begin); pool.map(abs, [0])", "", self.IMPORTS)

    def test_the_server_of_a_manager(self):
        # By itself it ends when Python does, and here nobody ends it.
        serve = "global manager; manager = multiprocessing.managers.SyncManager(); manager.start(begin); manager.list([1])\n"
        imports = self.IMPORTS + "import multiprocessing.managers"
        self.said(serve, "", imports)
        self.said(serve + "multiprocessing.Process(target=work).start()", _ONE % "process", imports)

    def test_one_that_has_ended_and_that_nobody_has_asked(self):
        body = """
            import os
            p = multiprocessing.Process(target=abs, args=(0,))
            p.start()
            os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
        """
        self.said(body, "", self.IMPORTS)


class Hostile(Case):
    def test_what_is_read_is_of_the_codes_own_making(self):
        start = "threading.Thread(target=%s).start()\n" % _FOREVER
        lies = """
            class Lies(dict):
                def copy(self): raise SystemExit("not asked")
                get = items = __getitem__ = __contains__ = __iter__ = keys = copy
                __dict__ = property(copy)
        """
        lies = textwrap.dedent(lies) + "import sys, types, _thread\nimport multiprocessing.process as mp, multiprocessing.util as mu\n"
        for line in (
            "threading._active = Lies()",
            "threading._active = None",
            "threading._active[7] = threading._active['7'] = Lies()",
            "threading._active[next(i for i in threading._active if i != _thread.get_ident())] = Lies()",
            "threading.enumerate = threading.Thread.is_alive = threading.current_thread = Lies().copy",
            "sys.modules['threading'] = Lies()",
            "sys.modules['multiprocessing.process'] = Lies()",
            "mp._children = Lies()",
            "mp._children.add(object())",
            "mp._children.add(types.SimpleNamespace)",
            "mp._children.add(object()); mu._finalizer_registry = Lies()",
            "mp._children.add(object()); mu._finalizer_registry[(0, -1)] = types.SimpleNamespace(_args=Lies())",
            "mp._children.add(object()); mu._finalizer_registry[Lies] = Lies()",
            "sys.modules = Lies()",
            "sys._current_frames = Lies().copy",
            "sys.stdout = Lies()",
            "__import__('os').close(2)",
        ):
            outcome = self.sandbox.code("import threading\n%s\ndef main(args):\n    %s    %s\n    return 'fine'" % (lies, start, line))
            self.assertEqual((outcome.status, outcome.result.get("output")), ("completed", "fine"), line)
            self.assertEqual((outcome.exit, outcome.results), (0, 1))
            self.assertIn(outcome.logs, ("", _ONE % "thread"), line)

    def test_a_signal_handler_that_raises_meanwhile(self):
        body = """
            import signal
            def ring(*_): raise TimeoutError("late")
            signal.signal(signal.SIGALRM, ring)
            threading.Thread(target=threading.Event().wait).start()
            signal.setitimer(signal.ITIMER_REAL, 0.005)
        """
        outcome = self.sandbox.code("import threading\ndef main(args):\n" + textwrap.indent(textwrap.dedent(body), "    "))
        self.assertEqual((outcome.exit, outcome.results), (0, 1))


class Rehearsed(Case):
    def test_a_rehearsal_says_nothing(self):
        before = (
            "import socket, threading\nfrom _skillgate.main import rehearse\n"
            "threading.Thread(target=%s).start()\n"
            "rehearse(*(s.detach() for s in socket.socketpair()), Layout(root + '/skills', root + '/blobs', root + '/workspace', root + '/tmp'))"
        ) % _FOREVER
        self.said("pass", "hello x\n[info] Hello, x!\n" + _ONE % "thread", before=before)


if __name__ == "__main__":
    unittest.main()
