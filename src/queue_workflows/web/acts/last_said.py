"""What operators did last to things that an act leaves as they are: two on one set learn of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.drawing.words import say_moment
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.repositories.sql.families import BY_NAME
from queue_workflows.web.acts.act import Line

if TYPE_CHECKING:
    from queue_workflows.models import AuditLog

_MOST: Final = 20


def with_last(connection: psycopg.Connection[Any], kind: str, lines: Sequence[Line]) -> dict[str, Line]:
    """By name the first of these lines, each with what the audit log says last of it."""
    subjects = {line.name: _subject(kind, line.name) for line in lines[:_MOST]}
    last = AuditRepository(connection).last_of(subjects.values()) if subjects else {}
    return {line.name: _with(line, last.get(subjects[line.name])) for line in lines[:_MOST]}


def _subject(kind: str, name: str) -> tuple[str, str]:
    if kind != "job":
        return kind, name
    family, _, job_id = name.partition(":")
    return BY_NAME[family].title, job_id


def _with(line: Line, last: AuditLog | None) -> Line:
    if last is None:
        return line
    why = f": {last.reason}" if last.reason else ""
    return replace(line, said=f"{line.said} ({last.action} by {last.actor} at {say_moment(last.at)}{why})")
