"""Tokens for further browsers: made with the key that signs the page's cookies.

    qwf web --link ── key ──> issued.nonce.signature ──> the running page: ours? of this port? young? unused?

The page that runs and the command that makes a token say nothing to each other: a reader of the key could
make a cookie as well, so a token gives nothing that its maker has not. It goes into an address, which others
may read later, so it is good once, for some minutes, and at the page that was served when it was made.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
from typing import Final

LASTS_S: Final = 300
_LONGEST: Final = 200


def further_token(key: bytes, *, port: int, now: float) -> str:
    """A token that signs in one more browser at the page on this port."""
    issued, nonce = str(int(now)), secrets.token_urlsafe(16)
    return f"{issued}.{nonce}.{_signature(key, port, issued, nonce)}"


class FurtherTokens:
    """Which tokens a page takes; it remembers those that were used for as long as they would be good."""

    def __init__(self, key: bytes, *, port: int, begun: float) -> None:
        self._key = key
        self._port = port
        # In whole seconds, as tokens are dated.
        self._begun = int(begun)
        self._guard = threading.Lock()
        self._used: dict[str, int] = {}

    def take(self, given: str, now: float) -> bool:
        """Whether this token is good; from now on it is not any more."""
        issued, _, rest = given.partition(".")
        nonce, _, signature = rest.partition(".")
        if len(given) > _LONGEST or not issued.isascii() or not issued.isdigit():
            return False
        ours = _signature(self._key, self._port, issued, nonce)
        if not hmac.compare_digest(signature.encode(), ours.encode()):
            return False
        if not max(self._begun, now - LASTS_S) <= int(issued) <= now + 1:
            return False
        with self._guard:
            self._used = {one: at for one, at in self._used.items() if at >= now - LASTS_S}
            if nonce in self._used:
                return False
            self._used[nonce] = int(issued)
        return True


def _signature(key: bytes, port: int, issued: str, nonce: str) -> str:
    # An object, so that it is never what a cookie's signature is of: that is a list.
    told = json.dumps({"further": nonce, "port": port, "issued": issued})
    return hmac.new(key, told.encode(), hashlib.sha256).hexdigest()
