"""Fetches a URL into a blob, through the run's gate."""

import http.client
import os
import re
import socket
import tempfile
import urllib.error
import urllib.parse
import urllib.request

import runtime
from runtime import blobs, log

MAX_BYTES_DEFAULT = 10 * 1024 * 1024
MAX_BYTES_MAX = 1024 * 1024 * 1024
TIMEOUT_S_MAX = 600
PREVIEW_CHARS = 300
PIECE_BYTES = 64 * 1024
# What may be a blob's kind: `type/subtype` and parameters.
KIND = re.compile(r"(?=.{,255}$)[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+ *(;[ -~]*)?")
KIND_DEFAULT = "application/octet-stream"
# How http.client says what the gate has answered to CONNECT.
REFUSED_TUNNEL = re.compile("Tunnel connection failed: 403 (.*)")


def main(args):
    url = check_url(args.get("url"))
    method = args.get("method", "GET")
    if method not in ("GET", "HEAD"):
        raise ValueError(f"method is GET or HEAD, not {method!r:.40}")
    max_bytes = check_number("max_bytes", args.get("max_bytes", MAX_BYTES_DEFAULT), 1, MAX_BYTES_MAX)
    timeout_s = check_number("timeout_s", args.get("timeout_s", 30), 0.1, TIMEOUT_S_MAX)
    headers = {"Accept": str(args.get("accept") or "*/*"), "User-Agent": "skillgate-http-fetch/0.1"}
    check_network(url)
    request = urllib.request.Request(url, headers=headers, method=method)
    with _open(request, timeout_s) as response:
        check_gate(response)
        answer = {
            "status": response.status,
            "url": response.url,
            "content_type": check_kind(response.headers.get("Content-Type")),
        }
        if method == "GET":
            answer.update(_store(response, answer["content_type"], int(max_bytes)))
    log.info(f"{method} {answer['url']}: {answer['status']}")
    size = f", {answer['bytes']} bytes" if "bytes" in answer else ""
    runtime.summary(f"{method} {answer['url']}: status {answer['status']}{size}.")
    return answer


def check_url(url):
    if not isinstance(url, str):
        raise ValueError("url is missing")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http or https URL: {url!r:.200}")
    if parts.username or parts.password:
        raise ValueError("a URL with a user name or password is refused")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"percent-encode spaces, control characters and those outside ASCII in the URL: {url!r:.200}")
    try:
        parts.port  # which is looked at when it is asked for
    except ValueError:
        raise ValueError(f"the port of the URL is no number up to 65535: {url!r:.200}") from None
    return url


def check_number(name, value, low, high):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{name} is not a number from {low} to {high}: {value!r:.40}")
    return value


def check_kind(said):
    """A server may say anything."""
    return said if said and KIND.fullmatch(said) else KIND_DEFAULT


def check_network(url):
    """The gate is a proxy that the environment names; without one there is no way out."""
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in urllib.request.getproxies_environment():
        raise PermissionError(
            "this run has no network: the policy grants none of what http.fetch asks for in permissions.network"
        )


def check_gate(response):
    """Over http the gate answers in the server's place what it refuses, and says by this header that it does."""
    if not response.headers.get("Proxy-Status", "").startswith("skillgate;"):
        return
    if response.status == 403:
        raise PermissionError(f"the gate refuses: {response.reason}")
    raise (TimeoutError if response.status == 504 else ConnectionError)(response.reason)


def _open(request, timeout_s):
    # Only these: the default opener would read file: and ftp: URLs too, after a redirect for example.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        _KeepMethod(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _KeepErrors(),
    ):
        opener.add_handler(handler)
    host = urllib.parse.urlsplit(request.full_url).hostname
    try:
        return opener.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as exc:
        # Such as too many redirects, which it says in several lines.
        raise ConnectionError(f"{host}: {' '.join(str(exc).split())}") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as exc:
        cause = getattr(exc, "reason", exc)
        refused = REFUSED_TUNNEL.search(str(cause))
        if refused:
            raise PermissionError(f"the gate refuses: {refused[1]}") from None
        if isinstance(cause, (TimeoutError, socket.timeout)):
            raise TimeoutError(f"{host} did not answer within {timeout_s} seconds") from None
        raise ConnectionError(f"cannot reach {host}: {cause}") from None


class _KeepMethod(urllib.request.HTTPRedirectHandler):
    """Python before 3.13 goes on with GET where HEAD was redirected."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and req.get_method() == "HEAD":
            request.method = "HEAD"
        return request


class _KeepErrors(urllib.request.HTTPDefaultErrorHandler):
    """An answer of 400 and above is an answer."""

    def http_error_default(self, req, fp, code, msg, hdrs):
        return fp


def _read(response):
    """http.client takes an answer that breaks off for one that has ended, unless it comes in chunks."""
    try:
        piece = response.read(PIECE_BYTES)
    except (TimeoutError, socket.timeout):
        raise TimeoutError("the server went silent in the middle of its answer") from None
    except (http.client.HTTPException, OSError) as exc:
        raise ConnectionError(f"the answer broke off: {exc}") from None
    if not piece and response.length:
        raise ConnectionError(f"the answer broke off {response.length} bytes before its end")
    return piece


def _store(response, content_type, max_bytes):
    """Writes the body to a blob by way of a file, so that its size does not matter."""
    handle, path = tempfile.mkstemp()
    try:
        with open(handle, "wb+") as body:
            size, truncated = 0, False
            while True:
                piece = _read(response)
                if not piece:
                    break
                if size + len(piece) > max_bytes:
                    piece, truncated = piece[: max_bytes - size], True
                body.write(piece)
                size += len(piece)
                if truncated:
                    break
            body.seek(0)
            head = body.read(PREVIEW_CHARS * 4)
        answer = {"bytes": size, "truncated": truncated, "blob": blobs.write_file(path, kind=content_type)}
    finally:
        os.unlink(path)
    media = content_type.split(";")[0].strip().lower()
    if media.startswith("text/") or media.endswith(("json", "xml")):
        answer["preview"] = _text(head, response.headers.get_content_charset("utf-8"))[:PREVIEW_CHARS]
    return answer


def _text(head, charset):
    """As the server says that it is encoded, if that is an encoding."""
    try:
        return head.decode(charset, "replace")
    except (LookupError, ValueError):  # ValueError: its name may have a null character
        return head.decode("utf-8", "replace")
