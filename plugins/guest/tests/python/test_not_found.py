"""What an import of a skill that finds nothing says."""

import unittest

from test_imports import Case


class NotMounted(Case):
    def test_the_whole_name_and_what_to_do(self):
        wanted = "skill 'salesforce.leads.sync' is not mounted: add it to mount_skills"
        for line in (
            "from skills.salesforce.leads.sync import x",
            "import skills.salesforce.leads.sync",
            "import importlib; importlib.import_module('skills.salesforce.leads.sync')",
        ):
            self.error(line, "ModuleNotFoundError", wanted)
            self.assertTrue(self.error(line, "ModuleNotFoundError").endswith(wanted))
        self.skill("salesforce.other", main="")
        for line in ("from skills.salesforce.leads.sync import x", "import skills.salesforce.leads.sync"):
            self.error(line, "ModuleNotFoundError", wanted + " (mounted: skills.salesforce.other)")
        self.error("from skills.salesforce import leads", "ModuleNotFoundError", "skill 'salesforce.leads' is not mounted")
        self.error("from skills import gdrive", "ModuleNotFoundError", "skill 'gdrive' is not mounted")

    def test_taken_from_a_package_and_not_imported(self):
        text = "package 'skills' has no attribute 'lead_sync': skill 'lead_sync' is not mounted"
        self.error("import skills\nskills.lead_sync", "AttributeError", text + ": add it to mount_skills")
        self.skill("acme.lead-sync", main="", pkg__deep="")
        self.error("import skills\nskills.lead_sync.main({})", "AttributeError", text + "; mounted is acme.lead-sync: `from ")
        self.error("import skills.acme\nskills.acme.other", "AttributeError", "skill 'acme.other' is not mounted: add")
        # What is no skill's name, and what would be in a directory of one.
        message = self.error("import skills\nskills.__nothing__", "AttributeError", "no attribute '__nothing__'")
        self.assertNotIn("mount", message.rpartition("AttributeError")[2])
        message = self.error("import skills.acme.lead_sync.pkg as p\np.other", "AttributeError", "no attribute 'other'")
        self.assertNotIn("mount", message.rpartition("AttributeError")[2])
        body = "import skills\nreturn [hasattr(skills, name) for name in ('x', '__x__', '__path__', 'acme')]"
        self.assertEqual(self.output(body), [False, False, True, True])

    def test_execute_skill_has_no_parameter_for_it(self):
        self.skill("salesforce.caller", main="def main(args):\n    from skills.salesforce.leads.sync import x")
        outcome = self.sandbox.execute("salesforce.caller")
        self.assertIn("call that from run_code, with both in mount_skills", outcome.error["message"])
        self.assertNotIn("add it", outcome.error["message"])

    def test_named_from_inside_another_skill(self):
        self.skill("a", main="from skills.b.c import x")
        self.error("import skills.a", "ModuleNotFoundError", "skill 'b.c' is not mounted", "/skills/a/code/main.py\", line 1")

    def test_a_relative_import_that_leaves_its_skill(self):
        deep = "from . import near\nfrom .pkg import deep"
        for name in ("t.up", "up"):
            there = "a skill's modules are found in the directory of its entrypoint (%s) and below: " % self.sandbox.path("skills", name, "code")
            move = "move `lib` there and write `from .lib.helper import ...`"
            for line, advice in (
                ("from ..lib.helper import g", move),
                ("from ..lib import helper", "move `lib` there and write `from .lib import ...`"),
                ("from ..code.helper import g", "write `from .helper import ...`"),
                ("from ..code import helper", "write `from . import ...`"),
                ("from .. import lib", "move it there and write `from . import ...`"),
                ("import importlib\nimportlib.import_module('..lib.helper', __package__)", move),
                ("def f():\n    from ..lib.helper import g\nf()", move),
            ):
                self.sandbox.skills.clear()
                self.skill(name, main=line)
                message = self.error("import skills." + name, "ModuleNotFoundError", "/skills/%s/code/main.py" % name)
                self.assertTrue(message.endswith("ModuleNotFoundError: " + there + advice), message)
                outcome = self.sandbox.execute(name)
                self.assertTrue(outcome.error["message"].endswith(there + advice), outcome.error)
                self.assertNotIn("mount_skills", message + outcome.error["message"])
            # From further down, and with another skill at the place of a neighbour.
            self.sandbox.skills.clear()
            self.skill(name, main=deep, near="", pkg__deep="from ...lib.helper import g", **{"pkg/__init__": ""})
            self.error("import skills." + name, "ModuleNotFoundError", there + "move `lib` there and write `from ..lib.helper import ...`")
            self.skill(name + ".near", main="")
            self.error("import skills." + name, "ModuleNotFoundError", there + "move `lib` there and write `from ..lib.helper import ...`")

    def test_a_whole_name_is_no_relative_one(self):
        wanted = "skill 'b.c' is not mounted: add it to mount_skills"
        for line in ("from skills.b.c import x", "import importlib\nimportlib.import_module('skills.b.c')", "import importlib.util as u\nu.find_spec('skills.b')"):
            self.sandbox.skills.clear()
            self.skill("t.up", main="from . import near", near=line)
            self.error("import skills.t.up", "ModuleNotFoundError", wanted if "util" not in line else "skill 'b' is not mounted: add")

    def test_it_can_be_caught(self):
        body = "try:\n    import skills.x\nexcept ImportError:\n    return 'optional'"
        self.assertEqual(self.output(body), "optional")

    def test_instruction_skills(self):
        self.sandbox.skill("guide.one", {"SKILL.md": "text"}, None)
        self.error("import skills.guide.one", "ImportError", "skill 'guide.one' is an instruction skill", "no code to import")
        self.error("from skills.guide.one import x", "ImportError", "is an instruction skill")
        self.assertEqual(self.output("return open(args.get('x') or %r).read()" % self.sandbox.path("skills/guide.one/SKILL.md")), "text")
        # A package all the same when another skill has its name as begin.
        self.skill("guide.one.code", main="x = 1")
        self.assertEqual(self.output("from skills.guide.one.code import x\nreturn x"), 1)

    def test_names_that_read_the_same(self):
        self.skill("a-b", main="x = 1")
        self.skill("a_b", main="x = 2")
        self.error("import skills.a_b", "ImportError", "'a-b' and 'a_b' have the same module name skills.a_b")

    def test_a_name_that_is_missing_in_a_skill(self):
        self.skill("a", main="import os")
        self.error("from skills.a import nothing", "ImportError", "cannot import name 'nothing' from 'skills.a'")
        self.error("import skills.a.nothing", "ModuleNotFoundError", "skill 'a' has no module 'nothing'")
        self.error("import skills.a; skills.a.nothing", "AttributeError", "nothing")

    def test_an_entrypoint_that_is_not_there(self):
        self.sandbox.skill("a", {"code/other.py": ""})
        self.error("import skills.a", "ImportError", "skill 'a' has no file 'code/main.py'")

    def test_other_modules(self):
        self.error("import requests", "ModuleNotFoundError", "No module named 'requests'", "the standard library, `runtime` and mounted skills")

    def test_what_is_mounted_is_listed_as_it_is_imported(self):
        for n in range(24):
            self.skill("a-b.s%02d" % n, main="")
        self.sandbox.skill("guide.one", {"SKILL.md": ""}, None)
        listed = ", ".join("skills.a_b.s%02d" % n for n in range(20))
        self.error("import skills.x", "ModuleNotFoundError", "add it to mount_skills (mounted: %s, and 4 more)" % listed)


