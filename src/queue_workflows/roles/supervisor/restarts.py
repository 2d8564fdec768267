"""What becomes of a worker that has ended: pure decisions from how it ended and how long it lived."""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from queue_workflows.errors import ExitCode
from queue_workflows.host.processes.harden import ASKED, ENDING, RETIRE

# Nothing gets better before somebody changes the command, the configuration or the schema.
HOPELESS: Final = frozenset({ExitCode.USAGE, ExitCode.CONFIGURATION, ExitCode.SCHEMA})
# Ends that a worker chose, or that somebody asked it for: no job is to blame for what it could not give back.
_ORDERLY: Final = HOPELESS | {
    ExitCode.DONE,
    ExitCode.UNREACHABLE,
    ExitCode.DEADLINE,
    ExitCode.STOPPED,
    ExitCode.LEASE_LOST,
    ExitCode.INTERRUPTED,
    ExitCode.TERMINATED,
}


def acted_on(status: int, *, chosen: bool) -> int:
    """What an end is taken for: a status that our code did not choose says nothing, whatever its number."""
    return status if chosen or status < 0 else ExitCode.FAILED


def crashed(status: int) -> bool:
    """Whether the jobs that a process held may have caused this end, a status to act on.

    Our code hears every signal that asks it to stop, so one that was killed by such a signal was not asked.
    """
    return status not in _ORDERLY


def describe(status: int, *, chosen: bool = True) -> str:
    """A status in words: the signal, or the code and what it means if our code chose it."""
    if -status in (RETIRE, ASKED) and -status not in ENDING:
        return "ended as it was told to, before it had begun"
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    if not chosen:
        return f"ended with {status} unannounced, as by os._exit() in a job"
    meanings = [f" ({code.meaning.rstrip('.')})" for code in ExitCode if code == status]
    return "".join([f"ended with {status}", *meanings])


@dataclass(frozen=True)
class Next:
    """What follows: a start after `delay_s`; for None, no more; `parked` waits for the operator besides."""

    delay_s: float | None
    deaths: int = 0
    parked: bool = False

    def in_words(self, status: int) -> str:
        """What the log says beside how a process ended."""
        if self.delay_s is None:
            return "its work is done" if status == ExitCode.DONE else "it is not started again"
        if self.parked:
            return "starts when it is switched on"
        when = "again at once" if self.delay_s == 0 else f"again in {self.delay_s:.1f} s"
        return f"{when}, though that may not help before somebody acts" if status in HOPELESS else when


@dataclass(frozen=True)
class Restarts:
    """How soon a worker is started again, in seconds.

    The first death is made good at once, because a job may be waiting; those that follow before a worker has
    lived `healthy_s` wait from `first_s` on, doubled each time. One that ends well is replaced at once, but
    not much oftener than every `first_s`.
    """

    first_s: float = 1.0
    most_s: float = 60.0
    healthy_s: float = 60.0

    def after(
        self, status: int, *, lived_s: float, deaths: int, last_ends: Collection[int], chance: float
    ) -> Next:
        """What follows this end; `deaths` is how many young ones there were before it, one after the other.

        `last_ends` are the statuses with which its work is done, for a worker that was told to end then.
        """
        if status in last_ends:
            return Next(None)
        if status in HOPELESS:
            return Next(_between_half_and_all(self.most_s, chance))
        if status == ExitCode.DONE:
            # Told to by somebody, or through with its share, which may be one short job: that is no death.
            pause_s = self.first_s if lived_s < self.first_s else 0.0
            return Next(_between_half_and_all(pause_s, chance))
        deaths = deaths + 1 if lived_s < self.healthy_s else 1
        whole = 0.0 if deaths == 1 else min(self.most_s, self.first_s * 2.0 ** min(deaths - 2, 30))
        return Next(_between_half_and_all(whole, chance), deaths, parked=status == ExitCode.STOPPED)


@dataclass(frozen=True)
class BoundedRestarts(Restarts):
    """Restarts that end where nobody is there to mend what fails; `ended_with` has the status of each end."""

    most_deaths: int = 5
    ended_with: list[int] = field(default_factory=list)

    def after(
        self, status: int, *, lived_s: float, deaths: int, last_ends: Collection[int], chance: float
    ) -> Next:
        """What follows, if anything does."""
        follows = super().after(status, lived_s=lived_s, deaths=deaths, last_ends=last_ends, chance=chance)
        if follows.delay_s is not None and status not in HOPELESS and follows.deaths < self.most_deaths:
            return follows
        self.ended_with.append(status)
        return Next(None)


def _between_half_and_all(seconds: float, chance: float) -> float:
    return seconds * (0.5 + chance / 2)
