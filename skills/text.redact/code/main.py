"""Replaces personal data in a text or a blob by marks."""

import json
import os
import tempfile

import patterns
from runtime import blobs, log

# Of the text as JSON. An output holds 4096, and the counts and the summary need some of them.
INLINE_BYTES_MAX = 3072
# No pattern crosses the end of a line, so lines are handled one by one; a longer one is cut, at a space if it has one.
LINE_CHARS_MAX = 1024 * 1024


def main(args):
    text, blob_id = args.get("text"), args.get("blob")
    if (text is None) == (blob_id is None):
        raise ValueError("give either text or blob")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"text is not a string but {type(text).__name__}")
    kinds = check_kinds(args.get("kinds"))
    if blob_id is not None:
        answer, counts = _redact_blob(blob_id, kinds)
    else:
        text, counts = redact(text, kinds)
        said = json.dumps(text, ensure_ascii=False).encode()
        answer = {"text": text} if len(said) <= INLINE_BYTES_MAX else {"blob": blobs.write_text(text)}
    total = sum(counts.values())
    log.info(f"replaced {total} pieces of personal data")
    return dict(answer, counts=counts, total=total, summary=f"Replaced {total} pieces of personal data.")


def redact(text, kinds=None):
    """The text with marks, and how many of each kind were replaced."""
    kinds = check_kinds(kinds)
    counts = dict.fromkeys(kinds, 0)
    for kind in kinds:
        text, counts[kind] = patterns.replace(kind, text)
    return text, counts


def check_kinds(kinds):
    if kinds is None:
        return patterns.KINDS
    if not isinstance(kinds, (list, tuple)) or not kinds:
        raise ValueError(f"kinds is not a list of some of {', '.join(patterns.KINDS)}")
    unknown = [str(kind)[:40] for kind in kinds if kind not in patterns.KINDS]
    if unknown:
        raise ValueError(f"unknown kinds {', '.join(unknown)}: known are {', '.join(patterns.KINDS)}")
    # Always in this order: a checked number is recognised before one that only looks like a phone's.
    return tuple(kind for kind in patterns.KINDS if kind in kinds)


def _redact_blob(blob_id, kinds):
    counts = dict.fromkeys(kinds, 0)
    handle, path = tempfile.mkstemp()
    try:
        with open(handle, "w", encoding="utf-8", newline="") as out:
            with blobs.open(blob_id, "r", newline="") as lines:
                for line in _pieces(lines):
                    line, found = redact(line, kinds)
                    out.write(line)
                    for kind, count in found.items():
                        counts[kind] += count
        return {"blob": blobs.write_file(path, kind="text/plain")}, counts
    finally:
        os.unlink(path)


def _pieces(lines):
    """The lines; of one that is too long, pieces that end at a space."""
    rest = ""
    while True:
        piece = rest + lines.readline(LINE_CHARS_MAX)
        if not piece:
            return
        rest = ""
        if len(piece) >= LINE_CHARS_MAX and not piece.endswith(("\n", "\r")):
            cut = piece.rfind(" ", len(piece) // 2) + 1
            if cut:
                piece, rest = piece[:cut], piece[cut:]
        yield piece
