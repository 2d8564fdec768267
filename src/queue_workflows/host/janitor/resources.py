"""What a host app says of the things that its jobs own outside the database: how they are found and ended.

A thing has a name, and its owner holds the lock of that name from before the thing is made until after it is
gone. So a thing is an orphan if nobody holds its lock, and the janitor ends it (see `janitor`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.config import current_config, keep_resource_kind
from queue_workflows.errors import ConfigurationError
from queue_workflows.host.locks.lock import ELSEWHERE

DEADLINE_S: Final = 3600.0
TIMEOUT_S: Final = 60.0
LONGEST_NAME: Final = 200
_DOTS: Final = frozenset({".", ".."})


@dataclass(frozen=True)
class ResourceKind:
    """One kind of thing: its names, and what finds, ends and looks for one.

    `discover()` gives the names of all that are there, `teardown(name)` ends one and bears being called for
    one that is half gone, `verify(name)` says whether one is gone (else `discover` is asked again). A name
    has to match the whole `pattern`: what does not is never touched. An owner that is older than twice
    `deadline_s` is pointed out. `timeout_s` is how long a look, or the end of one thing, may take.
    """

    name: str
    pattern: str | re.Pattern[str]
    discover: Callable[[], Iterable[str]]
    teardown: Callable[[str], object]
    verify: Callable[[str], bool] | None = None
    deadline_s: float = DEADLINE_S
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z][\w.-]{0,62}", self.name, re.ASCII):
            raise ConfigurationError(
                f"ResourceKind({self.name!r:.80}): that is no name",
                advice="a letter, then up to 62 letters, digits and any of `_ . -`, as in 'test-server'",
            )
        object.__setattr__(self, "pattern", self._compiled())
        for argument in ("discover", "teardown", "verify"):
            given = getattr(self, argument)
            if not callable(given) and not (argument == "verify" and given is None):
                raise self._refused(f"{argument}={given!r:.80} must be a function")
        for argument in ("deadline_s", "timeout_s"):
            seconds = getattr(self, argument)
            if (
                isinstance(seconds, bool)
                or not isinstance(seconds, int | float)
                or not 0 < seconds < math.inf
            ):
                raise self._refused(f"{argument}={seconds!r:.80} must be a number of seconds")

    def takes(self, name: object) -> bool:
        """Whether a name is one of this kind, and fit to be one: no path, nothing that does not print."""
        return (
            isinstance(name, str)
            and 0 < len(name) <= LONGEST_NAME
            and name.isprintable()
            and "/" not in name
            and name not in _DOTS
            and not name.startswith(ELSEWHERE)
            and re.fullmatch(self.pattern, name) is not None
        )

    def is_gone(self, name: str) -> bool:
        """Whether nothing of this name is there any more."""
        return bool(self.verify(name)) if self.verify is not None else name not in set(self.discover())

    def _compiled(self) -> re.Pattern[str]:
        try:
            pattern = re.compile(self.pattern)
        except (re.error, TypeError) as wrong:
            raise self._refused(f"pattern={self.pattern!r:.80} is no regular expression: {wrong}") from None
        if not isinstance(pattern.pattern, str):
            raise self._refused("pattern must be a text, not bytes")
        return pattern

    def _refused(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"ResourceKind({self.name!r}): {what}")


def register_resource_kind(kind: ResourceKind) -> ResourceKind:
    """Have the janitors of this machine see to things of a kind; of two with one name the latest counts."""
    if not isinstance(kind, ResourceKind):
        raise ConfigurationError(
            f"register_resource_kind({kind!r:.80}) must be given a ResourceKind",
            advice="as in ResourceKind('server', r'test-[0-9]+', discover=…, teardown=…)",
        )
    keep_resource_kind(kind.name, kind)
    return kind


def registered_kinds() -> list[ResourceKind]:
    """All that were registered, in that order."""
    kinds: list[Any] = list(current_config().resource_kinds.values())
    return kinds
