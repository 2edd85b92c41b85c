"""The bundled skills, run as a sandbox runs them. (Their tests live here: a skill's directory is the skill.)"""

import http.server
import json
import os
import random
import re
import socket
import socketserver
import struct
import threading
import unittest

from support import HERE, Sandbox

SKILLS = os.path.abspath(os.path.join(HERE, "..", "..", "..", "..", "skills"))


class Case(unittest.TestCase):
    skill = None

    def setUp(self):
        self.sandbox = Sandbox()
        self.addCleanup(self.sandbox.close)
        if self.skill:
            self.sandbox.mount(os.path.join(SKILLS, self.skill))

    def run_skill(self, **args):
        outcome = self.sandbox.execute(self.skill, args)
        self.assertEqual(outcome.status, "completed", outcome.result)
        self.assertFalse(outcome.result["spilled"])
        return outcome

    def refused(self, kind, fragment, **args):
        outcome = self.sandbox.execute(self.skill, args)
        self.assertEqual(outcome.status, "failed", outcome.result)
        self.assertEqual(outcome.error["type"], kind, outcome.error)
        self.assertIn(fragment, outcome.error["message"])


class Hello(Case):
    skill = "hello.world"

    def test(self):
        self.assertEqual(self.run_skill().output, {"greeting": "Hello, world!"})
        outcome = self.run_skill(name="Ada")
        self.assertEqual((outcome.output, outcome.logs), ({"greeting": "Hello, Ada!"}, "[info] Hello, Ada!\n"))
        for name in ("", 5, "x" * 201):
            self.refused("ValueError", "name is not a text", name=name)


