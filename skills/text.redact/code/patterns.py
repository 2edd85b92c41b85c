"""How each kind of personal data looks. Every quantifier has a bound, so no text makes a pattern slow."""

import re

# Between groups of digits: a space or a hyphen, and what word processors and web pages put in its place.
_SPACES = " \u00a0\u2007\u2009\u202f"
_HYPHENS = "\u2010\u2011\u2012\u2013-"

_EMAIL = re.compile(r"[^\s@<>()\[\]{},;:\"'|]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
# Behind a + or 00 up to fifteen digits are a phone's; about one of ten satisfies Luhn's formula all the same.
_NO_PHONE = rf"(?!(?:(?<=\+)|00)(?:[{_SPACES}{_HYPHENS}]?\d){{7,15}}(?![{_SPACES}{_HYPHENS}]?\d))"
# As the large issuers number their cards, in the groups that are printed on them or in none, and not as a part of more groups:
# for where amounts, versions and ids have as many digits.
_ISSUED = (
    rf"(?:(?:2[2-7]|35|[4-6]\d)\d\d([./{_SPACES}{_HYPHENS}]?)\d{{4}}\1\d{{4}}\1\d{{4}}(?:\1\d{{3}})?"
    rf"|3[47]\d\d([./{_SPACES}{_HYPHENS}]?)\d{{6}}\2\d{{5}}"
    rf"|3[0689]\d\d([./{_SPACES}{_HYPHENS}]?)\d{{6}}\3\d{{4}})(?![./]\d{{4}})"
)
# Right behind letters, but not those of a number in hexadecimal, as digests have them.
_LETTER, _NO_HEX = r"[^\W\d]", r"[^\W\da-fA-F]"
_BEHIND_WORD = (
    rf"(?:(?<=(?<!\w){_LETTER}{{2}})|(?<={_LETTER}{_NO_HEX})|(?<={_NO_HEX}{_LETTER})|(?<={_NO_HEX}{_LETTER}{{2}}))"
)
_CARD = re.compile(
    rf"(?=\d)(?:(?<!\w){_NO_PHONE}\d(?:[{_SPACES}{_HYPHENS}]?\d){{12,18}}"
    rf"|(?=[2-6]\d{{3}})(?:(?<![\w./]){_NO_PHONE}|{_BEHIND_WORD}){_ISSUED})(?!\d)"
)
# With hyphens in fours alone: words have them too.
_IBAN = re.compile(
    rf"(?<!\w)[A-Za-z]{{2}}\d{{2}}(?:(?:[{_SPACES}]?[A-Za-z0-9]){{11,30}}"
    rf"|(?:[{_HYPHENS}][A-Za-z0-9]{{4}}){{2,7}}(?:[{_HYPHENS}][A-Za-z0-9]{{1,4}})?)(?!\w)"
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
# Not in the middle of a word (but behind one that says what it is), a decimal or an id; behind a comma, as in a CSV, unless it
# goes on with a number's thousands.
# An extension may follow.
_PHONE = re.compile(
    rf"(?:(?<![\w@])|(?<=(?i:tel|fax|fon))|(?<=(?i:phone|mobil)))"
    rf"(?<!\w[{_HYPHENS}])(?<!\d\.)(?!(?<=\d,)\d{{3}}(?![\d/{_HYPHENS}]))"
    rf"(?:\+|\(?\d)[\d.()/{_SPACES}{_HYPHENS}]{{5,24}}\d(?:(?![\w@])|(?=(?:[xX]|ext)\.? ?\d))"
)
# A time may follow.
_DATE = re.compile(r"(?:\d{4}([-./])[01]\d\1[0-3]\d|[0-3]?\d([-./])[0-3]?\d\2(?:19|20)\d{2})(?!\d)")
_SKIP = -1
_DECIMAL = re.compile(r"\d+\.\d+")


def _luhn(text):
    digits = [int(c) for c in text if c.isdigit()]
    doubled = [d * 2 - 9 if d > 4 else d * 2 for d in digits[-2::-2]]
    return len(set(digits)) > 1 and (sum(digits[::-2]) + sum(doubled)) % 10 == 0


def _card_prefix(text):
    # No card; and a table of zeros is full of them.
    if len({c for c in text if c.isdigit()}) == 1:
        return _SKIP
    return _longest(text, 13, 19, _luhn)


def _iban_checksum(text):
    text = "".join(c for c in text if c.isalnum()).upper()
    return int("".join(str(int(c, 36)) for c in text[4:] + text[:4])) % 97 == 1


def _iban_prefix(text):
    return _longest(text, 15, 34, _iban_checksum)


def _longest(text, signs_min, signs_max, valid):
    """The length of the longest valid begin of `text` that ends with a word; 0 when there is none."""
    signs = sum(c.isalnum() for c in text)
    for end in range(len(text), 0, -1):
        if text[end - 1].isalnum():
            if signs_min <= signs <= signs_max and (end == len(text) or not text[end].isalnum()) and valid(text[:end]):
                return end
            signs -= 1
    return 0


def _ipv4_prefix(text):
    return len(text) if all(int(part) <= 255 for part in text.split(".")) else 0


def _phone_prefix(text):
    if text.startswith("+") or text.startswith("00") and not text.startswith("000"):
        return _longest(text, 7, 15 if text.startswith("+") else 17, lambda _: True)
    # Without an international prefix it must be grouped like a phone number: an amount, a date or an id is none.
    if _DATE.match(text):
        return 0
    if text.isdigit() or _DECIMAL.fullmatch(text):
        return _SKIP
    if 9 <= sum(c.isdigit() for c in text) <= 13:
        return len(text)
    # Two numbers with a space or a slash between them look like one that is too long.
    for end in range(len(text) - 1, 0, -1):
        begin = text[:end].rstrip(_SPACES + "/")
        ends = text[end] in _SPACES or text[end] == "/" and "/" not in begin
        grouped = any(c in _HYPHENS or c in "./()" for c in text[: end + 1])
        if ends and 9 <= sum(c.isdigit() for c in begin) <= 13 and grouped:
            return len(begin)
    return _SKIP


# For each kind its pattern, and a function that says how much of a match it is: so many characters from its begin,
# 0 when it may begin later in the match, or _SKIP when nothing in it is.
_RULES = {
    "email": (_EMAIL, len),
    "iban": (_IBAN, _iban_prefix),
    "card": (_CARD, _card_prefix),
    "ipv4": (_IPV4, _ipv4_prefix),
    "phone": (_PHONE, _phone_prefix),
}
KINDS = tuple(_RULES)


def replace(kind, text):
    """The text with `[kind]` for every match, and how many there were."""
    pattern, prefix = _RULES[kind]
    if kind == "email" and "@" not in text:
        return text, 0  # most lines: much faster than the pattern
    pieces, count, done = [], 0, 0
    match = pattern.search(text)
    while match:
        start, end = match.span()
        length = prefix(match.group())
        if length > 0:
            pieces += (text[done:start], "[%s]" % kind)
            count += 1
            done = end = start + length  # the rest of the match may hold another one
        elif length == 0:
            end = start + 1
        match = pattern.search(text, end)
    pieces.append(text[done:])
    return "".join(pieces), count
