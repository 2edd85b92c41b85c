"""How mounted skills are imported, and that they do not get into each other's way."""

import textwrap
import unittest

from support import Sandbox


class Case(unittest.TestCase):
    def setUp(self):
        self.sandbox = Sandbox()
        self.addCleanup(self.sandbox.close)

    def skill(self, name, entrypoint="code/main.py", **files):
        """Files by keyword: `main="..."` is code/main.py, `lib__x` is code/lib/x.py."""
        self.sandbox.skill(
            name, {"code/%s.py" % (path if "/" in path else path.replace("__", "/")): textwrap.dedent(text) for path, text in files.items()}, entrypoint
        )

    def output(self, body, imports=""):
        code = imports + "\ndef main(args):\n" + textwrap.indent(textwrap.dedent(body), "    ")
        outcome = self.sandbox.code(code)
        self.assertEqual(outcome.status, "completed", outcome.result)
        return outcome.output

    def error(self, imports, kind, *fragments):
        outcome = self.sandbox.code(imports + "\ndef main(args): pass")
        self.assertEqual(outcome.status, "failed", outcome.result)
        self.assertEqual(outcome.error["type"], kind)
        for fragment in fragments:
            self.assertIn(fragment, outcome.error["message"])
        return outcome.error["message"]


class Mounted(Case):
    def test_the_specifications_example(self):
        self.skill("salesforce.leads.sync", main="def sync_leads(data, env):\n    return [data, env]")
        code = (
            "from skills.salesforce.leads.sync import sync_leads\nfrom runtime import blobs\n\n"
            "def main(args):\n    data = blobs.read_text(args['sheet_blob'])\n"
            "    result = sync_leads(data, env='prod')\n    return result"
        )
        outcome = self.sandbox.code(code, {"sheet_blob": self.sandbox.blob("sheet-123", b"a,b")})
        self.assertEqual(outcome.output, ["a,b", "prod"])

    def test_all_ways_to_name_it(self):
        self.skill("best-practices.lead_sync", main="def f(): return 1")
        body = """
            import importlib, sys
            import skills
            import skills.best_practices.lead_sync
            import skills.best_practices.lead_sync as a
            from skills.best_practices import lead_sync as b
            from skills import best_practices
            c = importlib.import_module("skills.best_practices.lead_sync")
            assert a is b is c is best_practices.lead_sync is skills.best_practices.lead_sync
            assert a.__spec__.name == a.__name__ == "skills.best_practices.lead_sync" == a.__package__
            assert a.__file__.endswith("/skills/best-practices.lead_sync/code/main.py")
            assert "lead_sync" in dir(best_practices) and "best_practices" in dir(skills)
            return a.f()
        """
        self.assertEqual(self.output(body), 1)

    def test_names_that_are_no_identifiers(self):
        self.skill("2fa.import", main="x = 5")
        self.assertEqual(self.output("import importlib\nreturn importlib.import_module('skills.2fa.import').x"), 5)

    def test_without_an_import_statement_for_the_leaf(self):
        self.skill("a.b", main="x = 5")
        self.assertEqual(self.output("import skills\nreturn skills.a.b.x"), 5)

    def test_entrypoints_elsewhere(self):
        self.sandbox.skill("root", {"main.py": "import near\nx = near.x", "near.py": "x = 1"}, "main.py")
        self.sandbox.skill("deep", {"code/app/run.py": "from . import near\nx = near.x", "code/app/near.py": "x = 2"}, "code/app/run.py")
        self.sandbox.skill("package", {"code/__init__.py": "from .near import x", "code/near.py": "x = 3"}, "code/__init__.py")
        body = "import skills.root as a, skills.deep as b, skills.package as c\nreturn [a.x, b.x, c.x]"
        self.assertEqual(self.output(body), [1, 2, 3])

    def test_its_directory_is_looked_at_once_and_when_something_could_be_there(self):
        main = """
            import sys

            imports = sys.modules["_skillgate.imports"]
            looks, look = [], imports._top_level_names
            imports._top_level_names = lambda directory: looks.append(directory) or look(directory)
            from runtime import log
            looked = [len(looks)]
            import json, near
            looked += [len(looks), near.x]
        """
        self.skill("a", main=main, near="x = 5")
        self.assertEqual(self.output("import skills.a\nreturn skills.a.looked"), [0, 1, 5])

    def test_resources_of_a_skill(self):
        self.skill("a", main="import pkgutil, pathlib\nx = [pathlib.Path(__file__).parent.parent.name, pkgutil.get_data(__name__, '../data.txt').decode()]")
        self.sandbox.skill("b", {"x.md": ""}, None)
        with open(self.sandbox.path("skills", "a", "data.txt"), "w") as out:
            out.write("data")
        self.assertEqual(self.output("from skills.a import x\nreturn x"), ["a", "data"])


    def test_resources_of_its_packages(self):
        main = """
            import pkgutil, sys
            from importlib import resources
            import pkg, util, util.deep
            def read(package): return resources.files(package).joinpath("d.txt").read_text()
            def main(args):
                found = [pkgutil.get_data(pkg.__name__, "d.txt").decode(), [m.name for m in pkgutil.iter_modules(util.__path__)]]
                with open(util.__path__[0] + "/d.txt") as file:
                    found += [file.read()]
                if sys.version_info >= (3, 10):
                    assert read("pkg") == read(pkg) == "of pkg" and read("util") == read(util) == "of util"
                    assert read("util.deep") == read(util.deep) == "of deep"
                    assert resources.read_text("util", "d.txt") == "of util"
                    assert not list(resources.files("skills").iterdir())
                return found
        """
        self.skill("a", main=main, util__sub="x = 1", **{"pkg/__init__": ""})
        self.sandbox.skill("a", {"code/%s/d.txt" % path: "of " + path[-4:].strip("/") for path in ("pkg", "util", "util/deep")})
        self.assertEqual(self.sandbox.execute("a").output, ["of pkg", ["sub"], "of util"])


