"""Jobs: found by a filter, one with why it waits, and those that failed in groups."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from queue_workflows.drawing.words import number_of
from queue_workflows.engine.explain.time_spent import sentence_of
from queue_workflows.engine.explain.wait_bar import A_LOOK
from queue_workflows.errors import PayloadError, UnknownJob
from queue_workflows.models import DurableStep
from queue_workflows.repositories.reports.job_listing import FAILURES_READ as MOST_FAILURES_READ
from queue_workflows.repositories.reports.job_listing import Failures
from queue_workflows.repositories.sql.families import INGEST, Family, named_job
from queue_workflows.states import JOB_TERMINAL, StepStatus
from queue_workflows.views.filters.jobs import KEYS, STATUSES, job_filter, text_of
from queue_workflows.views.forecast.lines import lines_of_job
from queue_workflows.views.jobs import explain, failures, job, listing, steps
from queue_workflows.views.jobs.names import name_of
from queue_workflows.web.access.redaction import KINDS
from queue_workflows.web.page import MOST_ROWS, ROWS, Look, Shown, href
from queue_workflows.web.pages.links import Explained, linked
from queue_workflows.web.pages.redacted import redacted_explanation
from queue_workflows.web.pages.search import found_data
from queue_workflows.web.rendering.pictures import wait_bar_picture

# Of each family in one look: their errors are read and put into the form of their groups.
FAILURES_READ: Final = 1_500
# For how long the rows of each family are searched, by what the first of them took.
SEARCHED_FOR_S: Final = 0.03
_STEP_LOOKS: Final = {
    StepStatus.DONE: "completed",
    StepStatus.FAILED: "failed",
    StepStatus.WAITING: "scheduled",
}
# Shown on their own, or by what is made of them: of past holds that is the history.
_APART = frozenset({"id", "errors", "past_holds"} | {name for name, kind in KINDS.items() if kind != "note"})


def jobs(look: Look) -> Shown:
    """The newest jobs that match, as far back as one look reaches."""
    wanted, limit = job_filter(look.word("q")), look.number("limit", ROWS)
    before = look.word("before") or None
    # A program gets what the command prints, however long that takes. What is rendered again and again looks
    # at as many jobs each time, or it would differ by how busy the machine is.
    is_seen, is_live = look.as_json is False, before is None
    within_s = SEARCHED_FOR_S if is_seen and not is_live else None
    found = listing.job_page(
        look.conn, wanted, limit=limit, before=before, within_s=within_s, narrow=is_seen and is_live
    )
    text = text_of(wanted)
    return Shown(
        title="Jobs",
        template="jobs.html",
        command=listing.command_of(wanted, limit=limit, before=before),
        data=found_data(look, "/jobs", found, text=text, keys=KEYS, statuses=STATUSES)
        | {"is_first": is_live},
        json=listing.json_of(found),
        is_live=is_live,
        cursor=found.cursor,
    )


def one_job(look: Look) -> Shown:
    """All that is stored of a job, and why it waits."""
    stored, told = _read(look)
    return _shown(look, stored, told, job.command_of(stored.name), job.json_of(stored))


def explained(look: Look) -> Shown:
    """The explanation alone is the answer for programs; for eyes it stands on the job's page."""
    stored, told = _read(look, foretells=True)
    shown = _shown(look, stored, told, explain.command_of(stored.name), explain.json_of(told))
    # To foretell it each second would cost more than to watch it; a reload tells it anew.
    return replace(shown, is_live=False)


def _read(look: Look, *, foretells: bool = False) -> tuple[job.StoredJob, explain.ExplainedJob]:
    family, job_id = named(look.parts["job"])
    # Of a page alone in brief, as each of those that come before may lie on a page of the table of its own.
    is_brief = look.as_json is False
    told = explain.explained_job(
        look.conn, family, job_id, look.knowledge(), brief=is_brief, foretells=foretells
    )
    stored = job.stored_of(told.there)
    return stored, replace(told, explanation=redacted_explanation(told.explanation, look.redaction))


