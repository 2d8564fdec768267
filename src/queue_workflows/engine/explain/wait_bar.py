"""Where a job's time went, from its first moment to its last: what it waited for, and when it was at work.

Everything is from the job's row, where attempts leave their errors and holds their spans, and from what was
asked of its queue. What a row does not tell is shown as `queued`: it could be claimed, for all that is known.
Where it is known when other jobs of the queue ran, that is parted into what it waited behind others, and
`unserved`, in which nothing of its queue ran at all.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias

from queue_workflows.engine.explain.history import held_for, pauses_of
from queue_workflows.repositories.durable.waits import PARKED
from queue_workflows.repositories.explain.explain_job import Circumstances
from queue_workflows.repositories.limits.lanes import LANE_DELAY_S
from queue_workflows.repositories.sql.families import ERRORS_KEPT, GIVEN_BACK, HOLDS_KEPT, NODE, OVER
from queue_workflows.states import JobStatus

Kind: TypeAlias = Literal[
    "parents", "due", "held", "queued", "unserved", "paused", "running", "over", "retry", "parked", "ended"
]
# Where a row tells two things of one moment, the first of these is shown.
_ORDER: Final[tuple[Kind, ...]] = (
    "running",
    "over",
    "parked",
    "held",
    "retry",
    "due",
    "paused",
    "unserved",
    "queued",
    "parents",
    "ended",
)
_RANK: Final[Mapping[Kind, int]] = {kind: rank for rank, kind in enumerate(_ORDER)}
# Programs' words have other names in JSON than what people wrote, which a host app may not want shown.
KEYS: Final = {"reason": "hold_reason"}
# Two readings of the clock in one INSERT.
_SAME_MOMENT: Final = timedelta(seconds=1)
# A queue in which nothing ran for less than that had workers which were between two jobs, or two looks.
A_LOOK: Final = timedelta(seconds=2)
_LANE_DELAY: Final = timedelta(seconds=LANE_DELAY_S)
_MAYBE_NOT_DUE: Final = "or not due yet: its row keeps no more when it was"
_NOT_KEPT: Final = f"or what its row keeps no more: it has the last {HOLDS_KEPT} holds, {ERRORS_KEPT} errors"
# Nodes that no worker works on: they are parked from the start.
_PARKED: Final = frozenset({"input", "wait", "workflow", "descendants"})


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar: what the job was at from `start` to `end`; `ended` is the moment of its end.

    `reason` and `key` are a hold's, or what was asked of the queue and its actor, as programs read them.
    """

    kind: Kind
    start: datetime
    end: datetime
    note: str = ""
    reason: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which workers of the queue were asked to claim nothing; `until` None goes on."""

    since: datetime
    until: datetime | None
    note: str = ""
    asked: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """The times in which nothing of a queue ran, in order, as far as it is known when its jobs ran."""

    gaps: Sequence[tuple[datetime, datetime]]

    @classmethod
    def of(cls, spans: Iterable[tuple[datetime, datetime]], begin: datetime, end: datetime) -> Served:
        """Between `begin` and `end`, by the spans in which its jobs ran; a shorter gap is a worker's look."""
        gaps, reached = [], begin
        for start, stop in [*sorted(spans), (end, end)]:
            if min(start, end) - reached >= A_LOOK:
                gaps.append((reached, min(start, end)))
            reached = max(reached, stop)
        return cls(gaps)

    def within(self, begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The gaps that reach into a time."""
        for gap in self.gaps[bisect(self.gaps, begin, key=itemgetter(1)) :]:
            if gap[0] >= end:
                return
            yield gap


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What a row tells of a job's life, as of `at`; `errors` and `past_holds` are as they are stored."""

    at: datetime
    status: str
    created_at: datetime
    run_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempt: int = 0
    claimed_by: str | None = None
    hold_reason: str | None = None
    hold_key: str | None = None
    errors: Sequence[Mapping[str, Any]] = ()
    past_holds: Sequence[Mapping[str, Any]] = ()
    kind: str = "task"
    # When the run began, of a node: until there is a job of it, it waits for other nodes.
    waits_since: datetime | None = None
    pauses: Sequence[Pause] = ()
    served: Served | None = None


# The facts that have the name of their column.
_IN_ROWS: Final = (
    "status",
    "created_at",
    "run_at",
    "started_at",
    "finished_at",
    "attempt",
    "claimed_by",
    "hold_reason",
    "hold_key",
    "errors",
)


def bar_of(job: JobFacts) -> list[Segment]:
    """The segments from the first moment to the last one, each beginning where the one before it ends."""
    begin = min(job.created_at, job.waits_since or job.created_at)
    end = max(begin, job.finished_at or job.at)
    told = [*_before(job, begin), *_waits(job, end), *_works(job, end)]
    segments = layered(told, begin, end)
    if job.finished_at is not None:
        segments.append(Segment("ended", end, end, job.status))
    return segments


def bar_of_job(there: Circumstances, served: Served | None = None) -> list[Segment]:
    """The bar of a job of which all circumstances were read, with the pauses of its queue."""
    job, run = there.job, there.run
    waits_since = run.started_at if run is not None and there.family is NODE else None
    pauses = [Pause(*pause) for pause in pauses_of(there)]
    facts = facts_of(job, at=there.now, waits_since=waits_since, pauses=pauses, served=served)
    return bar_of(facts)


def facts_of(job: Any, **beside: Any) -> JobFacts:
    """What a row tells, or what was read of one; `beside` are the facts that are not in it."""
    told = {name: getattr(job, name) for name in _IN_ROWS}
    return JobFacts(**told, past_holds=job.past_holds or (), kind=getattr(job, "kind", "task"), **beside)


def json_of(segments: Iterable[Segment]) -> list[dict[str, Any]]:
    """The segments as plain data; what holds a job has the name of its column, as `reason` is a person's."""
    return [{KEYS.get(name, name): value for name, value in asdict(one).items()} for one in segments]


def layered(told: Iterable[Segment], begin: datetime, end: datetime) -> list[Segment]:
    """One row of segments from `begin` to `end`: at each moment the first in rank, `queued` where none is."""
    edges: dict[datetime, list[tuple[int, Segment]]] = {begin: [], end: []}
    for one in told:
        start, stop = max(begin, one.start), min(end, one.end)
        if start < stop:
            edges.setdefault(start, []).append((1, one))
            edges.setdefault(stop, []).append((-1, one))
    open_now: Counter[tuple[int, Kind, str, str, str]] = Counter()
    row: list[Segment] = []
    moments = sorted(edges)
    for start, stop in itertools.pairwise(moments):
        for change, one in edges[start]:
            key = _RANK[one.kind], one.kind, one.note, one.reason, one.key
            open_now[key] += change
            if not open_now[key]:
                del open_now[key]
        _, kind, *said = min(open_now, default=(0, "queued", "", "", ""))
        one = Segment(kind, start, stop, *said)
        if row and replace(row[-1], start=start, end=stop) == one:
            one = replace(one, start=row.pop().start)
        row.append(one)
    return row


def _before(job: JobFacts, begin: datetime) -> Iterator[Segment]:
    """Before there was a job of a node, and then until its time had come, or the queue was paused."""
    yield Segment("parents", begin, job.created_at)
    for pause in job.pauses:
        since = max(job.created_at, pause.since)
        until = pause.until or job.finished_at or job.at
        yield Segment("paused", since, until, pause.note, pause.asked, pause.actor)
    due, until = _due_at(job)
    if due is not None and due > job.created_at + _SAME_MOMENT:
        yield Segment("due", job.created_at, min(due, until))
    untold = [*_not_kept(job)]
    yield from untold
    if job.served is None:
        return
    # Where it may not have been due yet, nobody failed to serve it.
    dark = max([job.created_at, *(one.end for one in untold)] + ([until] if due is None else []))
    end = job.finished_at or job.at
    for start, stop in job.served.within(job.created_at, end):
        if min(stop, end) - max(start, job.created_at) < A_LOOK:
            continue
        if due is None and start < until:
            yield Segment("queued", max(start, job.created_at), min(stop, until), _MAYBE_NOT_DUE)
        if stop > dark:
            yield Segment("unserved", max(start, dark), stop)


def _not_kept(job: JobFacts) -> Iterator[Segment]:
    """The time of which a row with as many holds or errors as it may have could have told more."""
    oldest = []
    if len(job.past_holds) >= HOLDS_KEPT:
        oldest += [hold.start for hold in _past_holds(job)]
    if len(job.errors) >= ERRORS_KEPT:
        oldest += _ends(job)
    if oldest:
        yield Segment("queued", job.created_at, min(oldest), _NOT_KEPT)


@dataclass(frozen=True, slots=True)
class _Change:
    """What set `run_at` anew: since when it was at that, and when the job was due before; None if unknown."""

    since: datetime
    due: datetime | None


def _due_at(job: JobFacts) -> tuple[datetime | None, datetime]:
    """When the enqueue said that the job is due, and until when that tells of it; None if its row does not.

    An attempt that failed, a hold and an operator's retry set `run_at` anew, and but for a hold they keep
    what it was; what was given back or lost its worker is due as before.
    """
    if changes := list(_changes(job)):
        first = min(changes, key=lambda change: change.since)
        return first.due, first.since
    until = job.finished_at or job.at
    claims = [one.start for one in _attempts(job)]
    claims += [hold.start for hold in _past_holds(job) if hold.kind == "running"]
    if job.started_at is not None:
        claims.append(job.started_at)
    if not claims:
        return (job.run_at if job.attempt == 0 else None), until
    # A node that was opened anew leaves no trace of its attempts before that.
    is_traced = job.run_at <= min(claims) and set(range(1, job.attempt)) <= _traced(job)
    return (job.run_at if is_traced else None), min(claims)


def _changes(job: JobFacts) -> Iterator[_Change]:
    for entry in job.errors:
        at, since = _moment(entry.get("at")), _moment(entry.get("since"))
        if entry.get("kind") in ("suspect", "worker_lost") or at is None:
            continue
        if since is None:
            yield _Change(at, None)
        elif "again_s" in entry and entry["again_s"] is not None:
            # The worker says when it was due where that was later than its enqueue.
            yield _Change(since, _moment(entry.get("due")) or job.created_at)
    for entry in job.past_holds:
        since, reason = _moment(entry.get("since")), entry.get("reason")
        if since is None or reason == GIVEN_BACK:
            continue
        yield _Change(since, _moment(entry.get("due")) if reason == OVER else None)
    if job.hold_reason is not None:
        yield _Change(_held_since(job), None)


def _traced(job: JobFacts) -> set[int]:
    """The attempts of which the row tells."""
    found = {int(entry.get("attempt") or 0) for entry in job.errors}
    for entry in job.past_holds:
        last = int(entry.get("attempt") or 0)
        found.update(range(last - int(entry.get("times") or 1) + 1, last + 1))
    return found


def _waits(job: JobFacts, end: datetime) -> Iterator[Segment]:
    """On hold or parked, and between two attempts."""
    yield from _past_holds(job)
    yield from _retries(job)
    ends = _ends(job)
    if job.hold_reason is not None:
        yield _on_hold(_held_since(job), end, job.hold_reason, job.hold_key)
        return
    is_between = job.claimed_by is None and job.finished_at is None
    before = [at for at in ends if is_between or (job.started_at is not None and at <= job.started_at)]
    if before and not _is_set_anew(job):
        yield Segment("retry", max(before), job.run_at)


def _held_since(job: JobFacts) -> datetime:
    """Since when a job is on hold; what is in a lane is due that much later than the moment it came there."""
    return max([job.started_at or job.created_at, *_ends(job), job.run_at - _LANE_DELAY])


def _retries(job: JobFacts) -> Iterator[Segment]:
    """From the end of each attempt that was to be tried again until its time."""
    for entry in job.errors:
        at, again_s = _moment(entry.get("at")), entry.get("again_s")
        if at is not None and isinstance(again_s, int | float):
            yield Segment("retry", at, at + timedelta(seconds=again_s))


def _is_set_anew(job: JobFacts) -> bool:
    """Whether `run_at` is the end of a hold, rather than what an enqueue or a retry set."""
    return any(hold.end >= job.run_at for hold in _past_holds(job) if hold.kind != "running")


def _works(job: JobFacts, end: datetime) -> Iterator[Segment]:
    """The attempt that is at work, or was the last one, and those before it that left an error."""
    yield from _attempts(job)
    waits = job.status in (JobStatus.QUEUED, JobStatus.SCHEDULED)
    if job.status == JobStatus.AWAITING_INPUT or (
        job.kind in _PARKED and job.claimed_by is None and not waits
    ):
        yield Segment("parked", job.started_at or job.created_at, end)
    elif job.started_at is not None and job.claimed_by is not None:
        yield Segment("running", job.started_at, end, f"attempt {job.attempt} on {job.claimed_by}")


def _attempts(job: JobFacts) -> Iterator[Segment]:
    """The attempts that left an error, from the claim of each; older versions wrote only when it ended."""
    for entry in job.errors:
        if entry.get("kind") == "suspect":
            continue
        at, since = _moment(entry.get("at")), _moment(entry.get("since"))
        if since is None and entry.get("attempt") == job.attempt:
            since = job.started_at
        if at is not None and since is not None:
            note = f"attempt {entry.get('attempt')} on {entry.get('worker_id')}"
            yield Segment("running", since, at, note)


def _ends(job: JobFacts) -> list[datetime]:
    """When attempts ended that left an error; a mark of suspicion is none."""
    told = (_moment(entry.get("at")) for entry in job.errors if entry.get("kind") != "suspect")
    return [at for at in told if at is not None]


def _past_holds(job: JobFacts) -> list[Segment]:
    """The holds that are over, the attempts that were given back, and what was before a retry."""
    holds: list[Segment] = []
    for entry in job.past_holds:
        since, until = _moment(entry.get("since")), _moment(entry.get("until"))
        if since is None or until is None:
            continue
        if entry["reason"] == GIVEN_BACK:
            note = f"attempt {entry.get('attempt')} on {entry.get('key')}, given back"
            holds.append(Segment("running", since, until, note))
        elif entry["reason"] == OVER:
            holds += _until_retried(entry, since, until)
        else:
            holds.append(_on_hold(since, until, str(entry["reason"]), entry.get("key")))
    return holds


def _until_retried(entry: Mapping[str, Any], since: datetime, until: datetime) -> Iterator[Segment]:
    """What a job was before an operator's retry: over, and before that at work, if it was claimed."""
    claimed = _moment(entry.get("claimed"))
    if claimed is not None and entry.get("worker") is not None:
        yield Segment("running", claimed, since, f"attempt {entry.get('attempt')} on {entry['worker']}")
    yield Segment("over", since, until, str(entry.get("key")))


def _on_hold(since: datetime, until: datetime, reason: str, key: str | None) -> Segment:
    """What holds a job up, or what a durable function waits for as it means to."""
    kind: Kind = "parked" if reason in PARKED else "held"
    return Segment(kind, since, until, held_for(reason, key), reason, key or "")


def _moment(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None
