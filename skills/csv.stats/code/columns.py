"""What is known about one column, value by value."""

import datetime
import math
import re
from collections import Counter

DISTINCT_MAX = 10000
# Of all columns together: a wide table counts fewer in each, so that memory has a bound.
DISTINCT_ALL_MAX = 200000
TOP = 10
TOP_CHARS_MAX = 100
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_BOOLEANS = frozenset(("true", "false", "yes", "no"))


class Column:
    def __init__(self, name, distinct_max=DISTINCT_MAX):
        self.name = name
        self.distinct_max = distinct_max
        self.count = self.empty = 0
        self.types = Counter()
        self.values = Counter()
        self.exact = True
        self.numbers = _Numbers()
        self.dates = [None, None]
        self.chars = [None, None]

    def add(self, text):
        self.count += 1
        text = text.strip()
        if not text:
            self.empty += 1
            return
        self._count_value(text)
        kind = type_of(text)
        self.types[kind] += 1
        _extend(self.chars, len(text))
        if kind in ("integer", "number"):
            self.numbers.add(int(text) if kind == "integer" else float(text))
        elif kind == "date":
            _extend(self.dates, text)

    def result(self):
        kind = self._type()
        result = {
            "name": self.name,
            "type": kind,
            "count": self.count,
            "empty": self.empty,
            "distinct": len(self.values),
            "distinct_is_exact": self.exact,
            "top": [[value[:TOP_CHARS_MAX], n] for value, n in self.values.most_common(TOP)],
        }
        if kind in ("integer", "number"):
            result.update(self.numbers.result())
        elif kind == "date":
            result.update(min=self.dates[0], max=self.dates[1])
        elif kind == "text":
            result.update(min_chars=self.chars[0], max_chars=self.chars[1])
        return result

    def _count_value(self, text):
        if len(text) > TOP_CHARS_MAX:
            # Only the beginning is shown: the rest need not be kept to be told from others.
            text = f"{text[:TOP_CHARS_MAX]}{hash(text)}"
        if text in self.values or len(self.values) < self.distinct_max:
            self.values[text] += 1
        else:
            self.exact = False

    def _type(self):
        kinds = set(self.types)
        if not kinds:
            return "empty"
        if kinds == {"integer", "number"}:
            return "number"
        return kinds.pop() if len(kinds) == 1 else "text"


class _Numbers:
    """Mean and deviation by Welford's method, which does not lose digits on long columns."""

    def __init__(self):
        self.n = 0
        self.mean = self.m2 = 0.0
        self.sum = 0
        self.range = [None, None]

    def add(self, x):
        self.n += 1
        delta = x - self.mean
        self.mean += delta / self.n
        self.m2 += delta * (x - self.mean)
        self.sum += x
        _extend(self.range, x)

    def result(self):
        result = {
            "min": self.range[0],
            "max": self.range[1],
            "sum": self.sum,
            "mean": self.mean,
            "stdev": math.sqrt(self.m2 / (self.n - 1)) if self.n > 1 and math.isfinite(self.m2) else None,
        }
        # Sums and squares of huge numbers overflow, in either direction; JSON has no infinity.
        return {k: v if v is None or math.isfinite(v) else None for k, v in result.items()}


def type_of(text):
    """`integer`, `number`, `date`, `boolean` or `text`."""
    if _INTEGER.fullmatch(text):
        return "integer"
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return "number"
    if _DATE.fullmatch(text):
        try:
            datetime.date.fromisoformat(text)
            return "date"
        except ValueError:
            return "text"
    return "boolean" if text.lower() in _BOOLEANS else "text"


def _extend(bounds, value):
    if bounds[0] is None or value < bounds[0]:
        bounds[0] = value
    if bounds[1] is None or value > bounds[1]:
        bounds[1] = value