class Misspelled(Case):
    """A skill that is mounted, under a name that it does not have."""

    def mounted(self, line, wanted, *meant):
        message = self.error(line, "ModuleNotFoundError")
        self.assertTrue(message.endswith("skill %r is not mounted; mounted is %s" % (wanted, ", and ".join(meant))), message)

    def test_other_spellings(self):
        self.skill("salesforce.lead-sync", main="def main(args): pass")
        self.skill("csv.stats", "code/run.py", run="def main(args): pass")
        lead = "salesforce.lead-sync: `from skills.salesforce.lead_sync import main`"
        stats = "csv.stats: `from skills.csv.stats import main`"
        for line, wanted, meant in (
            ("from skills.salesforce_lead_sync import main", "salesforce_lead_sync", lead),
            ("import skills.salesforceleadsync.main", "salesforceleadsync.main", lead),
            ("from skills.lead_sync import main", "lead_sync", lead),
            ("from skills import lead_sync", "lead_sync", lead),
            ("from skills.lead_sync.code.main import main", "lead_sync.code.main", lead),
            ("from skills.Salesforce.Lead_Sync import main", "Salesforce.Lead_Sync", lead),
            ("from skills.salesforce import LeadSync", "salesforce.LeadSync", lead),
            ("import importlib; importlib.import_module('skills.salesforce.lead-sync')", "salesforce.lead-sync", lead),
            ("from skills.csv import main", "csv.main", stats),
            ("from skills.stats.run import main", "stats.run", stats),
            ("from skills.CSV.stats import main", "CSV.stats", stats),
        ):
            self.mounted(line, wanted, meant)

    def test_of_several_the_one_of_the_whole_name_and_of_many_none(self):
        for name in ("a.sync", "b.sync", "c-d.sync"):
            self.skill(name, main="")
        ways = ["%s: `from skills.%s import main`" % (name, name.replace("-", "_")) for name in ("a.sync", "b.sync", "c-d.sync")]
        self.mounted("import skills.sync", "sync", *ways)
        self.mounted("import skills.c_d_sync", "c_d_sync", ways[2])
        self.skill("e.sync", main="")
        self.error("import skills.sync", "ModuleNotFoundError", "skill 'sync' is not mounted: add it to mount_skills (mounted: skills.a.sync, ")
        self.mounted("import skills.a_sync", "a_sync", ways[0])

    def test_the_function_that_it_exports_and_what_no_statement_can_name(self):
        self.skill("acme.dates", main="")
        self.sandbox.skills[-1]["function"] = "parse"
        self.mounted("import skills.dates", "dates", "acme.dates: `from skills.acme.dates import parse`")
        self.mounted("import skills.dates.parse", "dates.parse", "acme.dates: `from skills.acme.dates import parse`")
        self.skill("2fa.import", main="")
        self.mounted("from importlib import import_module as i; i('skills.2fa_import')", "2fa_import", "2fa.import: `importlib.import_module('skills.2fa.import').main`")

    def test_an_instruction_skill(self):
        self.sandbox.skill("guide.one", {"SKILL.md": ""}, None)
        self.mounted("import skills.guide_one", "guide_one", "guide.one: an instruction skill, which has files to read and no code to import")

    def test_another_skill_is_not_meant(self):
        self.skill("salesforce.sync", main="")
        for name in ("gdrive.sync", "salesforce.sync2", "leads.salesforce", "sync.leads", "main"):
            self.error("import skills." + name, "ModuleNotFoundError", "skill %r is not mounted: add it to mount_skills" % name)

    def test_for_execute_skill_too(self):
        self.skill("salesforce.lead-sync", main="def main(args):\n    import skills.lead_sync")
        outcome = self.sandbox.execute("salesforce.lead-sync")
        self.assertIn("mounted is salesforce.lead-sync: `from skills", outcome.error["message"])


