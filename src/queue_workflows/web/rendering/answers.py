"""A page, its JSON or a refusal as a response; nothing that is answered here is kept by a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from starlette.responses import HTMLResponse, Response

from queue_workflows.views.json_values import plain
from queue_workflows.web.page import Shown
from queue_workflows.web.rendering.refusals import SENT_BY_NOBODY, Refusal
from queue_workflows.web.rendering.templates import Frame, render

# Their filter is the word `q`.
_LISTS: Final = ("/jobs", "/runs")
NOT_KEPT: Final = {"Cache-Control": "no-store"}


def page(frame: Frame, shown: Shown) -> Response:
    """The whole page."""
    return HTMLResponse(render(shown.template, frame, shown.data), headers=NOT_KEPT)


def as_json(value: Any, status: int = 200) -> Response:
    """As the command prints it."""
    text = json.dumps(value, indent=2, default=plain, ensure_ascii=False)
    # A lone surrogate can be stored in no column of text, and in no response.
    return Response(text.encode("utf-8", "replace") + b"\n", status, NOT_KEPT, "application/json")


def refused(frame: Frame, why: Refusal, *, wants_json: bool = False) -> Response:
    """The refusal, as a page or for a program."""
    if wants_json:
        return as_json({"error": why.title, "text": why.text, "advice": why.advice}, why.status)
    stands = replace(frame, title=why.title, come_back_s=why.come_back_s, live_topic=None, command="")
    response = HTMLResponse(
        render("refusal.html", stands, {"why": why, "typed": _typed(frame, why)}), why.status, NOT_KEPT
    )
    if why.come_back_s is not None:
        response.headers["Retry-After"] = str(why.come_back_s)
    return response


def _typed(frame: Frame, why: Refusal) -> dict[str, str] | None:
    """The list and the filter that was written for it, where that is what is wrong."""
    address = urlsplit(frame.path)
    given = parse_qs(address.query).get("q")
    if not why.is_of_filter or given is None or address.path not in _LISTS:
        return None
    return {"list": address.path, "q": given[0]}


def sent_by_nobody(frame: Frame) -> Response:
    """The refusal of a program that shows no token, or one that is none of ours."""
    response = refused(frame, SENT_BY_NOBODY, wants_json=True)
    response.headers["WWW-Authenticate"] = "Bearer"
    return response