class CsvStats(Case):
    skill = "csv.stats"

    def profile(self, content, **args):
        self.sandbox.input_blobs.clear()
        blob = self.sandbox.blob("sheet", content)
        outcome = self.run_skill(csv_blob=blob, **args)
        kind, stats = outcome.blobs[outcome.output["stats_blob"]]
        self.assertEqual(kind, "application/json")
        return outcome.output, json.loads(stats)

    def test_types_and_figures(self):
        output, stats = self.profile(
            b"\xef\xbb\xbfid,price,when,ok,name,none\r\n"
            b"1,1.5,2024-01-31,yes,\"Ada, L.\",\r\n"
            b"2,2.5,2023-02-28,no,Bob,\r\n"
            b"3,,2024-02-29,true,Bob, \r\n"
        )
        self.assertEqual((output["rows"], output["columns_total"], output["uneven_rows"]), (3, 6, 0))
        self.assertEqual(output["summary"], "3 rows, 6 columns; 4 empty values.")
        self.assertEqual(
            [(c["name"], c["type"], c["empty"]) for c in output["columns"]],
            [("id", "integer", 0), ("price", "number", 1), ("when", "date", 0), ("ok", "boolean", 0), ("name", "text", 0), ("none", "empty", 3)],
        )
        id, price, when, _, name, _ = stats["columns"]
        self.assertEqual((id["min"], id["max"], id["sum"], id["mean"], id["stdev"]), (1, 3, 6, 2.0, 1.0))
        self.assertEqual((price["min"], price["max"], price["mean"]), (1.5, 2.5, 2.0))
        self.assertEqual((when["min"], when["max"]), ("2023-02-28", "2024-02-29"))
        self.assertEqual((name["distinct"], name["top"][0], name["min_chars"], name["max_chars"]), (2, ["Bob", 2], 3, 7))

    def test_shapes(self):
        self.assertEqual(self.profile(b"a;b\n1,5;2\n")[0]["delimiter"], ";")
        self.assertEqual(self.profile(b"a\tb\n1\t2\n")[0]["delimiter"], "\t")
        self.assertEqual(self.profile(b"a|b\n1|2\n", delimiter=",")[0]["columns_total"], 1)
        self.assertEqual(self.profile(b"a,b\n1\n1,2,3\n\n4,5\n")[0]["uneven_rows"], 2)
        self.assertEqual(self.profile(b"only a header")[0]["rows"], 0)
        self.assertEqual(self.profile("näme\né\n".encode("latin-1"), encoding="latin-1")[0]["columns"][0]["name"], "näme")
        self.assertEqual(self.profile(b",\n1,2\n")[0]["columns"][1]["name"], "column 2")
        self.assertEqual(self.profile(b"\r\n\na,b\n1,2\n")[0]["columns_total"], 2)
        self.assertEqual(self.profile(b'a,b\n"x\ny",2\n')[0]["rows"], 1)

    def test_numbers_at_their_limits(self):
        _, stats = self.profile(b"a,b,c,d\n1e308,999999999999999999,nan,2024-02-30\n1e308,-999999999999999999,inf,x\n")
        a, b, c, d = stats["columns"]
        self.assertEqual((a["sum"], b["max"], b["min"], b["sum"], c["type"], d["type"]), (None, 10**18 - 1, 1 - 10**18, 0, "text", "text"))
        # What scientific programs write for "no data".
        _, stats = self.profile(b"a\n-1.7e308\n1.7e308\n")
        a = stats["columns"][0]
        self.assertEqual((a["min"], a["max"], a["stdev"]), (-1.7e308, 1.7e308, None))

    def test_long_sheets_and_wide_ones(self):
        rows = "".join("%d,%s\n" % (n, "é" * 40) for n in range(20000))
        output, stats = self.profile(("n,t\n" + rows).encode())
        self.assertEqual((output["rows"], stats["columns"][0]["max"]), (20000, 19999))
        self.assertFalse(stats["columns"][0]["distinct_is_exact"])
        # Any place where the sample ends gives the same rows.
        for pad in range(3):
            text = "x" * pad + "," + "y\r\n" + "1,2\r\n" * 14000
            self.assertEqual(self.profile(text.encode())[0]["rows"], 14000)
        wide = ",".join("a rather long column name that needs room %d" % n for n in range(500))
        output, _ = self.profile((wide + "\n").encode())
        self.assertEqual((len(output["columns"]), output["columns_total"]), (25, 500))

    def test_what_is_counted_has_a_bound(self):
        # Of long values only what is shown is kept, and of many columns fewer values in each.
        long = ["%05d" % n + "x" * 40000 for n in range(1000)]
        wide = [",".join("%d" % (n * 1000 + column) for column in range(1000)) for n in range(300)]
        for rows, distinct, exact in ((long, 1000, True), (wide, 200, False)):
            head = ",".join("c%d" % n for n in range(rows[0].count(",") + 1))
            blob = self.sandbox.blob("large%d" % distinct, "\n".join([head, *rows]).encode())
            code = """
import tracemalloc
from runtime import blobs
from skills.csv.stats import profile

def main(args):
    tracemalloc.start()
    with blobs.open(args["sheet"], "r", newline="") as lines:
        column = profile(lines)["columns"][0]
    return [tracemalloc.get_traced_memory()[1] >> 20, column["distinct"], column["distinct_is_exact"], len(column["top"][0][0])]
"""
            mib, *figures = self.sandbox.code(code, {"sheet": blob}).output
            self.assertEqual(figures, [distinct, exact, 100 if distinct == 1000 else 1])
            self.assertLess(mib, 35)

    def test_refusals(self):
        self.refused("ValueError", "csv_blob is missing")
        self.refused("BlobNotFound", "input_blobs", csv_blob="blob:x")
        blob = self.sandbox.blob("empty", b" \n")
        self.refused("ValueError", "the CSV is empty", csv_blob=blob)
        blob = self.sandbox.blob("sheet", b"a,b\n" + b'"' + b"x" * (2 << 20))
        self.refused("ValueError", "not one character", csv_blob=blob, delimiter="::")
        self.refused("ValueError", "not CSV at line", csv_blob=blob)
        blob = self.sandbox.blob("bin", b"\xff\xfe\x00")
        self.refused("ValueError", "the CSV is not utf-8-sig: give its encoding", csv_blob=blob)
        self.refused("ValueError", "the CSV is not ascii: give its encoding", csv_blob=blob, encoding="ascii")
        self.refused("ValueError", "at most 2000", csv_blob=self.sandbox.blob("wide", b"," * 5000))
        for content in (b"x" * (5 << 20), b"a,b\n" * 50000 + b"x" * (5 << 20)):
            self.refused("ValueError", "a line has more than 4194304 characters", csv_blob=self.sandbox.blob("json", content))
        sheet = self.sandbox.blob("sheet", b"a,b\n1,2\n")
        for delimiter in ("\n", '"'):
            self.refused("ValueError", "delimiter is not one character", csv_blob=sheet, delimiter=delimiter)
        for encoding in ("no such", 5, "base64"):
            self.refused("ValueError", "encoding is not one", csv_blob=sheet, encoding=encoding)
        self.refused("ValueError", "the CSV is not utf-16", csv_blob=sheet, encoding="utf-16")

    def test_from_code(self):
        blob = self.sandbox.blob("sheet", b"a,b\n1,\n")
        code = _example(self.skill)
        self.assertEqual(self.sandbox.code(code, {"sheet": blob}).output, ["b"])


