"""That new objects lie side by side in an interpreter whose gaps are filled."""

import subprocess
import sys
import textwrap
import unittest

from support import LIBRARY

sys.path.append(LIBRARY)
from _skillgate import memory  # noqa: E402

PAGE_BYTES = 4096


class Gaps(unittest.TestCase):
    def alone(self, code):
        # As a zygote is: the many tests of this process leave more gaps than one that only imports.
        start = "import sys; sys.path.append(sys.argv[1]); from _skillgate import memory\n"
        command = [sys.executable, "-I", "-S", "-B", "-c", start + textwrap.dedent(code), LIBRARY]
        subprocess.run(command, check=True, timeout=60)

    def test_small_objects_made_one_after_the_other(self):
        self.alone(
            """
            # Every tenth of many objects is gone, as after imports.
            kept = [bytes(200) for _ in range(2000)]
            del kept[::10]
            memory.fill_gaps()
            pages = {id(block) // 4096 for block in [bytes(200) for _ in range(30)]}
            assert len(pages) <= 4, pages
            """
        )

    def test_large_objects_lie_behind_what_there_is(self):
        self.alone(
            """
            # Before the last there is room for the largest that the C library has beside the others.
            *gone, last = [bytes(100_000) for _ in range(6)]
            del gone
            memory.fill_gaps()
            for size in (600, 1500, 5000):
                assert id(bytes(size)) > id(last), size
            """
        )

    def test_of_small_objects_so_many_are_made_as_there_are_gaps(self):
        self.alone(
            """
            memory.fill_gaps()
            taken = dict.fromkeys(memory._SMALL_BYTES, 0)
            for block in memory._taken:
                size = -(-sys.getsizeof(block) // 16) * 16
                if size in taken:
                    taken[size] += size
            assert max(taken.values()) < memory._TAKEN_BYTES_MAX // 2, taken
            """
        )

    def test_there_is_an_end(self):
        before = len(memory._taken)
        memory.fill_gaps()
        self.assertLess(sum(map(sys.getsizeof, memory._taken[before:])), 16 * 1024 * 1024)


class Together(unittest.TestCase):
    def make(self, text):
        names = {}
        exec(compile(text, "<made>", "exec"), names)
        return names

    def test_code_that_was_called_lies_side_by_side(self):
        lines = "".join("    a += %d\n" % n for n in range(10))
        made = []
        for n in range(1000):
            made.append(self.make("def f%d(a):\n%s    return a" % (n, lines))["f%d" % n])
        called = made[::25]
        before = [f.__code__ for f in made]
        memory.bring_together(lambda: [f(0) for f in called])
        code = [f.__code__ for f in called]
        self.assertLess(*(len({id(c) // PAGE_BYTES for c in codes}) for codes in (code, before[::25])))
        self.assertEqual(code, before[::25])
        for n, f in enumerate(made):
            self.assertEqual(f.__code__ is before[n], n % 25 != 0, f)
            self.assertEqual(f(1), 46)

    def test_of_one_code_there_is_one_copy(self):
        names = self.make("def make():\n    return lambda: 1\nf, g, h = make(), make(), (lambda: 1)")
        memory.bring_together(lambda: (names["f"](), names["make"]()()))
        self.assertIs(names["f"].__code__, names["g"].__code__)
        self.assertIs(names["make"]().__code__, names["f"].__code__)
        self.assertIsNot(names["h"].__code__, names["f"].__code__)

    def test_what_was_not_called_is_moved_where_it_is_named(self):
        names = self.make("def f(): return 1\ndef g(): return 2\ndef h(): return 3")
        f, g, h = (names[name] for name in "fgh")
        before = f.__code__, g.__code__, h.__code__
        memory.bring_together(f, g)
        self.assertEqual([a is b for a, b in zip((f.__code__, g.__code__, h.__code__), before)], [False, False, True])
        self.assertEqual((f(), g(), h()), (1, 2, 3))

    def test_two_files_with_the_same_text_stay_two(self):
        def make(file):
            names = {}
            exec(compile("def f(): pass", file, "exec"), names)
            return names["f"]

        f, g = make("f.py"), make("g.py")
        memory.bring_together(lambda: (f(), g()))
        self.assertEqual((f.__code__.co_filename, g.__code__.co_filename), ("f.py", "g.py"))

    def test_nobody_looks_on_afterwards(self):
        def fail():
            raise KeyError

        with self.assertRaises(KeyError):
            memory.bring_together(fail)
        self.assertIsNone(sys.getprofile())


if __name__ == "__main__":
    unittest.main()
