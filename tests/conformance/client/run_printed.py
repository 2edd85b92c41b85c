"""Runs spec_client.py, the specification's own client, unchanged, against the endpoint given.

The printed example talks to http://localhost:8080/rpc and has no token; only the address that `requests.post` is given
is changed on its way out, and the token of $SKILLS_TOKEN added where there is one.
"""

import os
import resource
import runpy
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PRINTED = "http://localhost:8080/rpc"

for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]
try:
    import requests
    print(f"using the package requests {requests.__version__}", file=sys.stderr)
except ImportError:
    sys.path.insert(0, os.path.join(HERE, "stub"))
    import requests
    print("using the stand-in for requests, which is not installed", file=sys.stderr)

# It waits and reads without end itself, and the server may be as wrong as can be.
SECONDS_MAX = int(sys.argv[2])
MEMORY_BYTES_MAX = 1 << 30


def too_late(*_):
    sys.exit(f"the client has not come to its end in {SECONDS_MAX} s")


signal.signal(signal.SIGALRM, too_late)
signal.alarm(SECONDS_MAX)
resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))

endpoint = sys.argv[1]
post = requests.post


def to_the_endpoint(url, *args, **kwargs):
    if "SKILLS_TOKEN" in os.environ:
        kwargs["headers"] = {**(kwargs.get("headers") or {}), "Authorization": "Bearer " + os.environ["SKILLS_TOKEN"]}
    return post(endpoint if url == PRINTED else url, *args, **kwargs)


requests.post = to_the_endpoint
runpy.run_path(os.path.join(HERE, "spec_client.py"), run_name="__main__")
