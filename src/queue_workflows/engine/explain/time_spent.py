"""What a job waited for, in sums: each cause with its seconds, which make up its whole life.

From the bar of a job, each part of which has one cause; of two that held at once it is the one that the bar
shows. The work is the last attempt; those before it are `tried`, as the job waited for another one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from queue_workflows.engine.explain.history import held_for, length
from queue_workflows.engine.explain.wait_bar import A_LOOK, KEYS, Segment, Served, bar_of_job
from queue_workflows.engine.explain.wait_bar import json_of as json_of_parts
from queue_workflows.repositories.explain.explain_job import Circumstances
from queue_workflows.repositories.explain.waits import Ran, Slice, WaitRepository
from queue_workflows.repositories.sql.connection import Handle

CauseKind: TypeAlias = Literal[
    "parents",
    "due",
    "held",
    "queued",
    "unserved",
    "paused",
    "over",
    "retry",
    "parked",
    "tried",
    "untold",
    "work",
]
# In so many spans a job's wait is looked at, at so many jobs of each.
SLICES: Final = 32
EACH: Final = 64
# So many ends after a job's wait are read for what ran during it.
AFTER: Final = 20_000
# What ended in slices that are not read to their end is counted up to this, all of them together.
COUNTED: Final = 100_000


class Cause(NamedTuple):
    """What time went to; `reason` and `key` are a hold's, or what was asked of the queue and its actor."""

    kind: CauseKind
    reason: str = ""
    key: str = ""

    @property
    def label(self) -> str:
        """As metrics have it, which have as few values as there are kinds and reasons."""
        return self.reason if self.kind in ("held", "parked") and self.reason else self.kind


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """A job's life until now: how long it worked and waited, and each cause, the longest first; what it was
    over before an operator retried it is neither.

    `ran_meanwhile` is how many jobs of its queue ran while it was queued, `is_about` that it is an estimate,
    and `is_at_least` that more ended than were counted.
    """

    begin: datetime
    end: datetime
    worked: timedelta
    waited: timedelta
    causes: tuple[tuple[Cause, timedelta], ...]
    over: timedelta = timedelta()
    ran_meanwhile: int = 0
    is_about: bool = False
    is_at_least: bool = False


@dataclass(frozen=True, slots=True)
class Past:
    """Where the time of a job went: its bar, and the sums of that."""

    bar: tuple[Segment, ...]
    spent: TimeSpent

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return bool(self.bar) and self.bar[-1].kind == "ended"

    @property
    def parts(self) -> tuple[Segment, ...]:
        """All but the moment of the end."""
        return tuple(one for one in self.bar if one.kind != "ended")


_OVER: Final = Cause("over")


def causes_of(segments: Sequence[Segment]) -> Iterator[tuple[Cause, timedelta]]:
    """Each part of a bar with its cause."""
    parts = [one for one in segments if one.kind != "ended"]
    for place, one in enumerate(parts, 1):
        yield _cause_of(one, is_work=place == len(parts)), one.end - one.start


def _cause_of(one: Segment, *, is_work: bool) -> Cause:
    kind = one.kind
    if kind == "running":
        return Cause("work" if is_work else "tried")
    # Only a time of which the row tells no more has a note.
    if kind == "ended" or (kind == "queued" and one.note):
        return Cause("untold")
    return _OVER if kind == "over" else Cause(kind, one.reason, one.key)


def spent_of(segments: Sequence[Segment], at: datetime) -> TimeSpent:
    """The sums of a bar; one of a job that was made at this very moment `at` is empty."""
    sums: dict[Cause, timedelta] = {}
    for cause, took in causes_of(segments):
        sums[cause] = sums.get(cause, timedelta()) + took
    worked, over = sums.pop(Cause("work"), timedelta()), sums.pop(_OVER, timedelta())
    causes = sorted(sums.items(), key=lambda one: (-one[1], one[0]))
    begin, end = (segments[0].start, segments[-1].end) if segments else (at, at)
    return TimeSpent(begin, end, worked, end - begin - worked - over, tuple(causes), over)


def past_of(conn: Handle, there: Circumstances) -> Past:
    """Where a job's time went; of one that was queued for long, what its queue did meanwhile is read too."""
    bar = bar_of_job(there)
    queued = [one for one in bar if one.kind == "queued" and one.end - one.start >= A_LOOK]
    if not queued:
        return Past(tuple(bar), spent_of(bar, there.now))
    begin, end = queued[0].start, queued[-1].end
    slices = sliced(begin, end, SLICES)
    repository = WaitRepository(conn, there.family)
    ran = repository.ran(slices, each=EACH)
    ran = [one for one in ran if one.id != there.job.id or one.id is None]
    full = full_slices(((one.slice, one.finished_at) for one in ran), slices, each=EACH)
    spans = [
        *spans_of(ran, there.job.queue, there.now),
        *((full[place], slices[place].end) for place in full),
    ]
    is_all = True
    if Served.of(spans, begin, end).gaps:
        # What began before its end may have ended long after it.
        after, is_all = repository.ran_at(there.job.queue, end, most=AFTER)
        own = there.job.started_at, there.job.finished_at
        spans += [span for span in after if span != own] if is_all else [(begin, end)]
    bar = bar_of_job(there, Served.of(spans, begin, end))
    weights = weights_of(repository, full, slices, each=EACH, counted=COUNTED)
    spent = replace(
        spent_of(bar, there.now),
        ran_meanwhile=_ran_meanwhile(ran, there.job.queue, queued, weights.of_slice),
        is_about=bool(full) or not is_all,
        is_at_least=bool(weights.at_least),
    )
    return Past(tuple(bar), spent)