def _shown(look: Look, stored: job.StoredJob, told: explain.ExplainedJob, command: str, json: Any) -> Shown:
    columns = stored.columns
    run = str(columns["run_id"]) if columns.get("run_id") else None
    values = [
        (name, look.redaction.shown(KINDS[name], columns[name]))
        for name in ("args", "inputs", "context_delta", "result", "progress")
        if columns.get(name) not in (None, {}, [])
    ]
    bar, is_over = told.past.bar, columns["status"] in JOB_TERMINAL
    has_waited = told.past.spent.waited >= A_LOOK
    sections = {"time": bar, "attempts": stored.errors, "values": values, "steps": stored.steps}
    of = Explained(
        run=run,
        node=columns.get("node_id"),
        job=stored.name,
        queue=columns["queue"],
        worker=columns["claimed_by"],
        host=next((w.host_label for w in told.there.workers if w.worker_id == columns["claimed_by"]), None),
        schedule=columns.get("schedule_name"),
        sections=frozenset(name for name, there in sections.items() if there),
    )
    return Shown(
        title=f"{stored.name} {stored.title}",
        template="job.html",
        command=command,
        data={
            "job": stored,
            "row": columns,
            "run": run,
            "wait_bar": wait_bar_picture(bar, columns["status"]),
            "waits": {segment.kind for segment in bar},
            "waited": sentence_of(told.past.spent, is_over=is_over) if has_waited else None,
            "explanation": told.explanation,
            "forecast": None if told.forecast is None else list(lines_of_job(told.forecast)),
            "reasons": linked(told.explanation.reasons, of, prefix=look.prefix),
            "values": values,
            "steps": _shown_steps(look, stored.steps),
            "more_steps": steps.said_of_more(stored.name, stored.steps, MOST_ROWS),
            "errors": [look.redaction.value("error", dict(one)) for one in reversed(stored.errors)],
            "facts": [
                (name, value)
                for name, value in look.redaction.columns(columns).items()
                if name not in _APART and value not in (None, [], {}, False)
            ],
            "is_over": is_over,
        },
        json=json,
        is_live=not is_over,
    )


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step of a durable function as a row: its look is the state of a job that is at the same."""

    step: DurableStep
    label: str
    look: str
    took: timedelta | None
    came_to: str
    child: str | None


def _shown_steps(look: Look, stored: Sequence[DurableStep]) -> list[ShownStep]:
    return [
        ShownStep(
            one,
            steps.label_of(one),
            _STEP_LOOKS[StepStatus(one.status)],
            None if one.finished_at is None else one.finished_at - one.started_at,
            _came_to(look, one),
            None if one.child_id is None else name_of(INGEST, one.child_id),
        )
        for one in steps.first_of(stored, MOST_ROWS)
    ]


def _came_to(look: Look, step: DurableStep) -> str:
    if step.error is not None:
        said = step.error.get("type"), step.error.get("message") or step.error.get("kind")
        return look.redaction.shown("error", ": ".join(str(one) for one in said if one))
    return "" if step.result is None else look.redaction.shown("result", step.result)


def failed(look: Look) -> Shown:
    """What failed lately, alike errors together; as many failures as one look is quick with."""
    since = look.span("since", "7d")
    queue, before = look.word("queue") or None, look.word("before") or None
    most = look.number("limit", FAILURES_READ, most=MOST_FAILURES_READ)
    found = failures.failure_groups(look.conn, since_s=since, queue=queue, most=most, before=before)
    further = {"queue": queue, "since": look.word("since") or None, "limit": look.word("limit") or None}
    return Shown(
        title="Failures",
        template="failures.html",
        command=failures.command_of(since_s=since, queue=queue, most=most, before=before),
        data={
            "found": found,
            "groups": [(group, *_named(look, group)) for group in found.groups[:MOST_ROWS]],
            "queue": queue,
            "since": look.word("since", "7d"),
            "failed": None if found.failed is None else number_of("job", found.failed),
            "further": href(look.prefix + "/failures", **further, before=found.cursor)
            if found.cursor
            else None,
        },
        json=failures.json_of(found),
        is_live=before is None,
        cursor=found.cursor,
    )


def _named(look: Look, group: Failures) -> tuple[str, str | None]:
    """A group's error as it may be shown, and the filter of its jobs; None where that would say more."""
    error = look.redaction.shown("error", group.error) if group.error else ""
    return error, text_of(failures.filter_of(group)) if error == group.error else None


def named(name: str) -> tuple[Family, int]:
    """The job of an address, which always has the family."""
    found = named_job(name)
    if found is None or found[0] is None:
        raise UnknownJob(name[:80])
    return found[0], found[1]


def named_run(name: str) -> uuid.UUID:
    """The run of an address."""
    try:
        return uuid.UUID(name)
    except ValueError:
        raise PayloadError(f"{name[:80]!r} is no run's id", path="run") from None
