"""Profiles a CSV blob in one pass and in bounded memory."""

import csv
import io
import json

from columns import DISTINCT_ALL_MAX, DISTINCT_MAX, Column
from runtime import blobs, log

COLUMNS_SHOWN_MAX = 25
NAME_CHARS_SHOWN_MAX = 60
# Of a name as JSON, so that all columns shown fit into an output's 4096 whatever the alphabet.
NAME_BYTES_SHOWN_MAX = 80
COLUMNS_MAX = 2000
FIELD_CHARS_MAX = 1024 * 1024
# Of what is no CSV everything may be one line: it takes some sixteen times as much memory.
LINE_CHARS_MAX = 4 * 1024 * 1024
SAMPLE_CHARS = 64 * 1024
DELIMITERS = ",;\t|"


def main(args):
    blob_id = args.get("csv_blob")
    if not isinstance(blob_id, str):
        raise ValueError("csv_blob is missing: give the id of the CSV blob")
    encoding = check_encoding(args.get("encoding") or "utf-8-sig")
    with blobs.open(blob_id, "r", encoding=encoding, newline="") as lines:
        try:
            stats = profile(lines, args.get("delimiter"))
        except UnicodeError:
            raise ValueError(f'the CSV is not {encoding}: give its encoding, such as "cp1252" or "utf-16"') from None
    columns = stats["columns"]
    empty = sum(column["empty"] for column in columns)
    summary = f"{stats['rows']} rows, {len(columns)} columns; {empty} empty values."
    log.info(summary)
    return {
        "rows": stats["rows"],
        "columns": [
            {"name": shown(c["name"]), "type": c["type"], "empty": c["empty"]}
            for c in columns[:COLUMNS_SHOWN_MAX]
        ],
        "columns_total": len(columns),
        "uneven_rows": stats["uneven_rows"],
        "delimiter": stats["delimiter"],
        "stats_blob": blobs.write_json(stats),
        "summary": summary,
    }


def check_encoding(name):
    try:
        "".encode(name)
    except (LookupError, TypeError, ValueError):
        raise ValueError(f'encoding is not one that Python knows, such as "cp1252" or "utf-16": {name!r:.80}') from None
    return name


def shown(name):
    """The beginning of a column's name."""
    name = name[:NAME_CHARS_SHOWN_MAX]
    while len(json.dumps(name, ensure_ascii=False).encode()) > NAME_BYTES_SHOWN_MAX:
        name = name[:-1]
    return name


def profile(lines, delimiter=None):
    """The statistics of an open text file as a dict; `lines` was opened with `newline=""`."""
    sample = lines.read(SAMPLE_CHARS)
    if not sample.strip():
        raise ValueError("the CSV is empty")
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ValueError(f"delimiter is not one character, other than a quote or a line's end: {delimiter!r:.80}")
    csv.field_size_limit(FIELD_CHARS_MAX)
    try:
        delimiter = delimiter or guess_delimiter(sample)
    except csv.Error as exc:
        raise ValueError(f"not CSV: {exc}") from None
    reader = csv.reader(_Rest(sample, lines), delimiter=delimiter)
    try:
        names = next(row for row in reader if row)  # empty lines may come before it
        if len(names) > COLUMNS_MAX:
            raise ValueError(f"{len(names)} columns, at most {COLUMNS_MAX} are profiled: is the delimiter right?")
        distinct_max = min(DISTINCT_MAX, DISTINCT_ALL_MAX // len(names))
        columns = [Column(name.strip() or f"column {n}", distinct_max) for n, name in enumerate(names, 1)]
        rows = uneven = 0
        for row in reader:
            if not row:  # an empty line
                continue
            rows += 1
            uneven += len(row) != len(columns)
            for index, column in enumerate(columns):
                column.add(row[index] if index < len(row) else "")
    except csv.Error as exc:
        raise ValueError(f"not CSV at line {reader.line_num}: {exc}") from None
    return {
        "rows": rows,
        "uneven_rows": uneven,
        "delimiter": delimiter,
        "columns": [column.result() for column in columns],
    }


def guess_delimiter(sample):
    """The delimiter that cuts the first lines into the most, equally many fields."""
    best, best_score = ",", (0, 0)
    for delimiter in DELIMITERS:
        rows = [row for row, _ in zip(csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter), range(20)) if row]
        width = len(rows[0]) if rows else 0
        if width > 1:
            score = (sum(len(row) == width for row in rows) / len(rows), width)
            if score > best_score:
                best, best_score = delimiter, score
    return best


class _Rest:
    """The lines of a file of which `head` has been read already."""

    def __init__(self, head, lines):
        # The head ends anywhere, also between \r and \n: the rest of its last line belongs to it.
        self._head = io.StringIO(head + _line(lines), newline="")
        self._lines = lines

    def __iter__(self):
        yield from self._head
        yield from iter(lambda: _line(self._lines), "")


def _line(lines):
    line = lines.readline(LINE_CHARS_MAX + 1)
    if len(line) > LINE_CHARS_MAX:
        raise ValueError(f"a line has more than {LINE_CHARS_MAX} characters: is it CSV?")
    return line