class Neighbours(Case):
    def test_three_ways_one_module(self):
        self.skill(
            "acme.sync",
            main="""
                import sys, importlib
                import util
                from . import util as b
                from .util import value
                import skills.acme.sync.util as c
                from util import value as d, other
                assert util is b is c is importlib.import_module("util") is importlib.import_module(".util", __package__)
                assert util is sys.modules["skills.acme.sync.util"] and "util" not in sys.modules
                def main(args): return [value, d, other]
            """,
            util="value = 7\nfrom util2 import other",
            util2="other = 8",
        )
        self.assertEqual(self.output("from skills.acme.sync import main\nfrom skills.acme.sync.util import value\nreturn main({}) + [value]"), [7, 7, 8, 7])
        self.assertEqual(self.sandbox.execute("acme.sync").output, [7, 7, 8])

    def test_equal_names_in_two_skills(self):
        for name in ("a.one", "b.two"):
            self.skill(name, main="import util, helpers.text\nfrom importlib import import_module\n"
                       "def get():\n    import util as late\n    assert late is util\n"
                       "    return [util.who, helpers.text.who, import_module('util').who]",
                       util="who = %r" % name, helpers__text="import util\nwho = util.who + '!'")
        body = "from skills.a.one import get as a\nfrom skills.b.two import get as b\nreturn [a(), b(), a()]"
        self.assertEqual(self.output(body), [["a.one", "a.one!", "a.one"], ["b.two", "b.two!", "b.two"], ["a.one", "a.one!", "a.one"]])

    def test_nobody_else_sees_them(self):
        self.skill("a", main="import util, json\nx = json.dumps(1)", util="", json="def dumps(x): return 'mine'")
        self.skill("b", main="def f():\n    import util")
        self.assertEqual(self.output("import json, skills.a\nreturn [json.dumps(1), skills.a.x]"), ["1", "mine"])
        self.error("import skills.a, util", "ModuleNotFoundError", "No module named 'util'")
        self.error("import skills.a, skills.b; skills.b.f()", "ModuleNotFoundError", "No module named 'util'")

    def test_what_the_library_imports_for_a_skill(self):
        # As certifi does, for requests: a name that only the skill knows, given to the library.
        where = "from importlib.resources import files\ndef where(): return files('cert').joinpath('pem.py').read_text()"
        self.skill("a", main="import cert\ndef main(args): return cert.where()", **{"cert/__init__": where}, cert__pem="# a")
        self.skill("b", main="import cert\ndef main(args): return cert.where()", **{"cert/__init__": where}, cert__pem="# b")
        body = "import skills.a, skills.b\nreturn [skills.a.main({}), skills.b.main({})]"
        self.assertEqual([text.strip() for text in self.output(body)], ["# a", "# b"])
        self.error("import skills.a\nfrom importlib.resources import files\nfiles('cert')", "ModuleNotFoundError", "No module named 'cert'")
        # What everybody knows stays what it is.
        self.skill("c", main="from importlib.resources import files\ndef main(args): return files('email').name", email="")
        self.assertEqual(self.sandbox.execute("c").output, "email")

    def test_relative_to_a_neighbour(self):
        main = """
            import pkgutil, forms
            from importlib import import_module
            def main(args): return [import_module("." + m.name, "forms").x for m in pkgutil.iter_modules(forms.__path__)]
        """
        self.skill("a", main=main, **{"forms/__init__": ""}, forms__one="x = 1", forms__two="from importlib import import_module as i\nx = i('..two', 'forms.deep').__name__", forms__deep__x="")
        self.assertEqual(self.sandbox.execute("a").output, [1, "skills.a.forms.two"])
        self.error("import skills.a\nfrom importlib import import_module\nimport_module('.one', 'forms')", "ModuleNotFoundError", "No module named 'forms'")

    def test_directories_of_data_do_not_hide_the_library(self):
        main = """
            import html, json
            import mail.text, email.own, util.sub
            from importlib import import_module
            from json import loads
            assert import_module("html") is html and loads is json.loads
            def main(args): return [html.escape("<a>"), json.dumps([1]), mail.text.x, email.own.x, util.sub.x]
        """
        self.skill("a", main=main, mail__text="x = 2", util__sub="x = 4", **{"email/__init__": "", "email/own": "x = 3"})
        self.sandbox.skill("a", {"code/html/page.tmpl": "", "code/json/data.txt": "", "code/json/loads.py": ""})
        self.assertEqual(self.sandbox.execute("a").output, ["&lt;a&gt;", "[1]", 2, 3, 4])

    def test_packages_of_a_skill(self):
        self.skill(
            "acme",
            main="""
                import lib.deep.leaf
                import lib.deep.leaf as leaf
                from lib import top
                from lib.deep import leaf as leaf2
                assert lib.deep.leaf is leaf is leaf2
                def main(args): return [leaf.value, top.value, leaf.up, leaf.near]
            """,
            **{"lib/__init__": "value = 'lib'"},
            lib__top="from . import value\nfrom .. import settings\nassert settings.x == 1",
            lib__deep__leaf="from ..top import value\nfrom ... import settings\nimport settings as s\nup = s is settings\nfrom . import near as n\nnear = n.x",
            lib__deep__near="x = 'near'",
            settings="x = 1",
        )
        self.assertEqual(self.sandbox.execute("acme").output, ["lib", "lib", True, "near"])

    def test_the_entrypoint_is_loaded_once(self):
        self.skill("acme", main="print('loaded')\nstate = []\nimport other\ndef main(args): return state",
                   other="import main\nfrom main import state\nfrom . import main as m\nimport skills.acme.main as n\n"
                         "assert main is n\nstate.append(main.__name__)")
        outcome = self.sandbox.execute("acme")
        self.assertEqual((outcome.output, outcome.logs), (["skills.acme"], "loaded\n"))

    def test_a_function_named_like_a_neighbour(self):
        self.skill("acme", main="def report(args):\n    from report import render\n    import skills.acme.report\n    return render()\n"
                                "def main(args): return [report({}), report({})]",
                   report="def render(): return 'rendered'")
        self.assertEqual(self.sandbox.execute("acme").output, ["rendered", "rendered"])
        self.assertEqual(self.output("from skills.acme import report\nfrom skills.acme.report import render\nreturn [report({}), render()]"), ["rendered"] * 2)

    def test_who_imports_a_skill_in_a_circle_is_told_so(self):
        self.skill("acme", main="import helper\ndef f(): pass\ndef main(args): pass", helper="from skills.acme import f")
        outcome = self.sandbox.execute("acme")
        self.assertEqual((outcome.status, outcome.error["type"]), ("failed", "ImportError"))
        self.assertIn("'f' from partially initialized module 'skills.acme' (most likely due to a circular import)", outcome.error["message"])

    def test_a_skill_that_is_executed_is_a_module_as_one_that_is_imported(self):
        main = """
            import sys
            def look():
                seen = {}
                for name in __name__, __name__.rpartition(".")[0]:
                    module = sys.modules[name]
                    names, spec = vars(module), module.__spec__
                    seen[name] = [
                        type(module).__name__, module.__name__, module.__package__, module.__path__, names.get("__file__"),
                        spec.name, spec.parent, spec.origin, spec.submodule_search_locations, spec.loader is module.__loader__,
                        spec._initializing, sorted(n for n in names if n != "__cached__"),
                    ]
                return seen
            def main(args): return look()
        """
        self.skill("acme.sync", main=main)
        executed = self.sandbox.execute("acme.sync").output
        self.assertEqual(list(executed), ["skills.acme.sync", "skills.acme"])
        self.assertEqual(executed, self.output("import skills.acme.sync as acme\nreturn acme.look()"))

    def test_a_skill_may_put_another_module_in_its_place(self):
        main = "import sys, types\nown = types.ModuleType(__name__)\nown.main = lambda args: 'other'\nsys.modules[__name__] = own"
        self.skill("acme", main=main)
        self.assertEqual(self.sandbox.execute("acme").output, "other")

    def test_reserved_names_mean_the_same_everywhere(self):
        self.skill("acme", main="import runtime, time, skills\nassert runtime.blobs and time.time\ndef main(args): return 1",
                   runtime="raise SystemError", time="raise SystemError", skills="raise SystemError")
        self.assertEqual(self.sandbox.execute("acme").output, 1)

    def test_names_and_code_made_at_run_time(self):
        self.skill("acme", main="""
            import pickle, dataclasses, util
            def main(args):
                names = {}
                exec("import util as u; v = u.value", names)
                assert __import__("util") is util
                def inner():
                    import util
                    return util.value
                return [names["v"], inner(), pickle.loads(pickle.dumps(util.Point(2))).x, eval("__import__('util').value")]
            """, util="import dataclasses\nvalue = 1\n@dataclasses.dataclass\nclass Point:\n    x: int")
        self.assertEqual(self.sandbox.execute("acme").output, [1, 1, 2, 1])

    def test_a_neighbour_that_fails(self):
        self.skill("acme", main="import util\ndef main(args): pass", util="x = 1 +")
        outcome = self.sandbox.execute("acme")
        self.assertEqual(outcome.error["type"], "SyntaxError")
        self.assertIn("/skills/acme/code/util.py\", line 1", outcome.error["message"])
        self.assertIn("/skills/acme/code/main.py\", line 1", outcome.error["message"])
        for frame in ("_skillgate", "importlib"):
            self.assertNotIn(frame, outcome.error["message"])

    def test_only_source_is_loaded(self):
        import os
        import py_compile

        self.skill("acme", main="import util\ndef main(args): return util.x", util="x = 'evil'")
        source = self.sandbox.path("skills/acme/code/util.py")
        status = os.stat(source)
        py_compile.compile(source, doraise=True)
        with open(source, "w") as out:
            out.write("x = 'good'")
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.assertEqual(self.sandbox.execute("acme").output, "good")
        os.rename(py_compile.compile(source), self.sandbox.path("skills/acme/code/only.pyc"))
        self.assertEqual(self.output("try:\n    import skills.acme.only\nexcept ImportError:\n    return 1"), 1)
        os.remove(source)
        self.assertEqual(self.sandbox.execute("acme").error["type"], "ModuleNotFoundError")

    def test_nothing_is_written_beside_them(self):
        import os

        self.skill("acme", main="import util\ndef main(args): pass", util="")
        self.sandbox.execute("acme")
        self.assertEqual(sorted(os.listdir(self.sandbox.path("skills/acme/code"))), ["main.py", "util.py"])


