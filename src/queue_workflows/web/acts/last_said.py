"""What operators did last to things that an act leaves as they are: two on one set learn of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import psycopg

from queue_workflows.drawing.words import say_moment
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.repositories.sql.families import BY_NAME
from queue_workflows.web.acts.act import Line

# Each is asked for by itself.
_MOST: Final = 20


def with_last(connection: psycopg.Connection[Any], kind: str, lines: Sequence[Line]) -> dict[str, Line]:
    """By name the first of these lines, each with what the audit log says last of it."""
    return {line.name: _with_last(connection, kind, line) for line in lines[:_MOST]}


def _with_last(connection: psycopg.Connection[Any], kind: str, line: Line) -> Line:
    subject = line.name
    if kind == "job":
        family, _, subject = line.name.partition(":")
        kind = BY_NAME[family].title
    for last in AuditRepository(connection).of(kind, subject, limit=1):
        why = f": {last.reason}" if last.reason else ""
        return replace(
            line, said=f"{line.said} ({last.action} by {last.actor} at {say_moment(last.at)}{why})"
        )
    return line
