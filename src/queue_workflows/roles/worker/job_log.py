"""What a worker's log says of the jobs that end: a line each, or one a second for what ends in a crowd.

    an attempt that failed     ERROR, with its traceback and when it runs again
    a task nobody knows here   WARNING, once for each
    any other end              INFO; beyond `LINES` a second a count of each task and outcome instead

A line costs as much as a short job, and nobody reads thousands a second. So what ends in a second with more
of them than `LINES` is counted, and so is the next second, until one has fewer. Failures are never counted.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from json import loads
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, ParamSpec

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.execution.log_fields import fields_of
from queue_workflows.engine.node_inputs.loaded_model import UNKNOWN_MODEL
from queue_workflows.engine.registry.node_modules import UNKNOWN_MODULE
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.engine.telemetry import LEASE_LOST, task_of, word_of
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob, ClaimedNodeJob
from queue_workflows.states import JobStatus

LOGGER: Final = "queue_workflows.jobs"
_log = logging.getLogger(LOGGER)

LINES: Final = 200
EVERY_S: Final = 1.0
_COMPLETED: Final = JobStatus.COMPLETED
_TASK_NAME: Final = attrgetter("job.task_name")
_UNKNOWN: Final = {
    UNKNOWN_TASK: "the task %s is not registered here: its jobs wait for a worker that knows it, or for --app"
    " MODULE that imports it",
    UNKNOWN_MODULE: "the node module %s is not found here: its jobs wait for a worker that has it, or for"
    " --app MODULE that brings it",
    UNKNOWN_MODEL: "the model %s cannot be loaded here: its jobs wait for a worker that can",
}
# More names than any host app has: beyond that they are somebody's mistake, and would only fill the memory.
_MOST_NAMES: Final = 1_000
# How long the end of a process waits for a line that another thread is at.
_LAST_LINE_S: Final = 0.5
_FILE: Final = re.compile(r'^ *File "([^"]+)"', re.MULTILINE)
_PACKAGE: Final = f"{Path(__file__).parents[2]}{os.sep}"
_VERBS: Final = {"retried": "failed", "retry_after": "asked to run later", "released": "given back"}


P = ParamSpec("P")


def _harmless(tell: Callable[P, None]) -> Callable[P, None]:
    """What a handler of the host app raises, or a job has done to its row, is no reason to end a worker."""

    @wraps(tell)
    def told(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception as unsaid:
            with suppress(Exception):
                _log.warning("a line of the log could not be written: it raised %s", type(unsaid).__name__)

    return told


class JobLog:
    """Told of ends by the main thread, and by the guardian of those that end with their process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._names: set[str] = set()
        self._second_ends = -math.inf
        self._second_had = 0
        self._is_crowd = False
        # Of each task and outcome, how many have ended and how long they took together.
        self._counted: dict[tuple[str, str], list[float]] = {}
        # When what was counted is to be said; infinite while there is nothing.
        self.due = math.inf

    @_harmless
    def ended(self, batch: Sequence[HeldJob], statuses: Mapping[int, JobStatus]) -> None:
        """A batch of ends was stored; `statuses` has what each job became if its end was accepted."""
        if not batch:
            return
        is_plain = list(statuses.values()).count(_COMPLETED) == len(batch)
        if is_plain and not _log.isEnabledFor(logging.INFO):
            return
        with self._guard:
            self._turn_to(self._clock())
            if self._takes(len(batch)) and is_plain:
                self._count_all(batch)
                return
            for held in batch:
                if held.ending is not None:
                    self._end(held, held.ending, statuses.get(held.job.id), held.ended)

    @_harmless
    def ended_one(self, held: HeldJob, ending: Ending, status: JobStatus | None) -> None:
        """One end was stored, and the job has become this, or None if its end was refused."""
        # The guardian comes here too, and what it ends must not wait for a line that the main thread is at.
        if not self._guard.acquire(timeout=_LAST_LINE_S):
            return
        try:
            now = self._clock()
            self._turn_to(now)
            self._takes(1)
            self._end(held, ending, status, min(now, held.ended))
        finally:
            self._guard.release()

    def due_in(self, now: float) -> float:
        """In how many seconds something is to be said; infinite if nothing is."""
        return self.due - now

    @_harmless
    def say_counted(self, *, at_last: bool = False) -> None:
        """Say what was counted; `at_last`, where the process ends, another thread is not waited for long."""
        if not self._guard.acquire(timeout=_LAST_LINE_S if at_last else -1):
            return
        try:
            self._say_counted()
        finally:
            self._guard.release()

    def _turn_to(self, now: float) -> None:
        """Begin another second, if this one is over."""
        if now < self._second_ends:
            return
        self._say_counted()
        is_next = now < self._second_ends + EVERY_S
        self._is_crowd = is_next and self._second_had > LINES
        self._second_ends, self._second_had = now + EVERY_S, 0

    def _takes(self, count: int) -> bool:
        """Note that so many have ended in this second; whether they are a crowd."""
        self._second_had += count
        if self._second_had > LINES:
            self._is_crowd = True
        return self._is_crowd

    def _count_all(self, batch: Sequence[HeldJob]) -> None:
        """Count a batch that has completed, at a tenth of the price of one by one where it is of one task."""
        is_ingest = type(batch[0].job) is ClaimedIngestJob
        tasks = [*map(_TASK_NAME, batch)] if is_ingest else [task_of(held.job) for held in batch]
        if tasks.count(tasks[0]) == len(tasks):
            seconds = sum([held.ended - held.started for held in batch])
            self._count(tasks[0], "completed", seconds, len(tasks))
            return
        for task, held in zip(tasks, batch, strict=True):
            self._count(task, "completed", held.ended - held.started)

    def _count(self, task: str, word: str, seconds: float, jobs: int = 1) -> None:
        counted = self._counted.setdefault((task, word), [0, 0.0])
        counted[0] += jobs
        counted[1] += seconds
        if self.due == math.inf:
            self.due = self._second_ends

    def _say_counted(self) -> None:
        counted, self._counted, self.due = self._counted, {}, math.inf
        for (task, word), (count, seconds) in counted.items():
            each = seconds / count
            _say(
                logging.INFO,
                "%s: %s %s, %s each",
                (task, f"{int(count):,}", _VERBS.get(word, word), _lasted(each)),
                {"task_name": task, "outcome": word, "count": int(count), "seconds": round(each, 6)},
            )

    def _end(self, held: HeldJob, ending: Ending, status: JobStatus | None, ended: float) -> None:
        job, word = held.job, word_of(ending, status)
        has_begun = not math.isinf(held.started)
        if word == LEASE_LOST or (word == "released" and not has_begun):
            # The first has a warning of its own; the second was claimed ahead.
            return
        if word == "held" and ending.hold_reason in _UNKNOWN:
            self._unknown(ending.hold_reason, ending.hold_key or task_of(job))
            return
        seconds = ended - held.started if has_begun else 0.0
        if word in ("failed", "retried"):
            self._failed(job, ending, word, seconds)
        elif self._is_crowd:
            self._count(task_of(job), word, seconds)
        elif _log.isEnabledFor(logging.INFO):
            self._line(job, ending, word, seconds, held.ctx.stop_reason)

    def _line(self, job: ClaimedJob, ending: Ending, word: str, seconds: float, stopped: str) -> None:
        more = _message_of(ending)
        if word == "held":
            more = f"{ending.hold_reason} {ending.hold_key or ''}".rstrip()
        elif word == "released":
            more = stopped
        elif word == "retry_after":
            more = ", ".join(filter(None, (_when(ending), more)))
        _say(
            logging.INFO,
            "%s %d %s after %s, attempt %d%s",
            (_name(job), job.id, _VERBS.get(word, word), _lasted(seconds), job.attempt, more and f": {more}"),
            _facts(job, word, seconds),
        )

    def _failed(self, job: ClaimedJob, ending: Ending, word: str, seconds: float) -> None:
        error = loads(ending.error) if ending.error else {}
        kind, message = error.get("type") or error.get("kind") or "failed", _message_of(ending)
        count = f"failure {job.failures + ending.counts} of {job.max_attempts}"
        left = f"{_when(ending)}, {count}" if word == "retried" else count
        facts = {**_facts(job, word, seconds), "error": f"{kind}: {message}" if message else kind}
        if word == "retried":
            facts["runs_again_in_s"] = round(ending.delay_s or 0.0, 3)
        _say(
            logging.ERROR,
            "%s %d failed after %s, attempt %d: %s; %s",
            (_name(job), job.id, _lasted(seconds), job.attempt, facts["error"], left),
            facts,
            _of_the_job(error.get("traceback")),
        )

    def _unknown(self, reason: str, name: str) -> None:
        if name in self._names or len(self._names) >= _MOST_NAMES:
            return
        self._names.add(name)
        _say(logging.WARNING, _UNKNOWN[reason], (name,), {"outcome": "held", "task_name": name})