class Builtins(Case):
    """A skill has those of the moment of its first import, in a warm interpreter too."""

    def setUp(self):
        super().setUp()
        self.skill("b", main="import util\ndef get(): return [oct(8), util.who]", util="who = 'b'")

    def check(self, expected, run, *args, **more):
        for before in ("", "warm()"):
            outcome = run(*args, before=before, **more)
            self.assertEqual(outcome.status, "completed", outcome.result)
            self.assertEqual(outcome.output, expected)

    def test_that_the_code_changes(self):
        code = """
            import builtins
            def main(args):
                first, builtins.oct = oct, lambda _: "changed"
                from skills.b import get
                changed, builtins.oct = get(), first
                return [changed, get()]
        """
        self.check([["changed", "b"], ["changed", "b"]], self.sandbox.code, textwrap.dedent(code))

    def test_that_the_first_skill_changes(self):
        self.skill("a", main="""
            import builtins
            import util
            __builtins__["oct"] = lambda _: "its own"
            builtins.oct = lambda _: "changed"
            from skills.b import get
            def main(args): return [oct(8), util.who, get(), __builtins__["__import__"] is builtins.__import__]
        """, util="who = 'a'")
        self.check(["its own", "a", ["changed", "b"], False], self.sandbox.execute, "a")

    def test_of_a_skill_below_another(self):
        self.skill("a", main="import builtins\nbuiltins.oct = lambda _: 'changed'\ndef main(args): return oct(8)")
        self.skill("a.c", main="def main(args): return oct(8)")
        self.check("0o10", self.sandbox.execute, "a")
        self.check("changed", self.sandbox.execute, "a.c")


