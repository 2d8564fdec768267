"""Why a job does not run, what it is at, or how it ended."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from queue_workflows.engine.explain.job import Explanation, Knowledge, explain
from queue_workflows.engine.explain.time_spent import Past, past_of
from queue_workflows.engine.explain.time_spent import json_of as past_json
from queue_workflows.errors import UnknownJob
from queue_workflows.repositories.explain.explain_job import Circumstances, ExplainingRepository
from queue_workflows.repositories.sql.families import Family
from queue_workflows.views.forecast.job import JobForecast, job_forecast
from queue_workflows.views.forecast.job import json_of as forecast_json
from queue_workflows.views.jobs.names import name_of


@dataclass(frozen=True, slots=True)
class ExplainedJob:
    """A job's explanation beside the circumstances that it was found in."""

    name: str
    there: Circumstances
    explanation: Explanation
    past: Past
    forecast: JobForecast | None = None


def explained_job(
    connection: psycopg.Connection[Any],
    family: Family,
    job_id: int,
    known: Knowledge,
    *,
    brief: bool = False,
    foretells: bool = False,
) -> ExplainedJob:
    """The explanation of a job, or `UnknownJob`; read within one snapshot, so that its parts fit together.

    In brief the jobs that come before it are counted to a thousand. Where it `foretells`, the job's start and
    end are reckoned too.
    """
    repository = ExplainingRepository(connection, stale_s=known.stale_s)
    there = repository.circumstances(family, job_id, brief=brief)
    if there is None:
        raise UnknownJob(name_of(family, job_id))
    past = past_of(connection, there)
    forecast = None
    if foretells:
        forecast = job_forecast(connection, there, stale_s=known.stale_s, brief=brief)
    return ExplainedJob(name_of(family, job_id), there, explain(there, known), past, forecast)


def json_of(job: ExplainedJob) -> dict[str, Any]:
    """What `qwf explain JOB --json` prints."""
    row = job.there.job
    told = {"job": job.name, "status": row.status, "queue": row.queue} | asdict(job.explanation)
    return told | {"past": past_json(job.past), "estimate": forecast_json(job.forecast)}


def command_of(name: str) -> str:
    """The command that explains a job."""
    return shlex.join(["qwf", "explain", name])
