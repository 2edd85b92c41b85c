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
            self.error(line, "ModuleNotFoundError", wanted + " (mounted: salesforce.other)")
        self.error("from skills.salesforce import leads", "ModuleNotFoundError", "skill 'salesforce.leads' is not mounted")
        self.error("from skills import gdrive", "ModuleNotFoundError", "skill 'gdrive' is not mounted")

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


if __name__ == "__main__":
    unittest.main()
