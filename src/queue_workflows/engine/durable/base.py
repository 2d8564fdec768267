"""What the contexts of sync and of async durable functions have in common; nothing here waits."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from json import dumps, loads
from typing import Any, Final

from queue_workflows import clock as time
from queue_workflows.config import resolve_dsn
from queue_workflows.db.connections.dsn import parse_dsn, secrets_of
from queue_workflows.engine.durable.branches import check_unmarked, name_in
from queue_workflows.engine.durable.children import Child, FindTask, new_job
from queue_workflows.engine.durable.connections import CURRENT
from queue_workflows.engine.durable.history import Call, History
from queue_workflows.engine.durable.procedures import NewChild, Procedures
from queue_workflows.engine.durable.writer import writer_of
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.error_capture import captured
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.outcomes import (
    BeginAnew,
    Discard,
    Parked,
    PutAside,
    RetryAfter,
    Skip,
)
from queue_workflows.errors import LeaseLost, NonDeterminism, PayloadError, StepFailed
from queue_workflows.repositories.durable.events import RESERVED, event_name
from queue_workflows.repositories.durable.steps import NewStep, StepRow, Stored
from queue_workflows.repositories.durable.waits import ASLEEP, CHILDREN, EVENT
from queue_workflows.repositories.jobs.enqueue import current_limits
from queue_workflows.repositories.sql import checks
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob
from queue_workflows.states import StepKind, StepStatus

# Less is waited for in place: to park costs two commits and a claim.
IN_PLACE_S: Final = 1.0
# How soon a step is tried again that the database has lost.
AGAIN_S: Final = 0.5
# What a step may raise about its job, which is no failure of the step.
VERDICTS: Final = (Skip, Discard, RetryAfter, PutAside, LeaseLost, NonDeterminism)
REASONS: Final[Mapping[StepKind, str]] = {
    StepKind.SLEEP: ASLEEP,
    StepKind.EVENT: EVENT,
    StepKind.CHILDREN: CHILDREN,
}
# Where the function does not say what an event's absence comes to.
NO_DEFAULT: Final = object()


class NotStored(Exception):
    """The database went away with a step that had ended, and has nothing of it: no failure of the step's."""


