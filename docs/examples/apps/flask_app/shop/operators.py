"""The operator's page below /ops, for the staff that the shop's own session knows."""

from __future__ import annotations

from typing import Any

from a2wsgi import ASGIMiddleware  # qwf
from flask import Flask
from starlette.requests import Request  # qwf
from werkzeug.middleware.dispatcher import DispatcherMiddleware  # qwf

from queue_workflows.web import create_app  # qwf


def with_page(app: Flask) -> Any:  # qwf
    """The shop's application and the page, which is loaded again by itself: WSGI has no stream."""

    def user_of(asked: Request) -> str | None:  # qwf
        kept = app.session_interface.open_session(app, asked)  # qwf
        return None if kept is None else kept.get("user")  # qwf

    page = create_app(None, user=user_of, authorize=lambda *_: True, live=False)  # qwf
    return DispatcherMiddleware(app.wsgi_app, {"/ops": ASGIMiddleware(page)})  # qwf
