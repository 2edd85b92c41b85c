"""Code that was compiled in one run, for later ones."""

import base64
import json
import os
import unittest

from support import Sandbox

BROKEN = "x = (\n"


class Case(unittest.TestCase):
    def setUp(self):
        self.sandbox = Sandbox()
        self.addCleanup(self.sandbox.close)

    def skill(self, name="acme", **files):
        self.sandbox.skill(name, {"code/%s.py" % path.replace("__", "/"): text for path, text in files.items()})

    def made(self, name="acme"):
        outcome = self.sandbox.execute(name, compile=True, output_bytes=1 << 20)
        self.assertEqual((outcome.status, outcome.logs), ("completed", ""), outcome.result)
        return [(path, base64.b64decode(source), base64.b64decode(code)) for path, source, code in outcome.output]

    def with_code(self, made, name="acme", **more):
        index = [(path, len(source), len(code)) for path, source, code in made]
        return self.sandbox.execute(name, compiled=index, code_frame=b"".join(s + c for _, s, c in made), **more)

    def names(self, made):
        root = self.sandbox.path("skills", "acme", "code", "")
        return [path[len(root) :] for path, _, _ in made]

    def file(self, name):
        return self.sandbox.path("skills", "acme", "code", name)


class Make(Case):
    def test_the_entrypoint_first_and_every_module_and_nothing_runs(self):
        self.skill(main="print('ran')", b="1/0", a="", deep__inner="", deep__worse__x="")
        os.mkdir(self.file("no-package"))
        for name in "no-package/x.py", "no-module.py", "data.txt", "deep/__init__.py":
            with open(self.file(name), "w"):
                pass
        made = self.made()
        self.assertEqual(self.names(made), ["main.py", "a.py", "b.py", "deep/__init__.py", "deep/inner.py", "deep/worse/x.py"])
        self.assertEqual(made[0][1], b"print('ran')")

    def test_what_says_something_when_it_is_compiled_is_left_out(self):
        self.skill(main="def main(args): pass", broken=BROKEN, zero="\0", deep="(" * 500, bad=b"# coding: nonsense", warns="1 is 1")
        self.assertEqual(self.names(self.made()), ["main.py"])

    def test_no_more_than_256_kib(self):
        text = "x = %r\n" % ("y" * 60_000)
        self.skill(main="", **{"m%d" % i: text for i in range(5)})
        made = self.made()
        self.assertEqual(self.names(made), ["main.py", "m0.py", "m1.py"])
        self.assertLessEqual(sum(len(s) + len(c) for _, s, c in made), 256 * 1024)

    def test_a_large_file_makes_no_room_for_itself(self):
        self.skill(main="x = 1", large="#" * 300_000, small="y = 2")
        self.assertEqual(self.names(self.made()), ["main.py", "small.py"])

    def test_no_more_than_1000_names_are_looked_at(self):
        self.skill(main="", **{"d%04d__m" % i: "" for i in range(1500)})
        self.assertEqual(self.names(self.made()), ["main.py"])

    def test_without_an_entrypoint(self):
        self.skill(main="")
        os.remove(self.file("main.py"))
        outcome = self.sandbox.execute("acme", compile=True)
        self.assertEqual((outcome.status, outcome.error["type"]), ("failed", "EntrypointNotFound"))


class Use(Case):
    MAIN = "import helper\ndef main(args):\n    if args.get('fail'): helper.fail()\n    return [helper.value, __file__, helper.__file__]"
    HELPER = "value = 1\ndef fail():\n    raise ValueError('failed')"

    def test_a_run_is_the_same_with_it(self):
        self.skill(main=self.MAIN, helper=self.HELPER)
        made = self.made()
        for args in {}, {"fail": True}:
            plain, compiled = self.sandbox.execute("acme", args=args), self.with_code(made, args=args)
            self.assertEqual(plain.result, compiled.result)
            self.assertEqual(plain.status, "failed" if args else "completed")

    def test_it_is_used(self):
        self.skill(main=self.MAIN, helper=self.HELPER)
        main, helper = self.made()
        # Nobody makes such code; here it shows which was loaded.
        other = compile(self.HELPER.replace("value = 1", "value = 2"), helper[0], "exec")
        import marshal

        outcome = self.with_code([main, (helper[0], helper[1], marshal.dumps(other))])
        self.assertEqual(outcome.output[0], 2)

    def test_it_is_for_this_very_source(self):
        self.skill(main=self.MAIN, helper=self.HELPER)
        made = self.made()
        for text in self.HELPER.replace("1", "3"), self.HELPER + "\nvalue = 3", "value = 3":
            with open(self.file("helper.py"), "w") as out:
                out.write(text)
            self.assertEqual(self.with_code(made).output[0], 3)
        with open(self.file("helper.py"), "w") as out:
            out.write(BROKEN)
        self.assertEqual(self.with_code(made).error["type"], "SyntaxError")
        os.remove(self.file("helper.py"))
        self.assertEqual(self.with_code(made).error["type"], "ModuleNotFoundError")

    def test_in_code_that_imports_skills(self):
        self.skill(main="value = 5")
        made = self.made()
        index = [(path, len(source), len(code)) for path, source, code in made]
        outcome = self.sandbox.code(
            "from _skillgate import compiled\nimport skills.acme\ndef main(args): return [skills.acme.value, len(compiled._known)]",
            compiled=index,
            code_frame=b"".join(s + c for _, s, c in made),
        )
        self.assertEqual(outcome.output, [5, 1])

    def test_nothing_of_the_rehearsal_is_kept(self):
        before = "import socket; from _skillgate.main import rehearse; a, b = socket.socketpair(); rehearse(a.detach(), b.detach(), Layout(root + '/skills', root + '/blobs', root + '/workspace', root + '/tmp'))"
        code = "from _skillgate import compiled\ndef main(args): return [len(compiled._known), len(compiled._frame)]"
        outcome = self.sandbox.code(code, before=before)
        self.assertEqual(outcome.output, [0, 0], outcome.logs)

    def test_a_job_that_promises_code_and_brings_none(self):
        self.skill(main=self.MAIN)
        job = json.dumps({"run_id": "r", "function": "main", "skills": [], "code": "", "skill": None, "compiled": [["/x", 1, 1]]}).encode()
        outcome = self.sandbox.run({}, raw=job, code_kind=b"O", code_frame=b"x")
        self.assertIsNone(outcome.result)
        self.assertIn("the second frame is b'O' and not compiled code", outcome.logs)


if __name__ == "__main__":
    unittest.main()
