"""The operator's page on a port of its own, for a real browser; a request names its user by a header."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import uvicorn

from queue_workflows.web import Web, create_app

OPERATOR: Final = "ada"
VIEWER: Final = "vic"
# The button of a preview that does what was shown.
CONFIRM: Final = "form.act button[formaction]"


@dataclass
class BrowsedPage:
    """Where the page answers, and the application behind it."""

    url: str
    app: Web


def only_looks(user: str, verb: str, _target: str) -> bool:
    """The rights of a test's two users: one may do everything, the other look."""
    return user == OPERATOR or (user == VIEWER and verb == "look")


@contextmanager
def browsed_page(
    dsn: str, *, authorize: Callable[[str, str, str], bool] = only_looks, **options: Any
) -> Iterator[BrowsedPage]:
    """The page over one database, served by a thread of this process."""
    app = create_app(dsn, authorize=authorize, user=lambda request: request.headers.get("x-user"), **options)
    with running_page(app) as page:
        yield page


@contextmanager
def running_page(app: Web) -> Iterator[BrowsedPage]:
    """This page, served by a thread of this process, and closed with it."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield BrowsedPage(f"http://127.0.0.1:{bound.getsockname()[1]}", app)
        finally:
            app.hub.close()
            server.should_exit = True
            thread.join()
            app.close()