class ShorterNames(Case):
    """`acme` and `acme.sync`: the mounted skill wins from outside, and `acme` keeps what is its own."""

    def setUp(self):
        super().setUp()
        self.skill("acme.sync", main="who = 'the skill'")

    def test_over_a_function(self):
        self.skill("acme", main="def sync(): return 'own function'\ndef main(args): return sync()")
        body = """
            from skills.acme import sync, main
            import skills.acme.sync as s
            import skills.acme
            assert sync is s is skills.acme.sync
            return [sync.who, main({})]
        """
        self.assertEqual(self.output(body), ["the skill", "own function"])
        self.assertEqual(self.sandbox.execute("acme").output, "own function")
        self.assertEqual(self.sandbox.execute("acme", function="sync").error["type"], "TypeError")

    def test_over_a_neighbour(self):
        self.skill(
            "acme",
            main="""
                import sync
                from . import sync as b, other
                from .sync import who
                from importlib import import_module
                assert sync is b is other.sync is other.c is import_module("sync"), (sync, b, other.sync)
                from skills.acme.sync import who as outside
                def main(args): return [sync.who, who, other.who, outside]
            """,
            sync="who = 'own'\nfrom . import other\nfrom .other import x",
            other="x = 1\nimport sync\nfrom .sync import who\nfrom . import sync as c",
        )
        self.assertEqual(self.sandbox.execute("acme").output, ["own", "own", "own", "the skill"])
        body = "from skills.acme import sync, main\nfrom skills.acme.sync import who\nreturn [sync.who, who, main({})[0]]"
        self.assertEqual(self.output(body), ["the skill", "the skill", "own"])

    def test_without_the_shorter_skills_code(self):
        self.sandbox.skill("acme", {"SKILL.md": ""}, None)
        self.assertEqual(self.output("from skills.acme.sync import who\nreturn who"), "the skill")

    def test_below_a_neighbour(self):
        self.skill("acme.tools.x", main="who = 'tool x'")
        self.skill("acme", main="from tools import own\ndef main(args): return own", tools="own = 'own'")
        body = "from skills.acme.tools.x import who\nfrom skills.acme.tools import own\nfrom skills.acme import main\nreturn [who, own, main({})]"
        self.assertEqual(self.output(body), ["tool x", "own", "own"])

    def test_the_shorter_skill_does_not_load_the_longer(self):
        self.skill("acme.loud", main="print('loaded')")
        self.skill("acme", main="loud = 1\ndef main(args): return loud")
        outcome = self.sandbox.execute("acme")
        self.assertEqual((outcome.output, outcome.logs), (1, ""))


