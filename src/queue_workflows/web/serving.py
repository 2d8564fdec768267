"""The page as a program of its own: bound, served from a thread, and ended with its streams.

It is for one user of this machine. Without a way to sign in that a network could be trusted with, it binds to
nothing but loopback; an application with its own users mounts `create_app` instead.
"""

from __future__ import annotations

import gc
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import uvicorn

from queue_workflows.db.connections.dsn import parse_dsn
from queue_workflows.db.connections.engine import Database
from queue_workflows.errors import ConfigurationError
from queue_workflows.settings import Settings
from queue_workflows.web.access.bearer import BearerToken
from queue_workflows.web.access.further_token import further_token
from queue_workflows.web.access.requests import LOOPBACK_NAMES, is_loopback
from queue_workflows.web.access.sign_in import KEY_BYTES, TOKEN, SignIn, kept_key
from queue_workflows.web.access.users import Users
from queue_workflows.web.app import Web

PORT: Final = 8427
_BEGINS_WITHIN_S: Final = 30.0
_ENDS_WITHIN_S: Final = 10.0
_ANSWERS_WITHIN_S: Final = 5.0
# For how long a page that ends with what it shows waits until that was seen.
_SHOWS_THE_LAST_S: Final = 10.0


@dataclass(frozen=True)
class Served:
    """A page that answers now."""

    url: str
    sign_in: SignIn
    # The token of programs, where they may ask.
    mcp_token: str | None = None

    @property
    def first_url(self) -> str:
        """The address that signs in the browser that opens it first."""
        return f"{self.url}/?token={self.sign_in.token}"


@contextmanager
def served_page(
    database: str | Database | None,
    *,
    user: str,
    settings: Settings,
    host: str = "127.0.0.1",
    port: int = PORT,
    read_only: bool = False,
    names: Sequence[str] = (),
    mcp_acts: Collection[str] | None = None,
    keeps_key: bool = True,
) -> Iterator[Served]:
    """Serve the page from a thread meanwhile; with `mcp_acts` programs ask too, and may do these acts.

    Without `keeps_key` it ends with what it shows: its cookies are good until then alone, and those that
    watch see the last of it.
    """
    if not is_loopback(host):
        raise ConfigurationError(
            f"the page does not bind to {host}: there it would ask nobody for a password",
            advice="keep it on 127.0.0.1 behind a tunnel, or mount queue_workflows.web.create_app in an app"
            " that knows its users",
        )
    key = kept_key(settings.data_dir) if keeps_key else secrets.token_bytes(KEY_BYTES)
    token = None if mcp_acts is None else BearerToken(user)
    with _bound(host, port) as bound:
        at = bound.getsockname()[1]
        sign_in = SignIn(user, key, good_for=f"{at} {_place_of(database)}", port=at)
        web = Web(
            database,
            users=Users(sign_in.user_of, lambda _user, _verb, _target: True),
            read_only=read_only,
            hosts=LOOPBACK_NAMES | {host.lower(), *(name.lower() for name in names)},
            sign_in=sign_in,
            settings=settings,
            mcp_acts=mcp_acts,
            mcp_token=token,
        )
        try:
            with _running(web, bound, shows_the_last_s=0 if keeps_key else _SHOWS_THE_LAST_S):
                yield Served(_url(host, at), sign_in, None if token is None else token.token)
        finally:
            web.close()


def further_url(settings: Settings, *, host: str, port: int) -> str:
    """The address that signs in one more browser at a page of this user that runs already."""
    try:
        socket.create_connection((host, port), timeout=_ANSWERS_WITHIN_S).close()
    except OSError as exc:
        raise ConfigurationError(
            f"no page answers on {host}, port {port}: {exc.strerror or exc}",
            advice="start one by `qwf web` or `qwf up`, or name the port of the one that runs by --port",
        ) from exc
    token = further_token(kept_key(settings.data_dir), port=port, now=time.time())
    return f"{_url(host, port)}/?{TOKEN}={token}"


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _place_of(database: str | Database | None) -> str:
    """Which database it is, without the secrets that lead there: these may change while a page is open."""
    dsn = database.dsn if isinstance(database, Database) else database
    params = {} if dsn is None else parse_dsn(dsn)
    return json.dumps([params.get(name) for name in ("host", "hostaddr", "port", "dbname", "service")])


def freeze_what_is_loaded() -> None:
    """Spare the collector of garbage what a process of our own has loaded by now and keeps until its end.

    A page of a large run makes thousands of objects, and a collection that goes through all modules for them
    takes longer than the page.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except OSError as exc:
        raise ConfigurationError(
            f"the page cannot listen on {host}, port {port}: {exc.strerror or exc}",
            advice="another program has it, perhaps another `qwf web`: name a port by --port, 0 for any",
        ) from exc
    with bound:
        yield bound


@contextmanager
def _running(web: Web, bound: socket.socket, *, shows_the_last_s: float) -> Iterator[None]:
    """A server in a thread, which hears no signals: the command does."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    server = uvicorn.Server(
        uvicorn.Config(
            web, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2, ws="none"
        )
    )
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [bound]}, name="qwf-web-server", daemon=True
    )
    thread.start()
    begun = threading.Event()
    for _ in range(int(_BEGINS_WITHIN_S / 0.02)):
        if server.started or not thread.is_alive():
            break
        begun.wait(0.02)
    if not server.started:
        raise ConfigurationError("the page's server did not start", advice="its log says why; try again")
    try:
        yield
        if shows_the_last_s:
            web.hub.show_the_last(shows_the_last_s)
    finally:
        web.hub.close()
        server.should_exit = True
        thread.join(_ENDS_WITHIN_S)