class TextRedact(Case):
    skill = "text.redact"

    def redact(self, text, **args):
        return self.run_skill(text=text, **args).output["text"]

    def test_what_is_replaced(self):
        cases = {
            "Mail ada@example.com or call +44 20 7946 0958": "Mail [email] or call [phone]",
            "<ada.l+x@mail.example.co.uk>, Bob@x.de.": "<[email]>, [email].",
            "jürgen@müller.de": "[email]",
            "card 4111 1111 1111 1111, 378282246310005": "card [card], [card]",
            "4111-1111-1111-1111 123 rest": "[card] 123 rest",
            "DE89 3704 0044 0532 0130 00 AND GB82WEST12345698765432": "[iban] AND [iban]",
            "host 192.168.0.1.": "host [ipv4].",
            "(555) 123-4567; 555.123.4567; 030 / 901820-12": "[phone]; [phone]; [phone]",
            "+4915123456789 0049 151 23456789": "[phone] [phone]",
            # Their digits would do for a card's.
            "+4915123456787; +49 1512 345 678 7; 0049151234567893; 0049 1512 3456 7893": "[phone]; [phone]; [phone]; [phone]",
            "+4111111111111111 +41 4111111111111111": "+[card] +41 [card]",
            "555-123-4567 555-123-4569": "[phone] [phone]",
            "4111 1111 1111 1111 378282246310005": "[card] [card]",
            "order 12 4111 1111 1111 1111": "order 12 [card]",
            "2024-01-31 555-123-4567": "2024-01-31 [phone]",
            "31.01.2024 030/12345678; 0151-12-345678": "31.01.2024 [phone]; [phone]",
            # As in tables and lists.
            "Ada,555-123-4567,x": "Ada,[phone],x",
            "42,555-123-4567": "42,[phone]",
            "Ada,+15551234567": "Ada,[phone]",
            "Ada,020 7946 0958": "Ada,[phone]",
            "-555-123-4567; Tel.030/12345678": "-[phone]; Tel.[phone]",
            # With the dashes that word processors make of hyphens.
            "4111\u20131111\u20131111\u20131111, +49\u2013151\u201323456789": "[card], [phone]",
            "Tel030/12345678, FAX030 12345678, Phone555-123-4567": "Tel[phone], FAX[phone], Phone[phone]",
            # In the groups that are printed on a card.
            "4111.1111.1111.1111; 4111/1111/1111/1111 12/27": "[card]; [card] 12/27",
            "3782.822463.10005, 3056/930902/5904, 6304.0000.0000.0000.000": "[card], [card], [card]",
            # Behind a word, and before one.
            "VISA4111111111111111, Card4111 1111 1111 1111, cc4111111111111111": "VISA[card], Card[card], cc[card]",
            "card_4111-1111-1111-1111 \u5361\u53f74111111111111111EXP": "card_[card] \u5361\u53f7[card]EXP",
            "amex378282246310005/AMEX3782.822463.10005": "amex[card]/AMEX[card]",
            "DE89-3704-0044-0532-0130-00; GB82-WEST-1234-5698-7654-32-2024": "[iban]; [iban]-2024",
            "be68\u20115390\u20110754\u20117034": "[iban]",
            "+371234567890120 Tel+371234567890120 Tel004915123456787": "[phone] Tel[phone] Tel[phone]",
        }
        for text, expected in cases.items():
            self.assertEqual(self.redact(text), expected)

    def test_what_is_left(self):
        for text in (
            "4111 1111 1111 1112", "1111 1111 1111 1111", "2024-01-31 12:30:00", "1234567.8912", "order 1234567890", "999.1.1.1",
            "31.01.2024 10:30", "1/31/2024 10:30", "2024/01/31 10:00", "2019\u20132024", "01.01.2024 \u2013 31.12.2024",
            "version 1.2.3", "item030/12345678", "a @ b", "DE00 3704 0044 0532 0130 00", "x" * 500, "price 1.000,00 EUR", "",
            "1,234,567.89", "a,1234.56,2024-01-31", "1,555-1,600", "ORD-2024-001-5678", "550e8400-e29b-41d4-a716-446655440000",
        ):
            self.assertEqual(self.redact(text), text)

    def test_what_is_no_card_and_no_iban(self):
        # Luhn's formula would do for each, and the checksum for those that begin with two letters.
        for text in (
            "1.000.000.000.009", "9111.1111.1111.1110", "4111.1111/1111.1111", "2024.0101.1230.0006", "41.11.11.11.11.11.11.11",
            "378/282/246/310/005", "x4111111111111111", "1abc4111111111111111e", "ORD2024000000000008", "ORD1234567890123452",
            "[.4300.0020.0011.0002]", "4300.0020.0011.0002.0001", "4300/0020/0011/0002/0001", "de15-install-guide-of-linux", "DE89-37040044-0532-0130-00",
        ):
            self.assertEqual(self.redact(text, kinds=["card", "iban"]), text)

    def test_counts_and_kinds(self):
        output = self.run_skill(text="a@b.de c@d.de 192.168.0.1").output
        self.assertEqual(output["counts"], {"email": 2, "iban": 0, "card": 0, "ipv4": 1, "phone": 0})
        self.assertEqual(output["total"], 3)
        self.assertEqual(self.redact("a@b.de 192.168.0.1", kinds=["ipv4"]), "a@b.de [ipv4]")

    def test_blobs(self):
        text = "línea uno a@b.de\r\nzwei +49 30 901820\n" * 1000 + "no end"
        outcome = self.run_skill(blob=self.sandbox.blob("note", text.encode()))
        self.assertEqual(outcome.output["counts"]["email"], 1000)
        expected = "línea uno [email]\r\nzwei [phone]\n" * 1000 + "no end"
        self.assertEqual(outcome.blobs[outcome.output["blob"]], ("text/plain", expected.encode()))
        outcome = self.run_skill(text="a@b.de " * 1000)
        self.assertEqual(outcome.blobs[outcome.output["blob"]][1].decode(), "[email] " * 1000)

    def test_a_text_is_inline_by_its_bytes(self):
        room = 3072 - len('""')
        for char, count in (("é", room // 2), ("語", room // 3), ('"', room // 2), ("x", room)):
            self.assertEqual(self.redact(char * count), char * count)
            text = char * (count + 1)
            outcome = self.run_skill(text=text)
            self.assertEqual(outcome.blobs[outcome.output["blob"]], ("text/plain", text.encode()))
            self.assertNotIn("text", outcome.output)

    def test_one_endless_line(self):
        text = "word a@b.de " * 100000 + "y" * (2 << 20)
        outcome = self.run_skill(blob=self.sandbox.blob("line", text.encode()))
        self.assertEqual(outcome.output["counts"]["email"], 100000)
        self.assertEqual(outcome.blobs[outcome.output["blob"]][1].decode(), text.replace("a@b.de", "[email]"))

    def test_no_text_takes_long(self):
        for unit in ("a", "1", "1 ", "a.", "@", "a@", "a@a.", "(", "+1 ", "1.1.", "A1 ", "DE89 ", "DE89-", "4111.", "ab4111"):
            self.run_skill(blob=self.sandbox.blob("hard%d" % ord(unit[0]) + str(len(unit)), (unit * 5000).encode()))

    def test_a_table_of_zeros_does_not_take_long(self):
        # Most of it looks like a card, and a checksum for each place where one may end is what took long.
        code = """
from skills.text.redact import patterns
def main(args):
    checked = []
    luhn = patterns._luhn
    patterns._luhn = lambda text: checked.append(text) or luhn(text)
    return [patterns.replace("card", ("0 " * 28 + "\\n") * 100)[1], patterns.replace("card", "4111 1111 1111 1111")[1], len(checked)]
"""
        zeros, cards, checked = self.sandbox.code(code).output
        self.assertEqual((zeros, cards), (0, 1))
        self.assertLess(checked, 10)

    def test_random_text_survives(self):
        # With no digit and no @ nothing can match.
        seed = random.randrange(1 << 32)
        rng = random.Random(seed)
        text = "".join(rng.choice("ab .,-()[]\n\té\U0001f600") for _ in range(1900))
        self.assertEqual(self.redact(text), text, "seed %d" % seed)

    def test_refusals(self):
        self.refused("ValueError", "either text or blob")
        self.refused("ValueError", "either text or blob", text="x", blob="blob:x")
        self.refused("ValueError", "not a string", text=5)
        self.refused("ValueError", "unknown kinds names", text="x", kinds=["names"])
        self.refused("ValueError", "not a list", text="x", kinds="email")
        self.refused("BlobNotFound", "input_blobs", blob="blob:x")

    def test_from_code(self):
        outcome = self.sandbox.code(_example(self.skill), {"note": "a@b.de"})
        self.assertEqual(outcome.output, {"note": "[email]", "emails": 1})


class Gate(http.server.BaseHTTPRequestHandler):
    """A proxy that answers for every host by itself and refuses every tunnel."""

    def do_CONNECT(self):
        self.send_error(403, self.path + " is not granted to this run")

    def do_GET(self):
        self.server.asked.append("%s %s" % (self.command, self.path))
        status, headers, body = self.server.answers[self.path]
        status, reason = status if isinstance(status, tuple) else (status, None)
        self.send_response(status, reason)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
        if "X-Reset" in headers:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


class HttpFetch(Case):
    skill = "http.fetch"

    def setUp(self):
        super().setUp()
        # Not HTTPServer: it asks the DNS for the name of its own address.
        self.gate = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Gate)
        self.gate.asked = []
        self.gate.answers = {
            "http://example.com/": (200, {"Content-Type": "text/html"}, b"<h1>hello</h1>"),
            "http://example.com/big": (200, {"Content-Type": "application/x-big"}, b"x" * 3000000),
            "http://example.com/no": (404, {"Content-Type": "text/plain"}, b"not here"),
            "http://example.com/moved": (302, {"Location": "http://www.example.com/"}, b""),
            "http://www.example.com/": (200, {}, b"moved"),
            "http://example.com/latin": (200, {"Content-Type": "text/html; charset=iso-8859-1"}, "Grüße".encode("latin-1")),
            "http://example.com/charset": (200, {"Content-Type": "text/html; charset=none"}, b"odd"),
            "http://example.com/null": (200, {"Content-Type": "text/html; charset*=us-ascii'en'a%00b"}, b"odd"),
            "http://example.com/loop": (302, {"Location": "http://example.com/loop"}, b""),
            "http://example.com/file": (302, {"Location": "file:///etc/passwd"}, b""),
            "http://example.com/ftp": (302, {"Location": "ftp://example.com/x"}, b""),
        }
        thread = threading.Thread(target=self.gate.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.gate.server_close)
        self.addCleanup(self.gate.shutdown)
        proxy = "http://127.0.0.1:%d" % self.gate.server_address[1]
        self.env = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy, "https_proxy": proxy, "TMPDIR": self.sandbox.path("tmp")}

    def fetch(self, env=None, **args):
        return self.sandbox.execute(self.skill, args, env=self.env if env is None else env)

    def test_a_page(self):
        outcome = self.fetch(url="http://example.com/")
        self.assertEqual(outcome.status, "completed", outcome.result)
        blob = outcome.output.pop("blob")
        self.assertEqual(
            outcome.output,
            {"status": 200, "url": "http://example.com/", "content_type": "text/html", "bytes": 14, "truncated": False, "preview": "<h1>hello</h1>"},
        )
        self.assertEqual(outcome.blobs[blob], ("text/html", b"<h1>hello</h1>"))
        self.assertEqual(outcome.result["summary"], "GET http://example.com/: status 200, 14 bytes.")

    def test_other_answers(self):
        output = self.fetch(url="http://example.com/big", max_bytes=2000000).output
        self.assertEqual((output["bytes"], output["truncated"], "preview" in output), (2000000, True, False))
        output = self.fetch(url="http://example.com/big", max_bytes=3000000).output
        self.assertEqual((output["bytes"], output["truncated"]), (3000000, False))
        self.assertEqual(self.fetch(url="http://example.com/no").output["status"], 404)
        output = self.fetch(url="http://example.com/moved").output
        self.assertEqual((output["url"], output["preview"] if "preview" in output else None), ("http://www.example.com/", None))
        for said in ("", "html", "text/", "a b/c", "text/html\t; x", "é/x", "text/" + "x" * 251):
            self.gate.answers["http://example.com/odd"] = (200, {"Content-Type": said}, b"odd")
            outcome = self.fetch(url="http://example.com/odd")
            self.assertEqual(outcome.status, "completed", (said, outcome.result))
            self.assertEqual(outcome.output["content_type"], "application/octet-stream")
            self.assertEqual(outcome.blobs[outcome.output["blob"]], ("application/octet-stream", b"odd"))
        for said in ("text/html;charset=utf-8", "image/svg+xml", "text/" + "x" * 250):
            self.gate.answers["http://example.com/good"] = (200, {"Content-Type": said}, b"good")
            outcome = self.fetch(url="http://example.com/good")
            self.assertEqual(outcome.blobs[outcome.output["blob"]], (said, b"good"))
        for path, text in (("latin", "Grüße"), ("charset", "odd"), ("null", "odd")):
            self.assertEqual(self.fetch(url="http://example.com/" + path).output["preview"], text)
        outcome = self.fetch(url="http://example.com/", method="HEAD")
        self.assertEqual((outcome.output["status"], outcome.blobs), (200, {}))
        self.gate.asked.clear()
        self.fetch(url="http://example.com/moved", method="HEAD")
        self.assertEqual(self.gate.asked, ["HEAD http://example.com/moved", "HEAD http://www.example.com/"])

    def failed(self, outcome, kind, fragment):
        self.assertEqual(outcome.status, "failed", outcome.result)
        self.assertEqual(outcome.error["type"], kind, outcome.error)
        self.assertIn(fragment, outcome.error["message"])
        self.assertEqual(outcome.blobs, {})

    def test_without_a_grant(self):
        self.failed(self.fetch(env={"TMPDIR": "/tmp"}, url="https://example.com/"), "PermissionError", "this run has no network: the policy grants none")

    def test_a_host_that_is_not_granted(self):
        refused = "the gate refuses: other.example:443 is not granted to this run"
        self.failed(self.fetch(url="https://other.example/"), "PermissionError", refused)
        # Who was asked says nothing of another host, to which it has led.
        self.gate.answers["http://example.com/away"] = (302, {"Location": "https://other.example/"}, b"")
        self.failed(self.fetch(url="http://example.com/away"), "PermissionError", refused)

    def test_what_the_gate_says_is_no_answer_of_a_server(self):
        for status, kind, words in (
            (403, "PermissionError", "http://other.example is not granted to this run"),
            (502, "ConnectionError", "other.example has no address"),
            (504, "TimeoutError", "http://other.example did not answer in time"),
        ):
            said = {"Proxy-Status": "skillgate; error=something", "Content-Type": "application/json"}
            self.gate.answers["http://other.example/"] = ((status, words), said, b"{}")
            self.failed(self.fetch(url="http://other.example/"), kind, words)
        # A server's own is one, also where it speaks of a proxy of its own.
        self.gate.answers["http://other.example/"] = (403, {"Proxy-Status": "edge; error=something"}, b"no")
        self.assertEqual(self.fetch(url="http://other.example/").output["status"], 403)

    def test_an_answer_that_breaks_off_is_not_kept(self):
        for said, body in (({"Content-Length": "100"}, b"part"), ({"Content-Length": "0", "Transfer-Encoding": "chunked"}, b"64\r\npart")):
            self.gate.answers["http://example.com/cut"] = (200, said, body)
            self.failed(self.fetch(url="http://example.com/cut"), "ConnectionError", "the answer broke off")
        reset = {"Content-Length": "100", "X-Reset": "yes"}
        self.gate.answers["http://example.com/cut"] = (200, reset, b"part")
        self.failed(self.fetch(url="http://example.com/cut"), "ConnectionError", "the answer broke off")
        self.gate.answers["http://example.com/cut"] = (200, {"Content-Length": "100"}, b"part")
        self.assertTrue(self.fetch(url="http://example.com/cut", max_bytes=3).output["truncated"])

    def test_redirects_that_lead_astray(self):
        outcome = self.fetch(url="http://example.com/loop")
        self.failed(outcome, "ConnectionError", "example.com")
        self.assertIn("infinite loop", outcome.error["message"].splitlines()[-1], "its summary is its last line")
        self.failed(self.fetch(url="http://example.com/file"), "ConnectionError", "example.com")
        self.failed(self.fetch(url="http://example.com/ftp"), "ConnectionError", "ftp")

    def test_arguments(self):
        for url in (None, "", "example.com", "file:///etc/passwd", "ftp://example.com/", "http://", "http://u:p@example.com/", "http://example.com/a b", "http://exämple.com/", "http://example.com/\n", "http://example.com/\x7f", "http://example.com:abc/", "https://example.com:70000/"):
            self.failed(self.fetch(url=url), "ValueError", "url" if url is None else "URL")
        for args in ({"method": "POST"}, {"max_bytes": 0}, {"max_bytes": True}, {"max_bytes": "x"}, {"timeout_s": -1}, {"timeout_s": None}):
            self.failed(self.fetch(url="http://example.com/", **args), "ValueError", next(iter(args)))

    def test_nobody_there(self):
        env = dict(self.env, HTTP_PROXY="http://127.0.0.1:1", http_proxy="http://127.0.0.1:1")
        self.failed(self.fetch(env=env, url="http://example.com/"), "ConnectionError", "cannot reach example.com")


