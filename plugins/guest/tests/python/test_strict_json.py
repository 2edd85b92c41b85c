"""What is JSON and what is refused, without starting a run."""

import collections
import datetime
import decimal
import enum
import json
import sys
import unittest

from support import LIBRARY

sys.path.append(LIBRARY)
from _skillgate.strict_json import Encoder, NotSerializable  # noqa: E402


def encode(value):
    pieces = []
    inline = Encoder(pieces.append, 4096).encode(value)
    return b"".join(pieces) if inline is None else inline


class LyingDict(dict):
    def items(self):
        return [("lie", 1)]

    def __iter__(self):
        return iter(["lie"])

    def keys(self):
        return ["lie"]


class LyingList(list):
    def __iter__(self):
        return iter(["lie"])

    def __len__(self):
        return 0


class LyingStr(str):
    def __str__(self):
        return "lie"

    def encode(self, *_):
        return b'"lie'


class LyingInt(int):
    def __repr__(self):
        return "lie"

    __str__ = __repr__


class LyingFloat(float):
    def __repr__(self):
        return "lie"


class Disguised:
    __class__ = dict

    def items(self):
        return [("lie", 1)]


class EqualToNobody(str):
    __hash__ = str.__hash__

    def __eq__(self, other):
        return self is other


class Colour(enum.IntEnum):
    RED = 1


class Accepted(unittest.TestCase):
    def check(self, value, expected):
        self.assertEqual(encode(value).decode("utf-8"), expected)

    def test_json_values(self):
        self.check(None, "null")
        self.check([True, False, 0, -1, 1.5, "x"], '[true,false,0,-1,1.5,"x"]')
        self.check({"a": {"b": []}, "c": ()}, '{"a":{"b":[]},"c":[]}')
        self.check({}, "{}")
        self.check("", '""')

    def test_text_is_utf8_and_escaped_where_json_must(self):
        self.check("é \U0001f600 \u2028", '"é \U0001f600 \u2028"')
        self.check('"\\\n\t\x00\x1f\x7f', '"\\"\\\\\\n\\t\\u0000\\u001f\x7f"')

    def test_everything_is_read_back_by_json(self):
        values = [2**63, -(2**64), 10**308, -(10**308), int(1.7976931348623157e308), 1e308, 5e-324, -0.0, 1e16, 1e-7, "\ud7ff\ue000", {"": {"": [[]]}}]
        for value in values:
            self.assertEqual(json.loads(encode(value)), value)

    def test_subclasses_are_taken_for_what_they_hold(self):
        self.check(LyingDict(a=1), '{"a":1}')
        self.check(LyingList([1, 2]), "[1,2]")
        self.check(LyingStr("x"), '"x"')
        self.check({LyingStr("k"): LyingInt(5)}, '{"k":5}')
        self.check(LyingFloat(2.5), "2.5")
        self.check(collections.OrderedDict([("b", 1), ("a", 2)]), '{"b":1,"a":2}')
        self.check(collections.Counter("aab"), '{"a":2,"b":1}')
        self.check(collections.namedtuple("P", "x y")(1, 2), "[1,2]")
        self.check([Colour.RED], "[1]")

    def test_the_same_object_twice_is_no_cycle(self):
        one = [1]
        self.check({"a": one, "b": [one, one]}, '{"a":[1],"b":[[1],[1]]}')

    def test_depth_100(self):
        value = []
        for _ in range(99):
            value = [value]
        self.check(value, "[" * 100 + "]" * 100)

    def test_large_values_come_in_pieces(self):
        pieces = []
        value = [{"row": n, "text": "é" * 20} for n in range(20000)]
        self.assertIsNone(Encoder(pieces.append, 4096).encode(value))
        self.assertEqual(json.loads(b"".join(pieces)), value)
        self.assertLess(max(len(piece) for piece in pieces), 80 * 1024)

    def test_the_inline_limit_is_exact(self):
        calls = []
        self.assertEqual(len(Encoder(calls.append, 4096).encode("x" * 4094)), 4096)
        self.assertEqual(calls, [])
        self.assertIsNone(Encoder(calls.append, 4096).encode("x" * 4095))
        # Two bytes each: bytes are counted, not characters.
        self.assertIsNone(Encoder(calls.append, 4096).encode("é" * 2048))
        self.assertEqual([len(piece) for piece in calls], [4097, 4098])


class Refused(unittest.TestCase):
    def check(self, value, *fragments):
        with self.assertRaises(NotSerializable) as caught:
            encode(value)
        for fragment in fragments:
            self.assertIn(fragment, str(caught.exception))
        self.assertLess(len(str(caught.exception)), 600)
        self.assertTrue(str(caught.exception).isprintable())

    def test_numbers_that_json_has_not(self):
        for text in ("nan", "inf", "-inf"):
            self.check({"rows": [0, {"price": float(text)}]}, "$.rows[1].price", text)
        for number in (2**1024, 10**309, 10**400, LyingInt(10**400), 10**5000):
            self.check({"a": {"b": number}}, "$.a.b", "1.8e308", "string")
        self.check([-(10**5000)], "$[0]")

    def test_objects_with_a_hint(self):
        self.check(b"x", "$ is of type bytes", "write_bytes")
        self.check({"a": {1}}, "$.a", "set", "list")
        self.check([datetime.datetime(2020, 1, 1)], "isoformat")
        self.check(decimal.Decimal(1), "Decimal")
        self.check((n for n in range(3)), "generator", "list")
        self.check(object(), "object")
        self.check(print, "builtin_function_or_method")
        self.check(Disguised(), "Disguised")

    def test_keys(self):
        self.check({1: 2}, "a key of type int")
        self.check({"a": {None: 2}}, "$.a has a key of type NoneType")
        self.check({True: 2}, "a key of type bool")
        self.check({EqualToNobody("k"): 1, "k": 2}, "twice")
        self.check({"\ud800": 2}, "a key", "surrogate")

    def test_surrogates(self):
        self.check({"a": "x\ud800"}, "$.a", "surrogate at position 1")

    def test_cycles(self):
        loop = {}
        loop["me"] = [loop]
        self.check(loop, "$.me[0] contains itself")

    def test_depth_101(self):
        value = []
        for _ in range(100):
            value = [value]
        self.check(value, "100 levels")
        value = {}
        for _ in range(100000):
            value = {"k": value}
        self.check(value, "100 levels")

    def test_hostile_paths_and_names(self):
        self.check({"a b\n": float("nan")}, '$["a b')
        self.check({"k" * 100000: object()}, "$.kkk")
        self.check({"\x1b[31m": {LyingStr("x"): object()}}, ".x is of type object")
        self.check(type("X\nfake" * 100, (), {})(), "X fake")


if __name__ == "__main__":
    unittest.main()
