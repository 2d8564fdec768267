"""Where a request to stop a worker comes from, and how urgent it is; told each signal as it is heard.

    the supervisor asks, with a signal of its own ──> what outlasts the grace is given back, uncounted
    the supervisor has ended, as the kernel says ──> the same
    any other signal, though a supervisor is there and has not asked ──> what outlasts the grace has crashed

A job that sends its own worker SIGTERM, itself or through a child, and then does not end would else be given
back and claimed again for ever. A worker without a supervisor cannot know, and believes every stop.
"""

from __future__ import annotations

import logging
import math
import os
import signal
from typing import Final

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.host.kernel import LEFT_ALONE
from queue_workflows.host.processes import last_word
from queue_workflows.host.processes.harden import ASKED, ENDING
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs

_log = logging.getLogger(__name__)

# Where the kernel has no such signals these are SIGTERM, which may be anybody's.
_OF_THE_SUPERVISOR: Final = {
    number: name
    for number, name in ((ASKED, "the supervisor"), (LEFT_ALONE, "the end of the supervisor"))
    if number not in ENDING
}


class StopRequests:
    """The guardian's, in its thread."""

    def __init__(
        self, holdings: HeldJobs, *, grace_s: float, asked_s: float, has_hooks: bool, launcher_pid: int | None
    ) -> None:
        """Hooks are asked to end `asked_s` before the grace is over."""
        self._holdings = holdings
        self._grace_s = grace_s
        self._asked_s = asked_s
        self._has_hooks = has_hooks
        self._launcher_pid = launcher_pid
        self._heard: set[int | None] = set()

    def hear(self, number: int) -> None:
        """The first lets the jobs finish within the grace, the second ends them at once."""
        # A service manager that signals all processes, and the supervisor that it told too, are one stop.
        by = number if number in _OF_THE_SUPERVISOR else None
        is_again = by in self._heard
        self._heard.add(by)
        if is_again and by == LEFT_ALONE:
            return
        grace_s = 0.0 if is_again else self._grace_s
        if grace_s or not self._grace_s:
            _log.info("%s: stopping, with %g s for the current job", _name_of(number), grace_s)
        now = time.monotonic()
        within_s = grace_s - min(self._asked_s, grace_s / 2)
        self._holdings.tell_all(lambda held: held.wind_up(self._asks_at(held, now, within_s), now + grace_s))

    def _asks_at(self, held: HeldJob, now: float, within_s: float) -> float:
        """When to ask a job to stop: no function is, which has all of the grace to end by itself.

        Hooks say what they have when they are asked; those of the background would not end soon.
        """
        if not self._has_hooks:
            return math.inf
        return now if getattr(held.job, "background", False) else now + within_s

    @property
    def is_a_strangers(self) -> bool:
        """Whether a job may have sent the stop: a supervisor is there, and has not asked."""
        return self._heard == {None} and last_word.own.has_file and os.getppid() == self._launcher_pid


def _name_of(number: int) -> str:
    """A stop signal, for the log."""
    return _OF_THE_SUPERVISOR.get(number) or signal.Signals(number).name
