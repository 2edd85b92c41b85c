"""The least that does for one run what a sandbox without warmed interpreters has to do: reads the job from standard input,
compiles the code, calls it and writes the result, or why there is none."""

import importlib.util
import io
import json
import os
import random
import re
import sys
import traceback


def run(job):
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_code", None))
    try:
        exec(compile(job["code"], "run_code.py", "exec", dont_inherit=True), module.__dict__)
        return {"status": "completed", "output": getattr(module, job["function"])(job["args"])}
    except Exception:
        return {"status": "failed", "error": traceback.format_exc()}


json.dump(run(json.load(sys.stdin)), sys.stdout)
