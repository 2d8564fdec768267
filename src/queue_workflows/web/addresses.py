"""Addresses of requests: where the page is mounted, what is asked for, and the words behind it."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.types import Scope

from queue_workflows.web.access.requests import RequestRefused
from queue_workflows.web.rendering import refusals, texts

LONGEST_ADDRESS: Final = 16_384
MOST_WORDS: Final = 50
MCP: Final = "/mcp"
# What of an address stays as it is: it was encoded where it was made.
_IN_QUERIES: Final = "%!$&'()*+,;=:@/?-._~[]"


def placed(scope: Scope, prefix: str) -> Scope:
    """The scope where the page is mounted, as a server or a router said, or else as the host app did.

    The words behind the address are in ASCII from here on: a browser writes them so, others may not.
    """
    query = quote(scope.get("query_string", b""), safe=_IN_QUERIES).encode()
    # Some servers leave half of a surrogate pair for what is no UTF-8; no text here has one.
    told = {**scope, "path": scope["path"].encode("utf-8", "replace").decode(), "query_string": query}
    if prefix and not scope.get("root_path"):
        # A proxy in between may have taken the prefix off.
        path = told["path"].removeprefix(prefix)
        is_whole = path != told["path"] and path[:1] in ("", "/")
        told |= {
            "root_path": prefix,
            "path": prefix + ((path or "/") if is_whole else told["path"]),
        }
    return told


def path_below(request: Request) -> str:
    """The path without what the app is mounted under."""
    path: str = request.scope["path"]
    root = request.scope.get("root_path", "").rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def flaw_of_address(request: Request) -> refusals.Refusal | None:
    """Why no page can be asked for by it, if that is so."""
    path: str = request.scope["path"]
    if len(request.scope["query_string"]) + len(path) > LONGEST_ADDRESS:
        return refusals.Refusal(414, "This address is too long")
    return refusals.NO_NUL if "\0" in path else None


def page_named(request: Request, *, as_json: bool) -> str:
    """What `authorize` is asked about: a page, and its JSON by the same name."""
    path = path_below(request)
    if not as_json:
        return path
    return "/" if path == "/overview.json" else path.removesuffix(".json")


def words_of(request: Request) -> dict[str, str]:
    """The words behind the address by their names, or `RequestRefused`."""
    try:
        found = dict(parse_qsl(_query(request), keep_blank_values=True, max_num_fields=MOST_WORDS))
    except ValueError:
        raise RequestRefused(400, f"An address has at most {MOST_WORDS} words behind it") from None
    if any("\0" in part for pair in found.items() for part in pair):
        raise RequestRefused(400, texts.NO_NUL)
    return found


def path_with_words(request: Request) -> str:
    """As it stands in a link."""
    query = _query(request)
    return quote(path_below(request), safe="/:@") + (f"?{query}" if query else "")


def wants_json(request: Request) -> bool:
    """Whether a program asks, so that a refusal is JSON as well."""
    path: str = request.scope["path"]
    return path.endswith((".json", MCP))


def _query(request: Request) -> str:
    """The words behind the address as they came."""
    query: bytes = request.scope.get("query_string", b"")
    return query.decode("ascii")
