"""What of a run ran when, and what it waited for: a bar a job, or a bar for many that are alike.

A run of up to two hundred jobs has a bar for each. Of one with more a bar is a box of its graph: as long as
one of its jobs is at work the box is, and where none is it waits for what one of them waits for. Of a run
with thousands of jobs only the times of its nodes are read, and a bar says so.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from queue_workflows.drawing.words import say_span
from queue_workflows.engine.explain.history import asked_of, wishes_of
from queue_workflows.engine.explain.wait_bar import Segment, bar_of, facts_of, layered
from queue_workflows.engine.explain.wait_bar import json_of as json_of_segments
from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.engine.watch.run_view import RunOverview
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.repositories.runs.job_times import JobTimes, JobTimesRepository
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.states import DesiredState
from queue_workflows.views.json_values import named, node_job
from queue_workflows.views.runs.graph import Box, all_nodes, folded_nodes, graph_of

MOST_BARS: Final = 200
# Of more jobs than that the times are not read.
MOST_JOBS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Bar:
    """A job, or `members` nodes that are alike; `index` and `job` are those of the one job of a bar."""

    id: str
    label: str
    state: str
    node: str
    index: int | None
    job: int | None
    members: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class RunPause:
    """A time of the run in which a queue of it, or its workers on one host, were paused or switched off."""

    start: datetime
    end: datetime
    queue: str
    host_label: str
    asked: str
    actor: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """The bars of a run in the order in which they began, on one scale from `begin` to `end`."""

    run_id: uuid.UUID
    status: str
    begin: datetime
    end: datetime
    bars: tuple[Bar, ...]
    pauses: tuple[RunPause, ...]


def run_timeline(
    conn: Handle, run_id: uuid.UUID, *, seen: RunOverview | None = None, reader: RunReader | None = None
) -> RunTimeline:
    """The run as it is now; `UnknownRun` if there is none. What was `seen` of it is not read again."""
    run = all_nodes(conn, run_id, seen, reader=reader)
    jobs = JobTimesRepository(conn).of_run(run_id, most=MOST_JOBS)
    begin = run.started_at or run.created_at
    if jobs is None:
        bars = [_of_nodes(box, run) for box in graph_of(run, most=MOST_BARS).boxes if box.started_at]
    elif len(jobs) <= MOST_BARS:
        bars = [_of_job(job, run) for job in jobs]
    else:
        bars = _of_boxes(run, jobs)
    # Jobs that the host app inserts may be older than the start of their run.
    begin = min([begin, *(bar.segments[0].start for bar in bars)])
    end = max([begin, run.finished_at or run.at])
    bars.sort(key=lambda bar: _first_moment(bar.segments))
    queues = {job.queue for job in jobs or ()} | {node.queue for node in run.nodes if node.queue}
    return RunTimeline(run.id, run.status, begin, end, tuple(bars), _pauses(conn, queues, begin, end))


def _pauses(conn: Handle, queues: Collection[str], begin: datetime, end: datetime) -> tuple[RunPause, ...]:
    """What was asked of the workers of these queues and held at some time of the span."""
    entries = AuditRepository(conn).of_queues(queues, since=begin, until=end) if queues else []
    found = []
    for wish in wishes_of(entries):
        start, over = max(begin, wish.set_by.at), min(end, wish.until or end)
        if start < over:
            host_label, _, queue = wish.set_by.subject_id.partition(" ")
            asked, by = str(wish.asked), wish.set_by
            found.append(RunPause(start, over, queue, host_label, asked, by.actor, by.reason))
    return tuple(found)


def _first_moment(segments: Sequence[Segment]) -> datetime:
    """When a bar is more than waiting for other nodes."""
    return next((one.start for one in segments if one.kind != "parents"), segments[0].start)


def _segments(job: JobTimes, run: RunOverview) -> list[Segment]:
    return bar_of(facts_of(job, at=run.at, waits_since=run.started_at))


def _of_job(job: JobTimes, run: RunOverview) -> Bar:
    is_element = job.map_index >= 0
    label = f"{job.node_id}[{job.map_index}]" if is_element else job.node_id
    return Bar(
        id=f"node:{job.id}",
        label=label,
        state=job.status,
        node=job.node_id,
        index=job.map_index if is_element else None,
        job=job.id,
        members=1,
        segments=tuple(_segments(job, run)),
    )


def _of_boxes(run: RunOverview, jobs: Iterable[JobTimes]) -> list[Bar]:
    """The bars of all jobs of a box as one: it is at work while one of them is."""
    graph = graph_of(run, most=MOST_BARS)
    rows = folded_nodes(run, most=MOST_BARS).members
    box_of: Mapping[str, str] = {node: row for row, members in rows.items() for node in members}
    of_box: dict[str, list[Segment]] = {}
    for job in jobs:
        # A note is of one job, and would part what is alike.
        parts = (
            Segment(one.kind, one.start, one.end) if one.note else one
            for one in _segments(job, run)
            if one.kind != "ended"
        )
        of_box.setdefault(box_of.get(job.node_id, job.node_id), []).extend(parts)
    bars = []
    for box in graph.boxes:
        told = of_box.get(box.id)
        if told:
            begin, end = min(one.start for one in told), max(one.end for one in told)
            bars.append(_bar(box, layered(told, begin, end)))
    return bars


def _of_nodes(box: Box, run: RunOverview) -> Bar:
    """From the first of its jobs on; which of them waited and which were at work is not told."""
    opened = box.started_at or run.at
    begin = min(opened, run.started_at or opened)
    end = max(opened, box.finished_at or run.finished_at or run.at)
    told = Segment("parents", begin, opened), Segment("running", opened, end, "at work or waiting")
    return _bar(box, layered(told, begin, end))


def _bar(box: Box, segments: Sequence[Segment]) -> Bar:
    return Bar(
        id=box.id,
        label=box.label,
        state=box.state,
        node=box.id,
        index=None,
        job=None,
        members=box.members,
        segments=tuple(segments),
    )


def said_of_pause(pause: RunPause) -> str:
    """What was paused or switched off, what for, by which operator, and for how long of the run."""
    what = asked_of(pause.host_label, DesiredState(pause.asked), past=True)
    queues = "all queues" if pause.queue == "*" else f"queue {pause.queue}"
    took = say_span((pause.end - pause.start).total_seconds())
    why = f": {pause.reason}" if pause.reason else ""
    return f"{queues}: {what} by {pause.actor} for {took}{why}"


def json_of(timeline: RunTimeline) -> dict[str, Any]:
    """What `qwf run timeline RUN --json` prints."""
    bars = [
        named(asdict(bar)) | {"job": node_job(bar.job), "segments": json_of_segments(bar.segments)}
        for bar in timeline.bars
    ]
    return named(asdict(timeline)) | {"bars": bars}


def command_of(run_id: uuid.UUID) -> str:
    """The command that draws it."""
    return shlex.join(["qwf", "run", "timeline", str(run_id)])