class DurableBase:
    """A job's context, with what is stored of its function; all that a `JobContext` has is here as well."""

    def __init__(self, ctx: JobContext, *, version: str | None, find: FindTask) -> None:
        self._ctx = ctx
        self._find = find
        self._job = ctx.job
        self._calls = ctx._reach().calls
        self._asks = Procedures(ctx.job, writer_of(self._calls, ctx.job.family), version)
        self._history = History(self._asks.name, [])
        # To be stored before anything runs that may go by it, in order; and what may as well come later.
        self._due: list[NewStep] = []
        self._late: list[NewStep] = []
        self._unborn: list[tuple[NewChild, Child]] = []
        # Steps that failed: their branch, and how many calls there had been; stored if it goes on from there.
        self._failures: list[tuple[str, int, NewStep]] = []
        self._parked: Parked | None = None
        self._has_waited = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def random(self) -> random.Random:
        """A source of random numbers, the same ones in each attempt; each call gives another one."""
        self._check_place()
        return self._history.random(self._branch())

    def now(self) -> datetime:
        """The time as it was when the function first came here."""
        call = self._come_to("qwf:now", StepKind.NOW)
        try:
            row = self._history.stored(call)
            if row is not None:
                return datetime.fromisoformat(row.result)
            moment = datetime.now(UTC)
            self._due.append(self._asks.step(call, result=dumps(moment.isoformat())))
            return moment
        finally:
            self._history.ended()

    def spawn(
        self,
        task: Any,
        args: dict[str, Any] | None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> Child:
        """A job of another task, enqueued once whatever becomes of this attempt; cancelled with this one.

        `task` is a task or its name, and `options` are those of its jobs. Several that are spawned in a row
        are enqueued together, by whatever comes next. Its result is what `gather` brings, or awaiting it.
        """
        title = task if isinstance(task, str) else task.name
        call = self._come_to(name or title, StepKind.CHILD)
        try:
            child = Child(call, self._gather_one)
            row = self._history.stored(call)
            if row is not None:
                child.id = row.child_id
                return child
            queue = self._job.queue if isinstance(self._job, ClaimedIngestJob) else None
            job = new_job(task, args, queue, self._find, options)
            self._unborn.append((NewChild(call, job), child))
            return child
        finally:
            self._history.ended()

    def heartbeat(self) -> None:
        """Say that the job goes on, for the stall watchdog, as `progress()` does."""
        self._ctx.progress()

    # What follows is for the two kinds of contexts.

    def goes_on_with(self, history: History) -> None:
        """Store further steps under the version of those that are there."""
        if not history.is_new and not history.is_of_any_version:
            self._asks.version = history.version

    def _gather_one(self, child: Child) -> Any:
        raise NotImplementedError

    def _come_to(self, name: str, kind: StepKind) -> Call:
        self._check_place()
        if not name.startswith(RESERVED) or kind not in {StepKind.NOW, StepKind.CHILDREN, StepKind.SLEEP}:
            checks.readable("name", name)
            if name.startswith(RESERVED):
                raise PayloadError(f"the name {name!r:.80} begins with {RESERVED}", path="name")
            check_unmarked(name)
        branch = self._branch()
        return self._history.call(name_in(branch, name), kind, branch=branch)

    def _check_place(self) -> None:
        """Refuse what another attempt would not come to, or not at this place."""
        if CURRENT.get() is not None:
            raise RuntimeError(
                "ctx was called by the function of a step, which another attempt does not call: call it"
                " before the step, and give the step what it brings"
            )
        if self._parked is not None:
            # Nothing is done on the way out, as in a `finally`: the function goes on where it was.
            raise self._parked

    def _branch(self) -> str:
        """The path of the branch that calls; the function's own is empty."""
        raise NotImplementedError

    def _args_of_round(self, args: dict[str, Any] | None) -> str:
        """The arguments of another round, as JSON, where one can begin."""
        self._check_place()
        self._branch()
        return current_limits().json_object("args", args)

    def _leave(self, left: Parked) -> Parked:
        """Have every further call of the function end as this one does."""
        self._parked = self._parked or left
        return self._parked

    def _parks(self, kind: StepKind, key: str | None) -> Parked:
        return self._leave(Parked(REASONS[kind], key))

    def _anew(self) -> Parked:
        return self._leave(BeginAnew())

    def _taken(self, call: Call | None) -> tuple[list[tuple[NewChild, Child]], list[NewStep]]:
        """What has to be stored before this call, or the end; and with that what may as well be."""
        self._goes_on(call)
        return self._taken_now() if self._due or self._unborn else ([], [])

    def _taken_now(self) -> tuple[list[tuple[NewChild, Child]], list[NewStep]]:
        unborn, self._unborn = self._unborn, []
        steps, self._due, self._late = [*self._late, *self._due], [], []
        return unborn, steps

    def _taken_on_leaving(self) -> tuple[list[tuple[NewChild, Child]], list[NewStep]]:
        """What has to be stored of a function that raises: what it spawned, and what led there.

        A failure after which its branch spawned nothing is not, so that another attempt tries again.
        """
        if not self._unborn:
            return [], []
        for new, _ in self._unborn:
            self._goes_on(new.call, leaves=True)
        return self._taken_now()

    def _goes_on(self, call: Call | None, *, leaves: bool = False) -> None:
        """Have those failures stored that the function has gone on without.

        Of one that `leaves` it is known of the branch alone that failed: others may not have heard of it.
        """
        failures, self._failures = self._failures, []
        for failure in failures:
            branch, position, _ = failure
            heard_of = call is None or not leaves or call.branch == branch
            if call is None or (heard_of and call.goes_on_after(branch, position)):
                self._due.append(failure[2])
            else:
                self._failures.append(failure)

    def _fails_by(self, call: Call, step: NewStep) -> None:
        """Have a failure, of a step or of children, stored if the function goes on without it."""
        self._failures.append((call.branch, self._history.position, step))

    def _left(self, unborn: list[tuple[NewChild, Child]], steps: list[NewStep]) -> None:
        """It could not be stored: whatever comes next has to."""
        self._unborn[:0], self._due[:0] = unborn, steps

    def _failed(self, call: Call, exc: Exception, tries: int, *, ended_at: float | None = None) -> StepFailed:
        """What a step comes to that has failed for good; stored if the function goes on without it."""
        error = captured(exc, redactor())
        step = self._asks.step(call, status=StepStatus.FAILED, error=error, tries=tries, ended_at=ended_at)
        self._failures.append((call.branch, self._history.position, step))
        failed = StepFailed(call.name, loads(error))
        failed.__cause__ = exc
        return failed

    def _json(self, call: Call, value: Any) -> str:
        """The JSON of a result; one that cannot be stored is refused as that of a job is."""
        try:
            return current_limits().json(value)
        except PayloadError as refused:
            raise Discard(f"the result of {call} cannot be stored: {refused.message}") from refused


def replayed(row: StepRow) -> Any:
    """What a stored step has come to."""
    if row.status is StepStatus.FAILED:
        raise StepFailed(row.name, row.error or {})
    return row.result


def event_of(row_result: Any) -> tuple[bool, Any]:
    """Whether an event came in time, and its payload."""
    return (False, None) if row_result.get("timed_out") else (True, row_result["payload"])


def sleep_s(
    seconds: float | timedelta, minutes: float, hours: float, days: float, until: datetime | None
) -> float:
    """How long a function sleeps."""
    if until is not None:
        moment = checks.moment_or_none("until", until)
        return 0.0 if moment is None else max(0.0, (moment - datetime.now(UTC)).total_seconds())
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    span = seconds + 60 * minutes + 3600 * hours + 86_400 * days
    return checks.seconds_or_none("seconds", span, zero=True) or 0.0


def wait_s(timeout: float | timedelta | None) -> float | None:
    """How long a function waits for an event."""
    return checks.delay_or_none("timeout", timeout)


def checked_event(name: str) -> str:
    """The name of an event."""
    return event_name(name)


def backoff_s_of(first_s: float, tries: int) -> float:
    """How long to wait before a step is tried again."""
    return float(min(first_s * 2 ** (tries - 1), 3600.0))


def check_tries(retries: int, backoff_s: float, timeout_s: float | None) -> None:
    """What may be said of a step."""
    checks.whole("retries", retries, 0, checks.SMALLINT_MAX)
    checks.seconds_or_none("backoff_s", backoff_s, zero=True)
    checks.seconds_or_none("timeout_s", timeout_s)


def check_failures(steps: Sequence[NewStep], stored: Sequence[Stored]) -> None:
    """Go on no further after a step that failed here, and is stored as one that did not: begin once more."""
    for step, found in zip(steps, stored, strict=True):
        if step.status is StepStatus.FAILED and not found.is_new:
            raise RetryAfter(AGAIN_S, f"the step {step.name!r:.80} was stored by another try of it meanwhile")


def took_s_since(began: float) -> float:
    """How long ago that was, on the monotonic clock."""
    return max(0.0, time.monotonic() - began)


_redactors: Final[dict[str, Redactor]] = {}


def redactor() -> Redactor:
    """What hides the secrets of the configured database in errors that are stored."""
    dsn = resolve_dsn().dsn or ""
    if dsn not in _redactors:
        _redactors.clear()
        _redactors[dsn] = Redactor(secrets_of(parse_dsn(dsn))) if dsn else Redactor()
    return _redactors[dsn]


def no_step() -> RuntimeError:
    """What to say where no step runs."""
    return RuntimeError("ctx.connection() is for the function of a step, while that runs")


def current_transaction() -> Any:
    """The transaction of the step that runs here."""
    transaction = CURRENT.get()
    if transaction is None:
        raise no_step()
    return transaction


def args_of_round(job: Any, history: History) -> None:
    """Give a job, as its function gets it, the arguments of its round; those of a node are its inputs."""
    if history.args is None:
        return
    if isinstance(job, ClaimedIngestJob):
        job.args = history.args
    else:
        job.inputs = history.args


def all_steps(unborn: Sequence[tuple[NewChild, Child]]) -> list[NewChild]:
    """The children to spawn."""
    return [new for new, _ in unborn]