def _say(
    level: int, words: str, values: tuple[Any, ...], facts: Mapping[str, Any], traceback: str | None = None
) -> None:
    """A record with facts of its own; the traceback is text already, as it is stored, without secrets."""
    if not _log.isEnabledFor(level):
        return
    shown = tuple([_on_one_line(value) if isinstance(value, str) else value for value in values])
    record = _log.makeRecord(LOGGER, level, __file__, 0, words, shown, None, None, facts)
    record.exc_text = traceback.rstrip() if traceback else None
    _log.handle(record)


def _on_one_line(text: str) -> str:
    """A producer may name a task or a key as it likes, and must not write lines of its own in here."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def _of_the_job(traceback: str | None) -> str | None:
    """A traceback with a line of the job's own, or what a hook printed that has none at all.

    Where we refuse what a job returned all lines are ours, and the message says all.
    """
    files = _FILE.findall(traceback or "")
    return None if files and all(file.startswith(_PACKAGE) for file in files) else traceback


def _facts(job: ClaimedJob, word: str, seconds: float) -> dict[str, Any]:
    return {**fields_of(job), "task_name": task_of(job), "outcome": word, "seconds": round(seconds, 6)}


def _name(job: ClaimedJob) -> str:
    """The task, or the plugin and its script; of a node also where it stands in its run."""
    task = task_of(job)
    if not isinstance(job, ClaimedNodeJob):
        return task
    if job.plugin is not None:
        task = f"{job.plugin}/{task}"
    place = job.node_id if job.map_index < 0 else f"{job.node_id}[{job.map_index}]"
    return f"{task} ({place} of run {job.run_id})"


def _message_of(ending: Ending) -> str:
    """What the error or the reason of an attempt says, on one line."""
    return " ".join(str(loads(ending.error).get("message", "")).split()) if ending.error else ""


def _when(ending: Ending) -> str:
    delay_s = ending.delay_s or 0.0
    at = datetime.now(UTC) + timedelta(seconds=delay_s)
    return f"runs again in {delay_s:.3g} s, at {at:%Y-%m-%dT%H:%M:%SZ}"


def _lasted(seconds: float) -> str:
    if seconds < 0.01:
        return f"{seconds * 1000:.2f} ms"
    return f"{seconds:.3f} s" if seconds < 100 else f"{seconds:,.0f} s"
