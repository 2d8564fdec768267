"""Signing in to a page on this machine: the printed address has a token, which is good once, for a cookie.

    start ── prints URL?token=T ──> GET with T ──> 303 without it, Set-Cookie ──> every request has the cookie
                                        │ T was used, or is none of ours: 401

The cookie is signed with a key that outlives the process, so that a page which is open goes on after a
restart. Its signature holds the page that it is good for, by port and database: cookies know no ports, and
the pages of one machine share the key. No secret stays in a URL: the token leads away from itself, and is of
no use afterwards. Another browser is signed in by a token of `qwf web --link`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from queue_workflows.errors import ConfigurationError
from queue_workflows.web.access.further_token import FurtherTokens

TOKEN: Final = "token"  # noqa: S105 - its name in the address
COOKIE_LASTS_S: Final = 7 * 86_400
KEY_BYTES: Final = 32


class SignIn:
    """One user of this machine, which has read the address that the program printed."""

    def __init__(
        self,
        user: str,
        key: bytes,
        *,
        good_for: str = "",
        port: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._user = user
        self._good_for = good_for
        self._key = key
        self._now = now
        self._guard = threading.Lock()
        self._token: str | None = secrets.token_urlsafe(24)
        self._further = FurtherTokens(key, port=port, begun=now())

    @property
    def token(self) -> str | None:
        """What the printed address has to end with; None once it was used."""
        return self._token

    def user_of(self, request: Request) -> str | None:
        """The user, if the request has a cookie of ours that is still good."""
        given = request.cookies.get(_cookie_name(request), "")
        until, _, signature = given.partition(".")
        if not until.isascii() or not until.isdigit() or len(until) > 12:
            return None
        is_ours = hmac.compare_digest(signature.encode(), self._signature(until).encode())
        return self._user if is_ours and int(until) > self._now() else None

    def take_token(self, request: Request) -> Response | None:
        """The way on for a request with a token, to the same page without it.

        None if it has none that is good.
        """
        given = request.query_params.get(TOKEN)
        if given is None:
            return None
        if not self._is_first(given) and not self._further.take(given, self._now()):
            return None
        until = str(int(self._now()) + COOKIE_LASTS_S)
        response = RedirectResponse(str(request.url.remove_query_params(TOKEN)), status_code=303)
        response.set_cookie(
            _cookie_name(request),
            f"{until}.{self._signature(until)}",
            max_age=COOKIE_LASTS_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    def _is_first(self, given: str) -> bool:
        with self._guard:
            if self._token is None or not hmac.compare_digest(given.encode(), self._token.encode()):
                return False
            self._token = None
        return True

    def _signature(self, until: str) -> str:
        told = json.dumps([self._user, self._good_for, until])
        return hmac.new(self._key, told.encode(), hashlib.sha256).hexdigest()


def _cookie_name(request: Request) -> str:
    """Of its own for each port, as cookies of one host know no ports."""
    return f"qwf_web_{request.url.port or request.url.scheme}"


def kept_key(directory: Path) -> bytes:
    """The key that signs cookies, from a file that only its owner may read; made where there is none."""
    path = directory / "web-key"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            _make(path)
        key = _read(path)
    except OSError as exc:
        raise ConfigurationError(
            f"the key that signs the page's cookies cannot be kept in {directory}: {exc.strerror}",
            advice="let QWF_DATA_DIR name a directory that this user may write",
        ) from exc
    if len(key) != KEY_BYTES:
        raise ConfigurationError(f"{path} is no key of ours", advice="remove it; a new one is made")
    return key


def _make(path: Path) -> None:
    """Whole or not at all: a second process that starts at this moment reads what is there."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, secrets.token_bytes(KEY_BYTES))
        os.close(fd)
        os.link(draft, path)
    finally:
        draft.unlink()


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ConfigurationError(
                f"{path} may be read by others or is another user's",
                advice="remove it; a new one is made",
            )
        return os.read(fd, KEY_BYTES + 1)
    finally:
        os.close(fd)
