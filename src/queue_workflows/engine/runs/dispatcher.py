"""Advances runs: finds those that have something to do, and acts on the outbox of one at a time.

Any number of dispatchers may do this at once. A run belongs to the one that has its row locked, for one
batch; the others pass it by and take the next one. Nothing is remembered between two batches but what saves
reading it again, so one that is killed is missed by nobody: its transaction never happened.

A batch that fails is tried event by event, and one that still fails is put off, for longer each time, and at
last put aside with its error. The run's other events go on, and so do other runs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any, Final
from uuid import UUID

import psycopg

from queue_workflows.config import EveryRef
from queue_workflows.engine import telemetry
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.runs.advance import Advancing
from queue_workflows.engine.runs.close_run import give_up
from queue_workflows.engine.runs.node_cache import KeptNodes, Known
from queue_workflows.engine.runs.parked_inputs import Parking
from queue_workflows.engine.runs.repositories import DispatchTools
from queue_workflows.engine.runs.tree import RunTree
from queue_workflows.errors import DocumentError, RefError
from queue_workflows.repositories.runs.outbox import (
    BEGIN,
    BEGUN_AT_ONCE,
    EVENTS_AT_ONCE,
    NO_RUN,
    PARTS,
    LockedRun,
    TakenEvent,
)
from queue_workflows.repositories.sql.pipeline_commits import pipeline_ends_at_its_sync
from queue_workflows.settings import Settings
from queue_workflows.states import RUN_TERMINAL, RunStatus
from queue_workflows.workflow.document.load import Document, compiled, find_compiled
from queue_workflows.workflow.planning.ends_awaited import Rests
from queue_workflows.workflow.planning.graph import graph_of
from queue_workflows.workflow.references.references import HostFailed, HostRefs

_log = logging.getLogger(__name__)

_ERROR_TEXT = 4_000
# How long a chain of single wakes may go on before all the runs are looked at; a few quick hops.
LOOK_WITHIN_S: Final = 0.02


class Woken(Enum):
    """What has ended the wait before a turn: nothing that is known, one transaction's wake, or more."""

    NOT = auto()
    ONCE = auto()
    SOMEHOW = auto()


