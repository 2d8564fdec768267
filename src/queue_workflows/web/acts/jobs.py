"""Cancelling and retrying jobs, by their names or by a filter."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import psycopg

from queue_workflows.drawing.words import COUNTED
from queue_workflows.engine.operate.many_jobs import RUN_OVER, Verb, decide_matching
from queue_workflows.errors import FilterRefused, PayloadError
from queue_workflows.repositories.reports.job_listing import JobFilter, SelectingRepository
from queue_workflows.repositories.reports.job_search import JobLine
from queue_workflows.repositories.sql.families import Family, named_job
from queue_workflows.settings import Settings
from queue_workflows.views.filters.jobs import job_filter, text_of
from queue_workflows.views.jobs.decisions import BECAME, DONE, applies, decide, foretell, meant
from queue_workflows.views.jobs.listing import job_page
from queue_workflows.views.jobs.names import name_of
from queue_workflows.web.acts.act import SHOWN_FIRST, Act, Asked, By, Done, Line, Preview
from queue_workflows.web.acts.counting import NOT_COUNTED, counted, first, say_count
from queue_workflows.web.acts.last_said import with_last
from queue_workflows.web.page import href

Connection = psycopg.Connection[Any]
_LABELS: Final = {Verb.CANCEL: "Cancel", Verb.RETRY: "Retry"}


def job_act(verb: Verb) -> Act:
    """The act of one verb over jobs."""

    def preview(connection: Connection, asked: Asked, _settings: Settings) -> Preview:
        return _by_filter(connection, verb, asked) if asked.where else _named(connection, verb, asked)

    def perform(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
        return (
            _decide_matching(connection, verb, asked, by)
            if asked.where
            else _decide(connection, verb, asked, by)
        )

    return Act(
        name=f"job.{verb}",
        label=_LABELS[verb],
        target=job_target,
        preview=preview,
        perform=perform,
        filter=lambda text: _filter(verb, text),
        is_grave=verb is Verb.CANCEL,
    )


def job_target(name: str) -> str:
    """A job's whole name; a number alone may be of two jobs."""
    return name_of(*_job(name))


def _job(name: str) -> tuple[Family, int]:
    found = named_job(name)
    if found is None or found[0] is None:
        raise PayloadError(f"{name!r:.80} is no job", path="target", advice="write ingest:7 or node:7")
    return found[0], found[1]


def _filter(verb: Verb, text: str) -> str:
    said = job_filter(text)
    if said.is_empty and said.status is None:
        raise FilterRefused("this filter is empty, which would be every job: say which are meant", word="")
    for status in said.status or ():
        if not applies(verb, status):
            raise FilterRefused(f"no job that is {status} can be {DONE[verb]}", word=f"status:{status}")
    return text_of(said)


def _command(verb: Verb, asked: Asked) -> str:
    words = list(asked.targets) if asked.where is None else ["--where", asked.where]
    return shlex.join(["qwf", "job", verb.value, *words])


def _back(asked: Asked) -> str:
    if asked.where is not None:
        return href("/jobs", q=asked.where)
    return f"/jobs/{asked.targets[0]}" if len(asked.targets) == 1 else "/jobs"


def _named(connection: Connection, verb: Verb, asked: Asked) -> Preview:
    told = foretell(connection, verb, [_job(name) for name in asked.targets])
    lines = [_line(name, told.answers[name]) for name in asked.targets]
    if len(lines) > SHOWN_FIRST:
        # What would be left as it is comes first: that is what there is to know.
        lines.sort(key=lambda line: line.name in told.applied)
    count = len(told.applied)
    left = len(told.answers) - count
    said = with_last(
        connection, "job", [line for line in lines[:SHOWN_FIRST] if line.name not in told.applied]
    )
    return Preview(
        headline=f"{_LABELS[verb]} {say_count('job', count) if len(lines) > 1 else asked.targets[0]}",
        count=count,
        lines=tuple(said.get(line.name, line) for line in lines[:SHOWN_FIRST]),
        notes=(f"{say_count('job', left)} of {len(lines):,} would be left alone",) if left else (),
        command=_command(verb, asked),
        back=_back(asked),
    )


def _by_filter(connection: Connection, verb: Verb, asked: Asked) -> Preview:
    wanted = meant(verb, job_filter(asked.where or ""))
    matched = _count(connection, wanted)
    count, notes = matched, []
    if matched is None:
        notes.append(NOT_COUNTED)
    elif verb is Verb.RETRY and matched < COUNTED:
        going_on = _count(connection, replace(wanted, goes_on=True))
        if going_on is not None and going_on < matched:
            count = going_on
            notes.append(f"{say_count('job', matched - going_on)} would be {BECAME[RUN_OVER]}")
    lines = first(connection, lambda: job_page(connection, wanted, limit=SHOWN_FIRST).lines)
    return Preview(
        headline=f"{_LABELS[verb]} {say_count('job', count)}",
        count=count,
        is_capped=count is not None and count >= COUNTED,
        lines=tuple(_line(line.name, _said(line)) for line in lines),
        notes=tuple(notes),
        command=_command(verb, asked),
        back=_back(asked),
    )


def _count(connection: Connection, wanted: JobFilter) -> int | None:
    selecting = SelectingRepository(connection)
    return counted(connection, lambda: selecting.count(wanted, at_most=COUNTED))


def _said(line: JobLine) -> str:
    return f"{line.status} · {line.queue} · {line.title}"


def _line(name: str, said: str) -> Line:
    return Line(name, said, f"/jobs/{name}")


def _decide(connection: Connection, verb: Verb, asked: Asked, by: By) -> Iterator[Done]:
    jobs = [_job(name) for name in asked.targets]
    decided = decide(connection, verb, jobs, actor=by.actor, reason=by.reason)
    lines = [_line(name, decided.answers[name]) for name in asked.targets]
    told = with_last(connection, "job", [line for line in lines if line.name not in decided.applied])
    yield Done(
        Counter(line.said for line in lines),
        tuple(told.get(line.name, line) for line in lines),
        left=len(lines) - len(decided.applied),
    )


def _decide_matching(connection: Connection, verb: Verb, asked: Asked, by: By) -> Iterator[Done]:
    wanted = meant(verb, job_filter(asked.where or ""))
    for became in decide_matching(connection, verb, wanted, actor=by.actor, reason=by.reason):
        words = Counter({BECAME[word]: count for word, count in became.items()})
        yield Done(words, left=became[RUN_OVER])