def sliced(begin: datetime, end: datetime, count: int) -> list[Slice]:
    """A span of time in so many alike."""
    step = (end - begin) / count
    edges = [begin + step * place for place in range(count)] + [end]
    return [Slice(*edge) for edge in itertools.pairwise(edges)]


def full_slices(
    ends: Iterable[tuple[int | None, datetime | None]], slices: Sequence[Slice], *, each: int
) -> dict[int, datetime]:
    """The slices in which more may have ended than were read, with the end of the last that was."""
    counts: Counter[int] = Counter()
    last: dict[int, datetime] = {}
    for place, at in ends:
        if place is not None and at is not None:
            counts[place] += 1
            last[place] = max(at, last.get(place, at))
    return {place: last[place] for place, count in counts.items() if count >= each and place < len(slices)}


class Weights(NamedTuple):
    """For how many each job stands that was read of a slice with more; of one `at_least` there
    are more still.
    """

    of_slice: Mapping[int, float]
    at_least: frozenset[int] = frozenset()


def weights_of(
    repository: WaitRepository, full: Collection[int], slices: Sequence[Slice], *, each: int, counted: int
) -> Weights:
    """By how many ended in each full slice, as what ends at one moment says nothing of the rest of its time;
    of all of them together so many are counted, and each evenly.
    """
    if not full:
        return Weights({})
    most = max(counted // len(full), each)
    jobs = repository.how_many([slices[place] for place in full], most=most)
    found = dict(zip(full, jobs, strict=True))
    at_least = frozenset(place for place, count in found.items() if count >= most)
    return Weights({place: max(count / each, 1.0) for place, count in found.items()}, at_least)


def spans_of(ran: Iterable[Ran], queue: str, now: datetime) -> Iterator[tuple[datetime, datetime]]:
    """When jobs of a queue ran; those that run now go on."""
    for one in ran:
        if one.queue == queue and one.started_at is not None:
            yield one.started_at, one.finished_at or now


def _ran_meanwhile(
    ran: Iterable[Ran], queue: str, queued: Sequence[Segment], weights: Mapping[int, float]
) -> int:
    """How many jobs of the queue ended, or ran, in the times in which this one was queued."""
    count = 0.0
    for one in ran:
        if one.queue != queue or one.started_at is None or one.finished_at is None:
            continue
        if any(one.started_at < part.end and one.finished_at > part.start for part in queued):
            count += 1.0 if one.slice is None else weights.get(one.slice, 1.0)
    return round(count)


_SAID: Final = {
    "parents": "waiting for other nodes",
    "due": "not due yet",
    "unserved": "nothing of its queue ran",
    "over": "over, until it was retried",
    "retry": "between two attempts",
    "tried": "in attempts before the last one",
    "untold": "queued, or what its row keeps no more",
}


def said_of(cause: Cause, spent: TimeSpent | None = None) -> str:
    """A cause in words, of all that is known of the job's time."""
    if cause.kind in ("held", "parked"):
        what = held_for(cause.reason, cause.key or None) if cause.reason else ""
        return f"{cause.kind}: {what}" if what else cause.kind
    if cause.kind == "paused":
        return f"the queue was {cause.reason} by {cause.key}"
    if cause.kind == "unserved" and spent is not None and spent.is_about:
        return f"{_SAID[cause.kind]}, as far as is known"
    if cause.kind == "queued":
        if spent is None or not spent.ran_meanwhile:
            return "queued"
        about = "at least " if spent.is_at_least else "about " if spent.is_about else ""
        jobs = f"{spent.ran_meanwhile:,} job{'' if spent.ran_meanwhile == 1 else 's'}"
        return f"queued, while {about}{jobs} of its queue ran"
    return _SAID[cause.kind]


def said_of_part(part: Segment) -> str:
    """A part of a bar in words; what was at work is named by its attempt."""
    if part.kind == "running":
        return part.note
    return said_of(_cause_of(part, is_work=False))


def sentence_of(spent: TimeSpent, *, is_over: bool) -> str:
    """How long a job waited, and for what."""
    begins = "it waited" if is_over else "it has waited"
    causes = "; ".join(
        f"{length(took.total_seconds())} {said_of(cause, spent)}" for cause, took in spent.causes
    )
    over = (
        f"; it was over for {length(spent.over.total_seconds())} before it was retried" if spent.over else ""
    )
    return f"{begins} {length(spent.waited.total_seconds())}" + (f": {causes}" if causes else "") + over


def json_of_cause(cause: Cause) -> dict[str, Any]:
    """A cause as plain data."""
    return {KEYS.get(name, name): value for name, value in cause._asdict().items()}


def json_of(past: Past) -> dict[str, Any]:
    """Where the time of a job went, as plain data."""
    spent = past.spent
    return {
        "begin": spent.begin,
        "end": spent.end,
        "worked_s": spent.worked.total_seconds(),
        "waited_s": spent.waited.total_seconds(),
        "over_s": spent.over.total_seconds(),
        "causes": [{**json_of_cause(cause), "seconds": took.total_seconds()} for cause, took in spent.causes],
        "ran_meanwhile": spent.ran_meanwhile,
        "is_about": spent.is_about,
        "is_at_least": spent.is_at_least,
        "parts": json_of_parts(past.parts),
    }