class Dispatcher:
    """Works on one connection in autocommit, which is its own; a lost one is the caller's to replace."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        settings: Settings,
        *,
        host: HostRefs | None = None,
        find_document: Callable[[str], Document],
        redactor: Redactor | None = None,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._redactor = redactor or Redactor([])
        self._tools = DispatchTools.at(
            connection, settings, host=self._guarded(host), find_document=find_document
        )
        self._repository = self._tools.events
        self._kept = KeptNodes()
        self._rests = Rests()
        self._after = NO_RUN
        self._last: UUID | None = None
        self._has_more = False
        # When to look at all the runs at the latest, as the last turn has not.
        self.looks_at = math.inf
        # Whether the last turn has ended a run, of which its hooks are to hear.
        self.has_ended_runs = False

    def turn(
        self, go_on: Callable[[], bool] = lambda: True, *, woken: Woken = Woken.NOT, rests: bool = False
    ) -> int:
        """Give each run that has something to do one batch, in turn; how many did something.

        With `rests` a run is left alone for a moment from which nothing can follow yet: the caller waits for
        `rest_s`, and comes again.

        `go_on` is asked between two runs. A caller that was `woken` was so most likely by the run that moved
        last, if only one did: that is tried before anything is looked for. If it moves and the wake was the
        only one, nothing else is looked for at once: a writer for another run alone has sent its own wake. A
        writer for several in one transaction has sent one for all, so that the caller comes again by
        `looks_at`, woken or not.
        """
        last, self._last, self._has_more = self._last, None, False
        self.has_ended_runs = False
        is_tried = woken is not Woken.NOT and last is not None and not (rests and self._is_resting(last))
        moved = [last] if is_tried and last is not None and self.dispatch(last) else []
        if moved and woken is Woken.ONCE and not self.has_more:
            now = time.monotonic()
            self.looks_at = min(self.looks_at, now + LOOK_WITHIN_S)
            if now < self.looks_at:
                self._last = last
                return 1
        self.looks_at = math.inf
        with pipeline_ends_at_its_sync(self._connection):
            answer = self._repository.look(self._after)
        found, self._after, queued = answer()
        if rests:
            found = [run_id for run_id in found if not self._is_resting(run_id)]
        moved += [run_id for run_id in found if go_on() and self.dispatch(run_id)]
        moved += [run_id for run_id in queued if go_on() and self.dispatch(run_id)]
        self._has_more |= len(queued) >= BEGUN_AT_ONCE or not go_on()
        if moved or woken is not Woken.NOT:
            last = moved[0] if len(set(moved)) == 1 else None
        self._last = last
        return len(moved)

    @property
    def has_more(self) -> bool:
        """Whether the last turn may have left something that was there when it began."""
        return self._has_more or not self.is_around

    @property
    def rest_s(self) -> float:
        """How long the first of the runs that are left alone may be; 0 if none is."""
        now = time.monotonic()
        until = self._rests.ends_at(now)
        return 0.0 if until == math.inf else until - now

    def _is_resting(self, run_id: UUID) -> bool:
        return self._rests.is_resting(run_id, time.monotonic())

    @property
    def is_around(self) -> bool:
        """Whether the last turn has looked at the last of the runs."""
        return self._after == NO_RUN

    def dispatch(self, run_id: UUID) -> bool:
        """Act on a batch of a run's events; false if there was nothing to do, or another one is at it."""
        try:
            return self._act(run_id)
        except Exception as wrong:
            self._unless_cut_off(wrong)
            _log.warning("run %s: its events are tried one by one: %s", run_id, self._said(wrong))
            self._one_by_one(run_id)
            self._has_more = True
            return True

    def _act(self, run_id: UUID, only: int | None = None) -> bool:
        """One transaction, with a pipeline at both of its ends and none in between.

        The driver's own transaction would wait twice more. And only where a pipeline ends does the server
        reckon how long a transaction idles, by which it takes the lock from an orchestrator that was stopped.
        """
        with pipeline_ends_at_its_sync(self._connection):
            self._repository.begin()
            answer = self._repository.lock_and_take(run_id, only=only)
        run, events = answer()
        if run is not None and run.is_held and not any(_gives_up(event) for event in events):
            run, events = None, []
        self._has_more |= len(events) >= EVENTS_AT_ONCE or any(event.kind in PARTS for event in events)
        acted = None
        if run is not None and run.status in RUN_TERMINAL:
            self._too_late(run, events)
        elif run is not None and (events or run.status is RunStatus.QUEUED):
            acted = self._advancing(run, events)
            self._has_more |= acted is not None and acted.has_put_off
            self.has_ended_runs |= acted is None or acted.has_ended
        with pipeline_ends_at_its_sync(self._connection):
            if acted is not None:
                acted.send()
            if run is None:
                self._repository.rollback()
            else:
                self._repository.commit()
            known = None if acted is None else acted.ask_ahead()
        if run is not None and acted is not None and known is not None:
            nodes = known()
            self._kept.keep(run.id, run.next_version, nodes)
            if len(events) >= EVENTS_AT_ONCE:
                self._rests.forget(run.id)
            else:
                self._rest(run, acted, len(events), nodes)
        return bool(events) or acted is not None

    def _rest(self, run: LockedRun, acted: Advancing, events: int, nodes: Known) -> None:
        if acted.has_ended or acted.has_put_off:
            self._rests.forget(run.id)
            return
        awaited, is_same = partial(acted.ends_awaited, nodes), not acted.has_followed
        self._rests.acted(run.id, events, awaited, now=time.monotonic(), is_same=is_same)

    def _advancing(self, run: LockedRun, events: list[TakenEvent]) -> Advancing | None:
        """What follows from the events; None where a run is given up that nobody can read."""
        try:
            document = self._document(run)
        except DocumentError:
            cancels = [event for event in events if _gives_up(event)]
            if not cancels:
                raise
            give_up(self._tools, run, reason=cancels[0].payload.get("reason"))
            return None
        with telemetry.dispatching(run) as observed:
            known = self._kept.take(run.id, run.version)
            advancing = Advancing(self._tools, observed, document, document.derived(graph_of), known)
            advancing.act(events)
        return advancing

    def _document(self, run: LockedRun) -> Document:
        found = find_compiled(run.spec_hash)
        return found or compiled(self._repository.spec(run.id), run.spec_hash)

    def _too_late(self, run: LockedRun, events: list[TakenEvent]) -> None:
        """Events of a run that is over mean nothing to it; what ended below it is passed on, and an answer
        to a node refused."""
        self._has_more |= RunTree(self._tools, run).act_when_over(events)
        parking = Parking(self._tools, run, None)
        for event in events:
            if event.kind == "input_submitted":
                parking.answer(event.payload["submission_id"])

    # What goes wrong.

    def _one_by_one(self, run_id: UUID) -> None:
        for event_id in self._repository.due_events(run_id) or self._begin_event(run_id):
            try:
                self._act(run_id, only=event_id)
            except Exception as wrong:
                self._unless_cut_off(wrong)
                self._defer(run_id, event_id, wrong)

    def _begin_event(self, run_id: UUID) -> list[int]:
        """A run that cannot begin gets an event to count its tries by, and is found by that from then on."""
        with self._connection.transaction():
            run = self._repository.lock(run_id)
            if run is None or run.status is not RunStatus.QUEUED:
                return []
            return [self._repository.add_event(run_id, BEGIN)]

    def _defer(self, run_id: UUID, event_id: int, wrong: Exception) -> None:
        said = self._said(wrong)
        deferred = self._repository.defer(
            event_id,
            said,
            max_tries=self._settings.dispatch_max_tries,
            backoff_s=self._settings.dispatch_backoff_s,
        )
        if deferred is None:
            return
        tries, is_poisoned = deferred
        if is_poisoned:
            _log.error("run %s: event %d is given up after %d tries: %s", run_id, event_id, tries, said)
        else:
            _log.warning("run %s: event %d failed, try %d: %s", run_id, event_id, tries, said)

    def _unless_cut_off(self, wrong: Exception) -> None:
        """Raise what is about the connection rather than the run; else let go of the transaction it broke.

        What fails behind the last answer of a pipeline leaves its transaction open.
        """
        if self._connection.closed or self._connection.broken:
            raise wrong
        self._connection.rollback()

    def _guarded(self, host: HostRefs | None) -> HostRefs | None:
        if host is None:
            return None
        if isinstance(host, EveryRef):
            return EveryRef(partial(self._asked, host.answer))
        return partial(self._asked, host)

    def _asked(self, answer: Callable[..., Any], *asked: Any) -> Any:
        """What the host app's resolver answers; what it raises fails the node, and holds up no run."""
        try:
            return answer(*asked)
        except (LookupError, RefError):
            raise
        except Exception as wrong:
            raise HostFailed(self._said(wrong)) from wrong

    def _said(self, wrong: Exception) -> str:
        text = f"{type(wrong).__name__}: {' '.join(str(wrong).split())}"
        return self._redactor.head(text.replace("\x00", "\\0"), _ERROR_TEXT)


def _gives_up(event: TakenEvent) -> bool:
    """Whether the whole run is to be cancelled, which is all that one on hold hears of."""
    return event.kind == "cancel" and event.payload.get("node_id") is None
