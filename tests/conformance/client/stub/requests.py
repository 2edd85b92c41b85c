"""The two calls of `requests` that the specification's client makes, for hosts that do not have the package."""

import json as _json
import urllib.error
import urllib.request


class Response:
    def __init__(self, body):
        self._body = body

    def json(self):
        return _json.loads(self._body)


def post(url, json=None, headers=None):
    request = urllib.request.Request(
        url, data=_json.dumps(json).encode(), headers={"Content-Type": "application/json", **(headers or {})})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request) as answer:
            return Response(answer.read())
    except urllib.error.HTTPError as refused:
        return Response(refused.read())
