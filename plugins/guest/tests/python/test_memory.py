"""That new objects lie side by side in an interpreter whose gaps are filled."""

import sys
import unittest

from support import LIBRARY

sys.path.append(LIBRARY)
from _skillgate import memory  # noqa: E402

PAGE_BYTES = 4096


class Gaps(unittest.TestCase):
    def test_small_objects_made_one_after_the_other(self):
        # Every second of many objects is gone, as after imports.
        kept = [bytes(200) for _ in range(2000)][::2]
        memory.fill_gaps()
        pages = {id(block) // PAGE_BYTES for block in [bytes(200) for _ in range(30)]}
        self.assertLessEqual(len(pages), 4)
        self.assertEqual(len(kept), 1000)

    def test_there_is_an_end(self):
        before = len(memory._taken)
        memory.fill_gaps()
        self.assertLess(sum(map(sys.getsizeof, memory._taken[before:])), 16 * 1024 * 1024)


if __name__ == "__main__":
    unittest.main()
