"""runtime.blobs against a fake store."""

import textwrap
import unittest

from support import Sandbox


class Blobs(unittest.TestCase):
    def setUp(self):
        self.sandbox = Sandbox()
        self.addCleanup(self.sandbox.close)

    def run_main(self, body, **args):
        code = "from runtime import blobs\nimport runtime\ndef main(args):\n" + textwrap.indent(
            textwrap.dedent(body), "    "
        )
        return self.sandbox.code(code, args)

    def output(self, body, **args):
        outcome = self.run_main(body, **args)
        self.assertEqual(outcome.status, "completed", outcome.result)
        return outcome.output

    def test_input_blobs(self):
        text = self.sandbox.blob("text", "a,b\r\né,2\n".encode("utf-8"))
        json = self.sandbox.blob("json", b'{"a": [1]}')
        self.assertEqual(self.output("return blobs.list()"), [text, json])
        self.assertEqual(self.output("return blobs.read_text(args['id'])", id=text), "a,b\r\né,2\n")
        self.assertEqual(self.output("return blobs.read_bytes(args['id']).hex()", id=json), b'{"a": [1]}'.hex())
        self.assertEqual(self.output("return blobs.read_json(args['id'])", id=json), {"a": [1]})
        self.assertEqual(self.output("return open(blobs.path(args['id'])).read()", id=json), '{"a": [1]}')
        self.assertEqual(self.output("with blobs.open(args['id'], 'r') as f: return list(f)", id=text), ["a,b\n", "é,2\n"])
        body = "import csv\nwith blobs.open(args['id'], 'r', newline='') as f: return list(csv.reader(f))"
        self.assertEqual(self.output(body, id=text), [["a", "b"], ["é", "2"]])

    def test_input_blobs_that_are_no_files(self):
        self.sandbox.input_blobs.append("blob:far")
        self.sandbox.serve_inputs_by_channel["blob:far"] = b"0123456789" * 200000
        body = """
            whole = blobs.read_bytes('blob:far')
            with blobs.open('blob:far') as f:
                f.seek(1999995)
                tail = f.read()
            return [len(whole), tail.decode(), open(blobs.path('blob:far'), 'rb').read() == whole]
        """
        self.assertEqual(self.output(body), [2000000, "56789", True])

    def test_other_blobs_are_refused_by_name(self):
        self.sandbox.blob("mine", b"x")
        for id in ("blob:other", "blob:../../etc/passwd", "mine", "", "blob:"):
            for call in ("read_text(x)", "read_bytes(x)", "read_json(x)", "open(x)", "path(x)"):
                outcome = self.run_main("x = args['id']\nblobs." + call, id=id)
                self.assertEqual(outcome.error["type"], "BlobNotFound")
                self.assertIn("must be in input_blobs", outcome.error["message"])
                self.assertIn("line 5, in main", outcome.error["message"])
        body = """
            try:
                blobs.read_text('blob:other')
            except FileNotFoundError as exc:
                return [isinstance(exc, runtime.BlobNotFound), exc.filename]
        """
        self.assertEqual(self.output(body), [True, "blob:other"])
        self.assertEqual(self.run_main("blobs.read_text(5)").error["type"], "TypeError")

    def test_own_blobs(self):
        body = """
            ids = [
                blobs.write_text("é\\n"), blobs.write_text("a,b", kind="text/csv"),
                blobs.write_bytes(b"\\x00\\xff"), blobs.write_bytes(memoryview(b"abcd")[::1]),
                blobs.write_json({"a": [1, None]}), blobs.write_text(""),
            ]
            assert blobs.created() == ids and blobs.list() == []
            assert blobs.read_text(ids[0]) == "é\\n" and blobs.read_json(ids[4]) == {"a": [1, None]}
            assert blobs.read_bytes(ids[2]) == b"\\x00\\xff" and blobs.read_bytes(ids[5]) == b""
            with open(blobs.path(ids[0]), encoding="utf-8") as f: assert f.read() == "é\\n"
            assert blobs.path(ids[0]) == blobs.path(ids[0])
            with blobs.open(ids[3]) as f:
                assert f.seek(-1, 2) == 3 and f.read() == b"d" and f.seek(1) == 1 and f.read(2) == b"bc"
            return ids
        """
        outcome = self.run_main(body)
        self.assertEqual(outcome.status, "completed", outcome.result)
        self.assertEqual(outcome.output, list(outcome.blobs))
        self.assertEqual(
            list(outcome.blobs.values()),
            [("text/plain", "é\n".encode()), ("text/csv", b"a,b"), ("application/octet-stream", b"\x00\xff"),
             ("application/octet-stream", b"abcd"), ("application/json", b'{"a":[1,null]}'), ("text/plain", b"")],
        )

    def test_large_blobs_go_in_pieces_and_need_no_memory(self):
        body = """
            import resource
            with open("big", "wb") as f:
                for _ in range(48): f.write(b"x" * (1 << 20))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            id = blobs.write_file("big", kind="application/x-big")
            seen = 0
            with blobs.open(id) as f:
                for piece in iter(lambda: f.read(1 << 20), b""): seen += len(piece)
            with open("big", "rb") as f: blobs.write_file(f)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            return [seen, grown < 24 * 1024]
        """
        outcome = self.run_main(body)
        self.assertEqual(outcome.output, [48 << 20, True])
        self.assertEqual(outcome.largest_write, 1 << 20)
        self.assertEqual([len(content) for _, content in outcome.blobs.values()], [48 << 20] * 2)

    def test_one_large_value_goes_in_pieces_too(self):
        for value in ("blobs.write_bytes(b'x' * (3 << 20))", "blobs.write_text('xyz' * (1 << 20))"):
            outcome = self.run_main(value)
            self.assertLessEqual(outcome.largest_write, 1 << 20)
            self.assertEqual([len(content) for _, content in outcome.blobs.values()], [3 << 20])

    def test_what_cannot_be_written_leaves_nothing(self):
        cases = {
            "blobs.write_text(b'x')": "TypeError",
            "blobs.write_text('\\ud800')": "UnicodeEncodeError",
            "blobs.write_bytes('x')": "TypeError",
            "blobs.write_bytes(5)": "TypeError",
            "blobs.write_json({1: 2})": "TypeError",
            "blobs.write_json([object()])": "TypeError",
            "blobs.write_file('no such file')": "FileNotFoundError",
            "import io; blobs.write_file(io.StringIO('x'))": "TypeError",
            "blobs.write_text('x', kind='')": "ValueError",
            "blobs.write_text('x', kind='a\\nb')": "ValueError",
            "blobs.write_text('x', kind=5)": "TypeError",
            "blobs.open('blob:x', 'w')": "ValueError",
        }
        for line, kind in cases.items():
            outcome = self.run_main(line)
            self.assertEqual(outcome.error["type"], kind, line)
            self.assertNotIn("_skillgate", outcome.error["message"])
            self.assertEqual(outcome.blobs, {}, line)

    def test_kinds(self):
        for kind in ("csv", "/csv", "text/", "text", "text/csv/x", "te xt/csv", "text/csv\u00e9", "; text/csv", "a/" + "b" * 254):
            outcome = self.run_main("blobs.write_text('x', kind=args['kind'])", kind=kind)
            self.assertEqual(outcome.error["type"], "ValueError", kind)
            self.assertIn("kind is a MIME type such as 'text/csv' or 'application/json', not " + repr(kind)[:20], outcome.error["message"])
            self.assertNotIn("C", outcome.requests, "the store was not asked")
        for kind in ("text/csv", "image/svg+xml", "text/html; charset=utf-8", "application/vnd.a-b.c_d ;x", "a/" + "b" * 253):
            outcome = self.run_main("blobs.write_text('x', kind=args['kind'])", kind=kind)
            self.assertEqual(list(outcome.blobs.values()), [(kind, b"x")])

    def test_refusals_of_the_store(self):
        expected = {
            "too_large": "BlobTooLarge", "disk_full": "DiskFull", "unavailable": "BlobError", "not_found": "BlobNotFound",
            "invalid": "BlobError", "a new word": "BlobError",
        }
        for word, kind in expected.items():
            for frame in "CWF":
                self.sandbox.refuse = {frame: word}
                outcome = self.run_main("blobs.write_text('x')")
                self.assertEqual(outcome.error["type"], kind)
                self.assertIn("refused by the test", outcome.error["message"])
        self.sandbox.refuse = {"W": "too_large"}
        body = "try:\n    blobs.write_text('x')\nexcept OSError as exc:\n    return exc.errno == 27"
        self.assertIs(self.output(body), True)

    def test_threads_share_the_channel(self):
        body = """
            from concurrent.futures import ThreadPoolExecutor
            with ThreadPoolExecutor(8) as pool:
                ids = list(pool.map(lambda n: blobs.write_text(str(n) * 1000), range(40)))
                return [len(set(ids))] + [blobs.read_text(i) == str(n) * 1000 for n, i in enumerate(ids)].count(False) * [0]
        """
        self.assertEqual(self.output(body), [40])

    def test_a_path_has_the_whole_whoever_asks_at_once(self):
        # The first is in the middle when the second begins, and that one has nothing yet when the first has it all.
        body = """
            import os, threading
            half, begun, done = threading.Event(), threading.Event(), threading.Event()
            raw, content = blobs._raw, b"x" * (3 << 20)
            class Paced:
                def __init__(self, id): self.raw, self.reads = raw(id), 0
                def __enter__(self): return self
                def __exit__(self, *_): self.raw.close()
                def read(self, size):
                    self.reads += 1
                    if threading.current_thread().name == "second":
                        begun.set()
                        assert done.wait(30)
                    elif self.reads == 2:
                        half.set()
                        assert begun.wait(30)
                    return self.raw.read(size)
            blobs._raw = Paced
            id, wholes = blobs.write_bytes(content), []
            def whole():
                with open(blobs.path(id), "rb") as f: wholes.append(f.read() == content)
                done.set()
            threads = [threading.Thread(target=whole, name=name) for name in ("first", "second")]
            threads[0].start()
            assert half.wait(30)
            threads[1].start()
            for thread in threads: thread.join()
            at = blobs.path(id)
            return [wholes, [name for name in os.listdir(os.path.dirname(at)) if name.startswith(os.path.basename(at) + ".")]]
        """
        self.assertEqual(self.output(body), [[True, True], []])

    def test_more_threads_write_than_a_gateway_takes_blobs_at_once(self):
        self.sandbox.written_at_once_max = 8
        body = """
            import io, threading
            from concurrent.futures import ThreadPoolExecutor
            begun, go = threading.Semaphore(0), threading.Event()
            class Slow(io.BytesIO):
                def read(self, size):
                    begun.release()
                    go.wait()
                    return super().read(size)
            with ThreadPoolExecutor(20) as pool:
                ids = pool.map(lambda n: blobs.write_file(Slow(b"x")), range(20))
                for _ in range(7): begun.acquire()
                more = begun.acquire(timeout=0.2)
                go.set()
                return [more, len(set(ids)), "z" * 5000]
        """
        outcome = self.run_main(body)
        self.assertEqual(outcome.status, "completed", outcome.result)
        blobs = [content for _, content in outcome.blobs.values()]
        self.assertEqual((len(blobs), blobs[-1][:11]), (21, b"[false,20,\""))

    def test_what_was_not_written_makes_room(self):
        body = """
            import io
            for _ in range(20):
                try:
                    blobs.write_file(io.StringIO("x"))
                except (TypeError, blobs.BlobError):
                    pass
            return "fine"
        """
        for refuse in ({}, {"C": "unavailable"}, {"F": "unavailable"}):
            self.sandbox.refuse = refuse
            self.assertEqual(self.output(body), "fine")

    def test_outside_a_run(self):
        import subprocess
        import sys

        from support import LIBRARY

        code = "import sys; sys.path.append(sys.argv[1]); import runtime; runtime.log.info('x'); runtime.blobs.write_text('x')"
        done = subprocess.run([sys.executable, "-I", "-B", "-c", code, LIBRARY], capture_output=True, text=True)
        self.assertIn("[info] x", done.stderr)
        self.assertIn("runtime.blobs works inside a skillgate run only", done.stderr)


if __name__ == "__main__":
    unittest.main()
