"""Jobs as operators name them: `ingest:7`, `node:7`, or plainly `7` where only one of the two exists."""

from __future__ import annotations

from typing import Any

import click
import psycopg

from queue_workflows.errors import UnknownJob
from queue_workflows.repositories.explain.explain_job import ExplainingRepository
from queue_workflows.repositories.sql.families import Family, named_job


def job_named(connection: psycopg.Connection[Any], name: str) -> tuple[Family, int]:
    """The family and the id; a family that is named is believed, whether or not there is such a job."""
    found = named_job(name.strip())
    if found is None:
        raise click.BadParameter(f"{name!r} is no job: write ingest:7, node:7, or 7")
    family, job_id = found
    if family is not None:
        return family, job_id
    families = ExplainingRepository(connection).families(job_id)
    if not families:
        raise UnknownJob(name)
    if len(families) > 1:
        both = " and ".join(f"{family.name}:{job_id}" for family in families)
        raise click.BadParameter(f"there are {both}: say which")
    return families[0], job_id
