"""No job fails, and nothing remains unwritten, because somebody's exporter or span processor raised."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec

P = ParamSpec("P")
_log = logging.getLogger(__name__)


def harmless(tell: Callable[P, None]) -> Callable[P, None]:
    """A function that does what `tell` does, but says each of its errors once, and no more than that."""

    @wraps(tell)
    def told(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception as exc:
            _say(" ".join(f"{type(exc).__name__}: {exc}".split()))

    return told


@lru_cache(maxsize=64)
def _say(what: str) -> None:
    _log.warning("telemetry: %s", what)