class TheLibraryOnASkillsBehalf(Case):
    """What of the standard library is given a module's name, or puts something where all modules have it."""

    def check(self, body, expected, **files):
        main = "def main(args):\n" + textwrap.indent(textwrap.dedent(body), "    ")
        self.skill("acme.one", main=main, near="import far\nimport logging\nx = far.y\nclass H(logging.StreamHandler): pass", far="import logging\ny = 7\nclass F(logging.Formatter): pass", **files)
        # Another one with neighbours of the same names, which has been loaded.
        self.skill("acme.two", main="import near", near="x = 0\nclass H: pass", **{"p/__init__": ""})
        outcome = self.sandbox.execute("acme.one")
        self.assertEqual(outcome.status, "completed", outcome.result)
        self.assertEqual(outcome.output, expected)
        self.assertEqual(outcome.logs, "")

    def test_specs(self):
        body = """
            import importlib.util as util, skills.acme.two
            names = ["near", "main", "p", "p.q", "nope", "json", "json.tool"]
            found = [util.find_spec(n) is not None for n in names]
            assert util.find_spec("p.nope") is None and util.find_spec(".near", __package__) is not None
            try:
                util.find_spec("near.nope")
            except ModuleNotFoundError:
                pass
            import near
            spec = util.find_spec("near")
            assert spec is near.__spec__ and util.find_spec("main").origin == __file__
            module = util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return [found, module.x, module is near]
        """
        self.check(body, [[True, True, True, True, False, True, True], 7, False], **{"p/__init__": "", "p/q": ""})

    def test_data(self):
        body = """
            import pkgutil, skills.acme.two, p
            p.changed = True
            data = pkgutil.get_data("p", "q.py").decode()
            return [data, pkgutil.get_data(__name__, "p/q.py").decode(), p is __import__("p"), p.changed]
        """
        self.check(body, ["z = 1", "z = 1", True, True], **{"p/__init__": "", "p/q": "z = 1"})

    def test_modules_that_are_run(self):
        body = """
            import runpy, skills.acme.two
            names = runpy.run_module("near", {"given": 1}, "__main__")
            return [names["x"], names["given"], names["__name__"], runpy.run_module("p")["z"]]
        """
        self.check(body, [7, 1, "__main__", 7], **{"p/__init__": "", "p/__main__": "from near import x as z"})

    def test_handlers_of_the_log(self):
        body = """
            import logging.config, skills.acme.two
            logging.config.dictConfig({
                "version": 1, "disable_existing_loggers": False,
                "formatters": {"f": {"()": "near.far.F"}},
                "handlers": {"h": {"class": "near.H", "formatter": "f"}, "o": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}},
                "root": {"handlers": ["h", "o"]},
            })
            import near
            found = [type(handler) is kind for handler, kind in zip(logging.getLogger().handlers, (near.H, logging.StreamHandler))]
            return found + [logging.config._resolve("near.H") is near.H]
        """
        self.check(body, [True, True, True])

    def test_words_in_other_languages(self):
        body = """
            import gettext, skills.acme.two
            gettext.NullTranslations().install(["ngettext"])
            import p
            return [_("hello"), ngettext("one", "more", 2), p.z]
        """
        self.check(body, ["hello", "more", "late"], **{"p/__init__": "z = _('late')"})

    def test_others_have_what_python_gives(self):
        code = """
            import gettext, importlib.util, logging.config, pkgutil, runpy
            def main(args):
                gettext.install("x")
                try:
                    logging.config._resolve("near.H")
                except ImportError as exc:
                    missing = exc.name
                found = [importlib.util.find_spec(n) is None for n in ("near", "json", "skills.acme.two.near")]
                return [_("a"), missing, found, pkgutil.get_data("near", "x"), runpy.run_module("this", run_name="x")["c"]]
        """
        self.skill("acme.two", main="import near", near="class H: pass")
        outcome = self.sandbox.code(textwrap.dedent(code))
        self.assertEqual(outcome.output, ["a", "near", [True, False, False], None, 97], outcome.result)


if __name__ == "__main__":
    unittest.main()