class ModulesOfASkill(Case):
    """What is in a skill, named as its files lie."""

    def no_module(self, line, skill, wanted, instead):
        message = self.error(line, "ModuleNotFoundError")
        self.assertTrue(message.endswith("skill %r has no module %r%s" % (skill, wanted, instead)), message)

    def test_the_skill_itself_is_the_module(self):
        self.skill("csv.stats", "code/run.py", run="def main(args): pass\ndef mean(x): pass", helper="")
        itself = ": skills.csv.stats itself is the module of code/run.py: `from skills.csv.stats import %s`"
        for wanted, name in (("code.run", "main"), ("code", "main"), ("main", "main"), ("code.main", "main"), ("mean", "mean"), ("code.mean", "mean")):
            self.no_module("from skills.csv.stats.%s import main" % wanted, "csv.stats", wanted, itself % name)
            self.no_module("import skills.csv.stats." + wanted, "csv.stats", wanted, itself % name)
        self.assertEqual(self.output("from skills.csv.stats.run import main\nreturn main({})"), None)
        for wanted in ("nothing", "code.nothing", "mean.x", "resources.main"):
            self.no_module("import skills.csv.stats." + wanted, "csv.stats", wanted, "")

    def test_a_module_beside_it(self):
        self.skill("csv.stats", "code/app/run.py", **{"app/run": "", "app/helper/text": "x = 1"})
        instead = ": it is `skills.csv.stats.helper.text`, without `code.app.`"
        self.no_module("from skills.csv.stats.code.app.helper.text import x", "csv.stats", "code.app.helper.text", instead)
        self.no_module("import skills.csv.stats.code.app", "csv.stats", "code.app", ": skills.csv.stats itself is the module of code/app/run.py: `from skills.csv.stats import main`")

    def test_a_skill_whose_name_begins_with_its_name(self):
        self.skill("acme", main="")
        self.skill("acme.lead-sync", main="")
        instead = "; mounted is acme.lead-sync: `from skills.acme.lead_sync import main`"
        self.no_module("from skills.acme.LeadSync import main", "acme", "LeadSync", instead)
        self.no_module("import skills.acme.leadsync.main", "acme", "leadsync.main", instead)
        self.no_module("import skills.acme.other", "acme", "other", "")

    def test_of_one_that_has_put_something_else_in_its_place(self):
        other = "type('Other', (), {'__slots__': (), '__path__': [], '__spec__': None})()"
        self.skill("a", main="import sys\nname = __name__\nsys.modules[name] = %s\n__import__(name + '.x')" % other)
        self.no_module("import skills.a", "a", "x", "")

    def test_a_name_that_is_missing_is_said_as_python_says_it(self):
        self.skill("a", "code/run.py", run="")
        self.error("from skills.a import main", "ImportError", "cannot import name 'main' from 'skills.a'")


if __name__ == "__main__":
    unittest.main()
