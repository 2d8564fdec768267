"""What is decided of a request before its user is asked about: that it is refused, or is for anybody."""

from __future__ import annotations

import logging
from collections.abc import Collection

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from queue_workflows.web.access import requests as judging
from queue_workflows.web.addresses import MCP, flaw_of_address, path_below
from queue_workflows.web.rendering import answers, refusals, static_files

_log = logging.getLogger(__name__)


def refusal_before_users(
    request: Request, hosts: Collection[str] | None, *, read_only: bool, has_mcp: bool
) -> refusals.Refusal | None:
    """Why nobody may send this request, if that is so: by its host name, its address, or its origin."""
    if not judging.is_known_host(request, hosts):
        return refusals.UNKNOWN_HOST
    flaw = flaw_of_address(request)
    if flaw is not None or request.method in judging.SAFE_METHODS:
        return flaw
    if has_mcp and path_below(request) == MCP:
        return None if judging.may_be_program(request) else refusals.ELSEWHERE
    if read_only:
        return refusals.READ_ONLY
    return None if judging.is_from_our_page(request) else refusals.ELSEWHERE


def open_to_all(request: Request) -> Response | None:
    """What has no secret in it: the style sheet and scripts, and whether the program is there."""
    path = path_below(request)
    if path == "/healthz":
        return PlainTextResponse("ok\n", headers=answers.NOT_KEPT)
    if path.startswith("/static/"):
        hashed, _, name = path.removeprefix("/static/").partition("/")
        current = static_files.address_or_none(name)
        return static_files.answer(name, is_current=current == f"/static/{hashed}/{name}")
    return None


def note_refusal(request: Request, why: refusals.Refusal) -> None:
    """The one trace of a request that would have changed something and was refused."""
    if request.method not in judging.SAFE_METHODS:
        path, host = path_below(request)[:200], judging.host_of(request)[:200]
        _log.warning("refused: %s %r to %r: %s", request.method[:20], path, host, why.title)
