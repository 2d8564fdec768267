"""What a worker does when its leases cannot be renewed and its own timer is about to kill it.

The guardian may be waiting for an answer that never comes, so another thread looks at the time, and asks the
database nothing. It acts in the last quarter of the lease that lapses first:

    some job in hand needs its lease     the last line of this process says when it is killed, why, and what
                                         it holds; its name in the process table says so too, where a launcher
                                         or a supervisor reads it after the end (`deadman.announce`)
    each is over or survives an outage   the timer is moved by a lease, again and again: the jobs go on
    renewed after all                    both are taken back

The timer stays armed throughout. A process in which no Python runs any more moves it no further, so a hung
interpreter lives one lease at most; and it is never moved beyond the time at which a job's own guard would
have ended it. A job that holds a slot of a limit needs its lease: the slot is another's when that is over.

Jobs that go on end while nobody may be listening. What waits for an answer is cut off then, so that it is
asked again on a new connection.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob, next_verdict_at
from queue_workflows.engine.limits.held_slots import KeptSlots
from queue_workflows.host.processes.lease_timer import DeadMan, announce, boottime
from queue_workflows.repositories.sql.families import BY_NAME
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs

_log = logging.getLogger(__name__)

_NAMED = 5


class OutageWatch:
    """One thread, from a worker's first claim to its end; it never waits for the database."""

    def __init__(self, holdings: HeldJobs, deadman: DeadMan, kept: KeptSlots) -> None:
        self._holdings = holdings
        self._deadman = deadman
        self._kept = kept
        self._lease_s = holdings.lease_s
        self._ahead_s = holdings.lease_s / 4
        self._cutters: list[Callable[[float], None]] = []
        self._told = False
        self._goes_on = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="qwf-outage", daemon=True)

    def start(self) -> None:
        """Watch, where there is a timer to watch."""
        if self._deadman.reason_off is None:
            self._thread.start()

    def close(self) -> None:
        """Watch no more; the timer is the worker's own again."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def cuts(self, cut_if_unanswered: Callable[[float], None]) -> None:
        """What to cut off while jobs go on without their lease, if it has waited for so many seconds."""
        self._cutters.append(cut_if_unanswered)

    def _run(self) -> None:
        pause_s = self._ahead_s
        while not self._over.wait(pause_s):
            pause_s = self._look(boottime())

    def _look(self, now: float) -> float:
        """Act if it is time to; in how many seconds to look again."""
        lapses_at = self._holdings.lapses_at()
        left_s = math.inf if lapses_at is None else lapses_at - now
        if left_s > self._ahead_s:
            self._renewed()
            return min(left_s - self._ahead_s, self._ahead_s)
        held = self._holdings.all()
        if self._may_go_on(held) and self._holdings.go_on(held, self._until(held, now)):
            self._go_on(held)
        elif not self._told:
            self._tell(held, left_s)
        return self._ahead_s / 4

    def _renewed(self) -> None:
        if self._told:
            announce(is_due=False)
            _log.warning("its leases are renewed: this process is not killed")
        if self._goes_on:
            _log.warning("its leases are renewed, or its jobs are over")
        self._told = self._goes_on = False

    # Jobs that go on

    def _may_go_on(self, held: Sequence[HeldJob]) -> bool:
        """Whether something would be lost with this process, and nothing in it needs its lease."""
        return any(one.ctx.survives_outage for one in held) and all(self._needs_no_lease(one) for one in held)

    def _needs_no_lease(self, held: HeldJob) -> bool:
        return held.is_ending or (held.ctx.survives_outage and not self._kept.of([held.job.fence]))

    def _until(self, held: Sequence[HeldJob], now: float) -> float:
        """A lease from now, or a lease after a guard should have ended one of them."""
        verdict_in_s = min(next_verdict_at(one) for one in held) - time.monotonic()
        return now + min(self._lease_s, verdict_in_s + self._lease_s)

    def _go_on(self, held: Sequence[HeldJob]) -> None:
        if not self._goes_on:
            _log.warning(
                "leases could not be renewed for %.1f s: %s go on without them, as they survive outages;"
                " others may begin them meanwhile",
                self._unrenewed_s(held),
                _names(held),
            )
        self._goes_on = True
        if self._told:
            announce(is_due=False)
            self._told = False
        for cut in self._cutters:
            cut(self._lease_s / 3)

    # The last words

    def _tell(self, held: Sequence[HeldJob], left_s: float) -> None:
        self._told = True
        at = datetime.now().astimezone() + timedelta(seconds=left_s)
        if held:
            what = f"leases could not be renewed for {self._unrenewed_s(held):.1f} s"
            then = f"{_names(held)} run again when their leases are over"
        else:
            what = f"a claim had no answer for {self._lease_s - left_s:.1f} s"
            then = "what it may have claimed runs when its lease is over"
        announce(is_due=True)
        _log.critical(
            "%s: this process is killed by its own timer at %s, in %.1f s, unless the database answers; %s",
            what,
            at.isoformat(timespec="milliseconds"),
            max(0.0, left_s),
            then,
        )

    def _unrenewed_s(self, held: Sequence[HeldJob]) -> float:
        return boottime() - (min(one.lease_until for one in held) - self._lease_s)


def _names(held: Sequence[HeldJob]) -> str:
    named = [f"{BY_NAME[one.job.family].title} {one.job.id}" for one in held[:_NAMED]]
    more = [f"{len(held) - _NAMED} more"] if len(held) > _NAMED else []
    return " and ".join([", ".join(named), *more])
