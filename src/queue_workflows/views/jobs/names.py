"""A job's name, as commands take it and pages link it."""

from __future__ import annotations

from queue_workflows.repositories.sql.families import Family


def name_of(family: Family, job_id: int) -> str:
    """`ingest:7` or `node:7`."""
    return f"{family.name}:{job_id}"
