"""Marks of previews: each lets the user that saw one do exactly what it showed, once.

preview ── mark: nonce, until when, how many, signed with user, act, things and words ──> act
act     ── signature? still good? nonce unused? ──> done, and the nonce is remembered as used
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from queue_workflows.web.acts.act import Asked

LASTS_S: Final = 900
MOST_REMEMBERED: Final = 10_000
_PARTS: Final = 4


class Verdict(Enum):
    """What a mark is worth."""

    GOOD = "good"
    USED = "used"
    LATE = "late"
    OTHER = "other"


@dataclass(frozen=True)
class Judged:
    """A mark with what it is worth; `count` is what the preview had counted, None where it had not."""

    verdict: Verdict
    nonce: str = ""
    until: int = 0
    count: int | None = None


class Tokens:
    """The marks of one process, which alone has the key; a new process has everybody look again."""

    def __init__(self, *, now: Callable[[], float] = time.time, most: int = MOST_REMEMBERED) -> None:
        self._key = secrets.token_bytes(32)
        self._now = now
        self._most = most
        self._guard = threading.Lock()
        # Nonces that were used, with their last moment; in the order of use.
        self._used: dict[str, int] = {}
        # What was to be forgotten early: whatever ends no later is taken for used.
        self._forgotten = 0

    def issue(self, user: str, asked: Asked, count: int | None) -> str:
        """A new mark."""
        nonce, until = secrets.token_urlsafe(16), str(int(self._now()) + LASTS_S)
        counted = "" if count is None else str(count)
        return f"{nonce}.{until}.{counted}.{self._signature(user, asked, nonce, until, counted)}"

    def judge(self, token: str, user: str, asked: Asked) -> Judged:
        """What a mark is worth for this user and these things."""
        parts = token.split(".")
        if len(parts) != _PARTS:
            return Judged(Verdict.OTHER)
        nonce, until, counted, signature = parts
        with self._guard:
            if nonce in self._used:
                return Judged(Verdict.USED, nonce)
        expected = self._signature(user, asked, nonce, until, counted)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return Judged(Verdict.OTHER)
        ends = int(until)
        if ends <= max(self._now(), self._forgotten):
            return Judged(Verdict.LATE)
        return Judged(Verdict.GOOD, nonce, ends, int(counted) if counted else None)

    def use(self, judged: Judged) -> bool:
        """Use a good mark up; whether this is the first time."""
        with self._guard:
            if judged.nonce in self._used or judged.until <= self._forgotten:
                return False
            now = self._now()
            for nonce in [nonce for nonce, until in self._used.items() if until <= now]:
                del self._used[nonce]
            while len(self._used) >= self._most:
                oldest = next(iter(self._used))
                self._forgotten = max(self._forgotten, self._used.pop(oldest))
            self._used[judged.nonce] = judged.until
        return True

    def _signature(self, user: str, asked: Asked, *parts: str) -> str:
        # A browser sends a field that was left empty, which a link to the preview did not name.
        words = sorted((name, value) for name, value in asked.words.items() if value)
        told = json.dumps([user, asked.act, asked.targets, asked.where, words, parts])
        return hmac.new(self._key, told.encode(), hashlib.sha256).hexdigest()
