"""By which name a job has its workspace."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from queue_workflows.repositories.sql.claimed_job import ClaimedJob, ClaimedNodeJob

_WHEN: Final = "%Y%m%dT%H%M%S%f"
_INGEST: Final = re.compile(r"ingest-([0-9]{1,18})-([0-9]{8}T[0-9]{12})")


def workspace_name(job: ClaimedJob) -> str:
    """That of its run, or of the ingest job's id and making: an id comes again in another database."""
    if isinstance(job, ClaimedNodeJob):
        return str(job.run_id)
    return f"ingest-{job.id}-{job.created_at.astimezone(UTC).strftime(_WHEN)}"


def ingest_job_of(name: str) -> tuple[int, datetime] | None:
    """Which ingest job a workspace of this name belongs to, by its id and when it was made."""
    if (found := _INGEST.fullmatch(name)) is None:
        return None
    with suppress(ValueError):
        return int(found[1]), datetime.strptime(found[2], _WHEN).replace(tzinfo=UTC)
    return None
