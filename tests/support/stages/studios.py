"""Real `gpu` workers with models, and what they write down."""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
from support.processes.workers import running_worker, until
from support.rows.jobs import Jobs

from queue_workflows.models import WorkerHeartbeat
from queue_workflows.repositories import HeartbeatRepository


class ModelStudio:
    """The node jobs of the queue `gpu`, workers for them, and their models' log."""

    def __init__(self, dsn: str, connection: psycopg.Connection, place: Path) -> None:
        self.dsn, self.connection, self.place = dsn, connection, place
        self.jobs = Jobs("node", connection)
        self.jobs.queue = "gpu"

    def enqueue(self, model: str | None, *, module: str = "draw", **more: Any) -> int:
        """One job that wants a model."""
        (job,) = self.jobs.enqueue(node_module=module, required_model=model, **more)
        return job

    def worker(self, *options: str, **settings: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """A real worker of the queue."""
        told = {"QWF_APP": "support.apps.models_app", "MODELS_AT": str(self.place)} | settings
        return running_worker(self.dsn, "--queue", "gpu", *options, **told)

    def keep(self, *names: str) -> None:
        """Have what is called so wait: `loading-MODEL`, `running-NODE`."""
        for name in names:
            (self.place / name).touch()

    def let_go(self, name: str) -> None:
        """Have it wait no more."""
        (self.place / name).unlink()

    def log(self) -> list[str]:
        """What happened, in order."""
        path = self.place / "log"
        return path.read_text().splitlines() if path.exists() else []

    def until_logged(self, line: str, times: int = 1) -> None:
        """Wait until that has happened so often."""
        until(lambda: self.log().count(line) >= times)

    def until_in(self, status: str, *ids: int) -> None:
        """Wait until all of these jobs are in a status."""
        until(lambda: all(self.jobs.seen(each, "status") == (status,) for each in ids))

    def beats(self) -> list[WorkerHeartbeat]:
        """The workers that there are."""
        return HeartbeatRepository(self.connection).list(queue="gpu")
