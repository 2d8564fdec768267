"""What a job may have done to the process of its worker: undone where it can be, else the process ends.

Its end is a crash. Nothing can be given back, or nothing more can be done, so what the worker holds is taken
back as after a kill, and counted.
"""

from __future__ import annotations

import logging
import math
import resource
import threading
from typing import Final, NoReturn

from queue_workflows.db.connections.descriptors import MarkedSocket
from queue_workflows.db.connections.exhaustion import is_exhausted, is_of_this_process
from queue_workflows.errors import ExitCode
from queue_workflows.host.processes import last_word
from queue_workflows.roles import exec_inheritance
from queue_workflows.roles.process_exit import leave
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs
from queue_workflows.roles.worker.guardian.stop_signals import StopSignals

_log = logging.getLogger(__name__)

# How the names of the engine's threads begin.
_OURS: Final = "qwf-"
_CLOSED: Final = "the descriptors of this process were closed"


class ProcessDamage:
    """Looked for by any thread of a worker, but for `after_job`."""

    def __init__(self, stop_signals: StopSignals, holdings: HeldJobs) -> None:
        self._stop_signals = stop_signals
        self._holdings = holdings
        self._leaving = threading.Lock()
        self._socket = MarkedSocket()

    def after_job(self) -> None:
        """A job has ended in the main thread: hear the signals again, also those that it had ignored."""
        self.leave_if_used_up()
        self._stop_signals.hear_again()

    def leave_if_used_up(self) -> None:
        """End the process if jobs have left it no descriptor, or for good no right to write files.

        Before the end of any job is written: one that failed may have failed for want of a descriptor.
        """
        self.leave_if_closed()
        if not self._stop_signals.has_room():
            self._crash("a job has left this process no descriptor to work with")
        # Without files there is no lock of this machine to be had, and nothing else would ever say so.
        if not exec_inheritance.own.lift(resource.RLIMIT_FSIZE):
            self._crash("a job has lowered for good how much this process may write into a file")

    def after_one_of_several(self) -> None:
        """A job has ended in a thread of its own: as `leave_if_closed`, at the price of one short call."""
        if not self._socket.is_ours():
            self._crash(_CLOSED)

    def leave_if_closed(self) -> None:
        """End the process if a job has closed its descriptors.

        Before anything is written to one that is somebody else's by now.
        """
        if not self._stop_signals.can_hear():
            self._crash(_CLOSED)

    def leave_if_at_fault(self, failure: BaseException) -> None:
        """End the process if it failed by itself, as when a job has used up its descriptors.

        To wait for the database would not help: nothing but an end brings back what was used up.
        """
        if is_exhausted(failure):
            self._crash(f"this process is out of descriptors, threads or memory ({_in_a_line(failure)})")
        if is_of_this_process(failure):
            self._crash(f"this process cannot go on ({_in_a_line(failure)})")

    def follow_threads(self) -> None:
        """From now on the process ends when a thread of ours does by an exception: its work would be missed.

        A thread may end like that as well when a job's debugger or profiler has broken its start.
        """
        of_others = threading.excepthook

        def ended(what: threading.ExceptHookArgs) -> None:
            name = "" if what.thread is None else what.thread.name
            if name.startswith(_OURS):
                raised = what.exc_value or what.exc_type()
                self._crash(f"the thread {name} ended by {type(raised).__name__} ({_in_a_line(raised)})")
            of_others(what)

        threading.excepthook = ended

    def _crash(self, why: str) -> NoReturn:
        # A job may have replaced what writes the log, and may raise in any thread.
        try:
            # A second thread that comes here waits for the end.
            self._leaving.acquire()
            jobs = self._holdings.all()
            # Else a job that has ended would not be suspected where its thread has begun another one.
            last_word.own.have_begun([one.job.id for one in jobs if not math.isinf(one.started)])
            held = ", ".join(str(one.job.id) for one in jobs)
            _log.critical("%s, so it ends; it holds the jobs %s", why, held)
        finally:
            leave(ExitCode.FAILED)


def _in_a_line(failure: BaseException) -> str:
    return " ".join(str(failure).split())