class Documents(Case):
    def test_the_guide_is_as_specified(self):
        text = _read("skills.protocol.guide", "SKILL.md")
        self.assertTrue(text.startswith("---\nname: Skills Protocol Guide\nshort_description: How to use the Skills Protocol tools.\n---\n\n# Skills Protocol Overview\n"))
        self.assertTrue(text.endswith("(no semantic search in `list_skills`)\n"))
        tools = re.findall(r"^\d\. `(\w+)` — ", text, re.M)
        self.assertEqual(tools, "list_skills describe_skill read_skill_file execute_skill run_code create_blob read_blob load_skills_protocol_guide".split())

    def test_the_example_of_the_authoring_guide_runs(self):
        text = _read("skills.authoring", "SKILL.md")
        code = re.search(r"```python\n(.*?)```", text, re.S).group(1)
        sheet = self.sandbox.blob("s", b" a ,b\n,\n1, 2\n")
        # With every input that its manifest declares.
        for args, kept, cleaned in (({}, 1, b" a ,b\r\n1,2\r\n"), ({"keep_header": False}, 2, b"a,b\r\n1,2\r\n")):
            outcome = self.sandbox.code(code, dict(args, sheet=sheet))
            made = outcome.output["sheet"]
            self.assertEqual(outcome.output, {"kept": kept, "dropped": 1, "sheet": made})
            self.assertEqual(outcome.blobs[made], ("text/csv", cleaned))
        published = json.loads(re.search(r"## Publishing\n\n```json\n(.*?)```", text, re.S).group(1))
        outcome = self.sandbox.code(published["files"][0]["content"], {"name": "Ada"})
        self.assertEqual(outcome.output, {"greeting": "Hello, Ada"})

    def test_the_example_of_hello_runs(self):
        self.sandbox.mount(os.path.join(SKILLS, "hello.world"))
        self.assertEqual(self.sandbox.code(_example("hello.world"), {"names": ["A", "B"]}).output, ["Hello, A!", "Hello, B!"])


def _read(skill, path):
    with open(os.path.join(SKILLS, skill, path), encoding="utf-8") as file:
        return file.read()


def _example(skill):
    """The Python example of a SKILL.md."""
    return re.search(r"```python\n(.*?)```", _read(skill, "SKILL.md"), re.S).group(1)


if __name__ == "__main__":
    unittest.main()
