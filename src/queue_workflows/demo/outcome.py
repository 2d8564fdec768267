"""What a demo came to, as plain data: for the drawings, and for `--json`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from queue_workflows.engine.watch.run_view import RunOverview
from queue_workflows.states import JobStatus, RunStatus


@dataclass(frozen=True)
class Row:
    """What became of one job; `worker` None for what no worker had."""

    job: str
    name: str
    status: str
    worker: str | None
    attempt: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    result: Any


@dataclass(frozen=True)
class Outcome:
    """What happened; the jobs of the run and the ticks beside it, in the order in which they began."""

    database: str
    source: str
    server: str
    data_directory: str | None
    revisions_applied: int
    film: int
    left_by_rollback: int
    late_results_refused: int
    run: RunOverview
    jobs: tuple[Row, ...]

    @property
    def complete(self) -> bool:
        """Whether the film was made, and every tick came."""
        ticks = [row for row in self.jobs if row.job.startswith("ingest:")]
        ticked = all(row.status == JobStatus.COMPLETED for row in ticks)
        return self.run.status == RunStatus.COMPLETED and ticked
