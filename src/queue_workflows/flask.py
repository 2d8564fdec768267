"""A Flask application as a host app: jobs run in its context, the operator's page is below an address.

`init_app(app)` is all. Nothing else of the package imports Flask.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from flask import Flask

from queue_workflows.config import current_config, set_invoke_context
from queue_workflows.errors import ConfigurationError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from starlette.requests import Request

    from queue_workflows.web.access.users import Authorize

# The user's name in a session of Flask, None for nobody.
UserOfSession = Callable[[Mapping[str, Any]], str | None]


def init_app(
    app: Flask,
    *,
    user: UserOfSession | None = None,
    authorize: Authorize | None = None,
    prefix: str = "/ops",
    **page: Any,
) -> None:
    """Run jobs in the application's context; with `user(session)` and `authorize` have the operator's page.

    `authorize(user, verb, target)` and the other options are those of `queue_workflows.web.create_app`. An
    invoke context that is configured already stays.
    """
    if (user is None) != (authorize is None):
        raise ConfigurationError(
            "init_app(user=…) and init_app(authorize=…) belong together",
            advice="name the signed-in user, and what it may do; or give neither, and there is no page",
        )
    if current_config().invoke_context is None or isinstance(current_config().invoke_context, _WithinTheApp):
        set_invoke_context(_WithinTheApp(app))
    if user is not None:
        _mount_page(app, user, prefix, {"authorize": authorize, **page})


class _WithinTheApp:
    """Around each job what Flask has around each request; of several applications it is the newest."""

    def __init__(self, app: Flask) -> None:
        self._app = app

    def __call__(self, _job: object, _run: object) -> AbstractContextManager[Any]:
        return self._app.app_context()


def _mount_page(app: Flask, user: UserOfSession, prefix: str, options: Mapping[str, Any]) -> None:
    """A WSGI server's thread would be kept by a stream, so the page is loaded again instead."""
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    if find_spec("a2wsgi") is None:
        raise ConfigurationError(
            "the operator's page in a WSGI application needs a2wsgi", advice="pip install a2wsgi"
        )

    def user_of(asked: Request) -> str | None:
        # Flask reads its session from whatever request has its cookie.
        session = app.session_interface.open_session(app, asked)  # type: ignore[arg-type]
        return None if session is None else user(session)

    below: dict[str, Any] = {f"/{prefix.strip('/')}": _Page({"user": user_of, "live": False, **options})}
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, below)  # type: ignore[method-assign]


class _Page:
    """The page for WSGI, made by the first request of each process: a fork leaves its threads behind."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._guard = threading.Lock()
        self._made_in: int | None = None
        self._application: Any = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with self._guard:
            if self._made_in != os.getpid():
                self._application, self._made_in = self._made(), os.getpid()
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer

    def _made(self) -> Any:
        from a2wsgi import ASGIMiddleware

        from queue_workflows.web import create_app

        page: Any = create_app(None, **self._options)
        return ASGIMiddleware(page)
