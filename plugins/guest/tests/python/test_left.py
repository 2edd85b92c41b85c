"""Files that end with a run which does not keep them."""

import os
import unittest

from support import Sandbox

KEPT = "`from runtime import blobs`, and blobs.write_file(path, kind=...) keeps a file and gives its id, to be returned\n"


class Left(unittest.TestCase):
    def new_sandbox(self, below=None):
        """Of a run of its own: files stay in it."""
        self.sandbox = Sandbox(below)
        self.addCleanup(self.sandbox.close)

    def log(self, body, below=None):
        self.new_sandbox(below)
        outcome = self.sandbox.code("import os, sys, tempfile\nfrom runtime import blobs\ndef main(args):\n    " + body)
        self.assertEqual(outcome.status, "completed", outcome.result)
        return outcome.logs

    def test_a_file_is_gone_with_its_run(self):
        self.assertEqual(self.log("open('out.csv', 'w').close()"), "[warning] out.csv is gone with this run: " + KEPT)

    def test_so_are_several_and_those_that_are_temporary(self):
        log = self.log("for name in ('b', 'a', '%s/t.txt' % tempfile.gettempdir()): open(name, 'w').close()")
        self.assertEqual(log, "[warning] a, b, %s are gone with this run: %s" % (self.sandbox.path("tmp/t.txt"), KEPT))

    def test_so_is_what_leads_elsewhere(self):
        log = self.log("os.mkdir('d'); os.symlink('/dev/null', 'link')")
        self.assertEqual(log, "[warning] d, link are gone with this run: " + KEPT)

    def test_a_directory_of_many_is_not_all_said(self):
        log = self.log("for n in range(5): os.mkdir('d\\n%d' % n)")
        self.assertEqual(log, "[warning] d 0, d 1, d 2 and others are gone with this run: " + KEPT)

    def test_nothing_is_said_of_what_nobody_looks_for(self):
        for body in (
            "pass",
            "open('out.csv', 'w').close(); blobs.write_file('out.csv')",
            "tempfile.mkdtemp(); open('.cache', 'w').close(); os.mkdir('__pycache__')",
            "import socket; socket.socket(socket.AF_UNIX).bind('s'); os.mkfifo(os.environ['TMPDIR'] + '/pipe')",
        ):
            self.assertEqual(self.log(body), "", body)
        self.new_sandbox()
        self.sandbox.skill("t.scratch", {"code/main.py": "def main(args): open('scratch', 'w').close()"})
        self.assertEqual(self.sandbox.execute("t.scratch").logs, "", "its author has read what a run keeps")

    def test_a_blob_that_was_copied_out_is_not_the_codes(self):
        self.new_sandbox()
        self.sandbox.input_blobs.append("blob:far")
        self.sandbox.serve_inputs_by_channel["blob:far"] = b"x"
        outcome = self.sandbox.code("from runtime import blobs\ndef main(args): return blobs.path('blob:far')")
        self.assertEqual((outcome.output, outcome.logs), (self.sandbox.path("tmp/blob-far"), ""))

    @unittest.skipUnless(os.path.ismount("/dev/shm"), "this machine has no tmpfs there")
    def test_on_tmpfs_as_in_a_run_nothing_is_read_where_there_is_nothing(self):
        told = "sys.modules['_skillgate.left']._scandir = lambda path: print('reads', path) or 1 / 0"
        self.assertEqual(self.log(told, below="/dev/shm"), "")
        for file in ("out.csv", "../tmp/t.txt"):
            log = self.log("open(%r, 'w').close(); %s" % (file, told), below="/dev/shm")
            self.assertIn("reads " + self.sandbox.path(), log, file)
            log = self.log("open(%r, 'w').close()" % file, below="/dev/shm")
            self.assertIn("%s is gone with this run" % os.path.basename(file), log)

    def test_what_cannot_be_said_fails_nothing(self):
        for body in (
            "os.rename(os.getcwd(), os.getcwd() + '.away')",
            "open('out.csv', 'w').close(); sys.stdout = type('X', (), {'flush': lambda self: 1 / 0})()",
        ):
            self.log(body)


if __name__ == "__main__":
    unittest.main()
