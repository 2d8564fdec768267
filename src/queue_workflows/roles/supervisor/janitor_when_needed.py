"""When a supervisor wants a janitor beside its workers: as soon as there is something to look after."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from queue_workflows.engine.upkeep.run_files import has_places
from queue_workflows.host.janitor.resources import registered_kinds
from queue_workflows.roles.supervisor.slots import JANITOR, Spec
from queue_workflows.settings import Settings

_LOOK_EVERY_S: Final = 60.0


class Attending:
    """`is_open` where nobody has said whether there shall be one."""

    def __init__(
        self, settings: Settings, *, is_open: bool = True, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._is_open = is_open
        self._now = now
        self._look_at = now()

    def due(self) -> Sequence[Spec]:
        """The janitor to start now: the first run with a directory of its own may come at any time."""
        if not self._is_open or self._now() < self._look_at:
            return ()
        self._look_at = self._now() + _LOOK_EVERY_S
        self._is_open = not (registered_kinds() or has_places(self._settings))
        return () if self._is_open else (JANITOR,)
