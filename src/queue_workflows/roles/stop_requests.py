"""Who asked a worker to stop, and how urgently; told each signal as it is heard.

    the supervisor asks, with a signal of its own ──> what outlasts the grace is given back, uncounted
    the supervisor has ended                     ──> the same
    any other signal, though a supervisor is there and has not asked ──> what outlasts the grace has crashed

A job that sends its own worker SIGTERM, itself or through a child, and then does not end would else be given
back and claimed again for ever. A worker without a supervisor cannot know, and believes every stop.
"""

from __future__ import annotations

import os
import signal

from queue_workflows.host import last_word
from queue_workflows.host.hardening import ASKED


class StopRequests:
    """The guardian's, in its thread."""

    def __init__(self, launcher_pid: int | None) -> None:
        self._launcher_pid = launcher_pid
        self._heard: list[bool] = []

    def hear(self, number: int) -> bool:
        """Whether this is the second time, which ends the jobs at once.

        A service manager that signals all processes, and the supervisor that it told as well, are one stop.
        """
        is_asked = number == ASKED
        is_again = is_asked in self._heard
        self._heard.append(is_asked)
        return is_again

    @property
    def is_a_strangers(self) -> bool:
        """Whether a job may have sent the stop: a supervisor is there, and has not asked."""
        return (
            bool(self._heard)
            and not any(self._heard)
            and last_word.own.has_pipe
            and os.getppid() == self._launcher_pid
        )


def name_of(number: int) -> str:
    """A stop signal, for the log."""
    return "the supervisor" if number == ASKED else signal.Signals(number).name
