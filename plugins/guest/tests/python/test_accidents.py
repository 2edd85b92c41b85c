"""Code that breaks what the result needs: it fails honestly, or does not matter."""

import textwrap
import unittest

from support import Sandbox


class Accidents(unittest.TestCase):
    def setUp(self):
        self.sandbox = Sandbox()
        self.addCleanup(self.sandbox.close)

    def run_main(self, body, **more):
        return self.sandbox.code("import os, sys\ndef main(args):\n" + textwrap.indent(textwrap.dedent(body), "    "), **more)

    def unharmed(self, body, output="fine"):
        outcome = self.run_main(body)
        self.assertEqual(outcome.status, "completed", outcome.result)
        self.assertEqual((outcome.output, outcome.results, outcome.exit), (output, 1, 0))
        return outcome

    def lost(self, body):
        outcome = self.run_main(body)
        self.assertIsNone(outcome.result)
        self.assertEqual(outcome.exit, 70)
        return outcome

    def test_streams(self):
        for body in (
            "sys.stdout.close(); return 'fine'",
            "sys.stdout = sys.stderr = None; return 'fine'",
            "sys.stdout = 5; return 'fine'",
            "del sys.stdout, sys.stderr, sys.__stdout__; return 'fine'",
            "os.close(1); os.close(2); return 'fine'",
            "import io; sys.stdout = io.StringIO(); print('x'); return 'fine'",
            "from runtime import log; sys.stdout.close(); os.close(2); log.info('x'); return 'fine'",
            "class S:\n    def flush(self): raise SystemExit\nsys.stdout = S()\nreturn 'fine'",
        ):
            self.unharmed(body)

    def test_printed_text_comes_before_the_result(self):
        self.assertEqual(self.unharmed("print('no newline', end=''); return 'fine'").logs, "no newline")

    def test_names_that_we_need(self):
        self.unharmed(
            """
            import builtins, json, time, importlib, linecache, traceback
            json.dumps = json.loads = time.time = importlib.import_module = None
            os._exit = os.write = os.writev = os.readv = os.fstat = os.getpid = sys.setrecursionlimit = None
            from runtime import blobs
            blobs.write_text("x")
            builtins.print = None
            return 'fine'
            """
        )

    def test_classes_that_we_would_ask(self):
        changed = """
            import json
            json.JSONEncoder.encode = json.JSONEncoder.iterencode = lambda *_, **__: "no JSON"
            sys.getrecursionlimit = None
            import runtime
            runtime.summary("\\u00e9")
            """
        writes = """
            name = runtime.blobs.write_text("x")
            return runtime.blobs.read_text(name) and 'fine'
            """
        self.assertEqual(self.unharmed(changed + writes).result["summary"], "\u00e9")
        outcome = self.run_main(changed + "raise ValueError('\\u00e9')")
        self.assertEqual((outcome.error["type"], outcome.result["summary"]), ("ValueError", "\u00e9"))
        self.assertTrue(outcome.error["message"].endswith("ValueError: \u00e9"))

    def test_the_standard_library_is_gone(self):
        self.unharmed("sys.modules.clear(); sys.path.clear(); sys.meta_path.clear(); return 'fine'")
        outcome = self.run_main("sys.modules.clear(); sys.path.clear(); raise ValueError('x')")
        self.assertEqual(outcome.error["type"], "ValueError")

    def test_traces_and_hooks(self):
        self.unharmed("sys.excepthook = sys.unraisablehook = None; sys.setprofile(lambda *a: None); return 'fine'")

    def test_closed_channel(self):
        for body in ("os.close(args_fd())", "os.closerange(3, 64)"):
            body = body.replace("args_fd()", "max(int(f) for f in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + f) and 'socket' in os.readlink('/proc/self/fd/' + f))")
            outcome = self.lost(body)
            self.assertIn("[error] the result cannot be sent: the code has closed the run's channel", outcome.logs)

    def test_the_channels_number_names_a_file_now(self):
        outcome = self.lost(
            """
            os.closerange(3, 64)
            files = [open("file%d" % n, "wb") for n in range(20)]
            return 'secret'
            """
        )
        self.assertIn("the code has closed the run's channel", outcome.logs)
        for number in range(20):
            with open(self.sandbox.path("workspace", "file%d" % number), "rb") as file:
                self.assertEqual(file.read(), b"")

    def test_blobs_after_the_channel_is_closed(self):
        self.lost("from runtime import blobs\nos.closerange(3, 64)\ntry:\n    blobs.write_text('x')\nexcept OSError:\n    pass")

    def test_forked_children_have_nothing_to_say(self):
        self.unharmed("pid = os.fork()\nif pid: os.waitpid(pid, 0)\nreturn 'fine'")
        self.unharmed("pid = os.fork()\nif not pid: raise ValueError\nos.waitpid(pid, 0)\nreturn 'fine'")
        body = """
            from runtime import blobs
            pid = os.fork()
            if not pid:
                try:
                    blobs.write_text("from the child")
                except RuntimeError as exc:
                    os.write(2, str(exc).encode())
                os._exit(0)
            os.waitpid(pid, 0)
            return 'fine'
        """
        outcome = self.unharmed(body)
        self.assertIn("not in a forked child", outcome.logs)
        self.assertEqual(outcome.blobs, {})

    def test_children_forked_while_another_thread_stores(self):
        body = """
            import signal, threading
            from runtime import blobs
            def store():
                while True: blobs.write_bytes(bytes(1 << 20))
            threading.Thread(target=store, daemon=True).start()
            lock = sys.modules["_skillgate.state"].current.channel._lock
            def child():
                signal.alarm(5)
                try:
                    blobs.write_text("from the child")
                except RuntimeError as exc:
                    os._exit(0 if "not in a forked child" in str(exc) else 1)
            ends = []
            while len(ends) < 10:
                if lock.acquire(False):  # at the fork it is to be the thread's
                    lock.release()
                    continue
                pid = os.fork()
                if not pid: child()
                ends.append(os.waitpid(pid, 0)[1])
            return ends
        """
        self.unharmed(body, [0] * 10)

    def test_forked_children_end_as_they_would_end_anywhere(self):
        body = """
            def status(end):
                pid = os.fork()
                if not pid:
                    end()
                    os._exit(99)
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            def wrong(): raise ValueError("of the child")
            class Hostile(SystemExit):
                code = property(lambda self: 1 / 0)
            def hostile(): raise Hostile()
            ends = [sys.exit, lambda: sys.exit(3), lambda: sys.exit("a reason"), wrong, hostile]
            got = [status(end) for end in ends]
            assert got == [0, 3, 1, 1, 1], got
            return 'fine'
        """
        outcome = self.unharmed(body)
        for said in ("a reason\n", "ValueError: of the child\n"):
            self.assertEqual(outcome.logs.count(said), 1, outcome.logs)

    def test_the_channel_is_not_inherited(self):
        body = """
            import subprocess
            seen = subprocess.run([sys.executable, "-I", "-S", "-c", "import os; print([f for f in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + f) and 'socket' in os.readlink('/proc/self/fd/' + f)])"],
                                  stdout=subprocess.PIPE, close_fds=False).stdout
            return seen.decode().strip()
        """
        self.unharmed(body, "[]")

    def test_a_signal_handler_in_the_middle_of_a_request(self):
        # The handler's exception leaves blobs.write_file somewhere inside an exchange, again and again.
        body = """
            import signal
            from runtime import blobs
            class Alarm(Exception): pass
            def ring(*_): raise Alarm
            signal.signal(signal.SIGALRM, ring)
            open("big", "wb").write(b"x" * (4 << 20))
            broken = 0
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                while True: blobs.write_file("big")
            except Alarm:
                broken += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            return 'fine'
        """
        for _ in range(5):
            # Never a frame that the sandbox cannot read (support asserts that).
            self.unharmed(body)

    def test_a_signal_handler_that_raises_what_a_broken_channel_would(self):
        body = """
            import signal
            from runtime import blobs
            def ring(*_): raise TimeoutError("late")
            signal.signal(signal.SIGALRM, ring)
            made = blobs.write_bytes(b"x" * (1 << 20))
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                while True: blobs.read_bytes(made)
            except TimeoutError:
                return 'fine'
        """
        for _ in range(20):
            self.unharmed(body)

    def test_a_request_that_was_interrupted_half_way_and_another_file_at_the_channels_number(self):
        body = """
            import signal
            from runtime import blobs
            def ring(*_): raise TimeoutError("late")
            signal.signal(signal.SIGALRM, ring)
            channel = sys.modules["_skillgate.state"].current.channel
            # One that nobody reads, for a while.
            import socket
            ours, theirs = socket.socketpair()
            kept = os.dup(channel._fd)
            os.dup2(ours.fileno(), channel._fd)
            channel._identity = sys.modules["_skillgate.channel"]._identity(os.fstat(channel._fd))
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                channel.call(b"W", bytes(1 << 20))
            except TimeoutError:
                os.dup2(os.open("file", os.O_CREAT | os.O_WRONLY), channel._fd)
        """
        outcome = self.lost(body)
        self.assertIn("the code has closed the run's channel", outcome.logs)
        with open(self.sandbox.path("workspace", "file"), "rb") as file:
            self.assertEqual(file.read(), b"")

    def test_threads_after_the_result(self):
        body = """
            import threading
            from runtime import blobs
            def write():
                while True: blobs.write_text("x" * 100000)
            for _ in range(4): threading.Thread(target=write, daemon=True).start()
            return 'fine'
        """
        self.unharmed(body)

    def test_a_forged_result_is_only_the_codes_own(self):
        # Nothing inside can stop this; the sandbox takes the first result and reads no further.
        body = """
            fd = max(int(f) for f in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + f) and 'socket' in os.readlink('/proc/self/fd/' + f))
            forged = b'R{"status":"completed","output":"forged","spilled":false,"summary":null}'
            os.write(fd, len(forged).to_bytes(4, "little") + forged)
            return 'real'
        """
        outcome = self.run_main(body)
        self.assertEqual((outcome.output, outcome.results), ("forged", 2))


if __name__ == "__main__":
    unittest.main()
