"""Where a name leads that somebody typed into the search field: a job, a run, or else a filter of jobs."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import psycopg

from queue_workflows.repositories.explain.explain_job import ExplainingRepository
from queue_workflows.repositories.runs.listing import RunLinesRepository
from queue_workflows.repositories.runs.runs import named_run
from queue_workflows.repositories.sql.families import named_job
from queue_workflows.web.page import href


def place_of(conn: psycopg.Connection[Any], wanted: str) -> str:
    """The address of what this names."""
    name = wanted.strip()
    job = named_job(name)
    if job is not None:
        family, job_id = job
        families = [family] if family is not None else ExplainingRepository(conn).families(job_id)
        if len(families) == 1:
            return f"/jobs/{families[0].name}:{job_id}"
    if named_run(name) is not None:
        return f"/runs/{named_run(name)}"
    beginning = name.removeprefix("run:").replace("-", "").lower()
    if 8 <= len(beginning) <= 32 and not set(beginning) - set("0123456789abcdef"):
        found = RunLinesRepository(conn).named(beginning)
        if found:
            return f"/runs/{quote(str(found[0]))}"
    return href("/jobs", q=name if ":" in name else f"error:{_quoted(name)}" if name else None)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
