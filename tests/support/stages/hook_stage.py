"""Plugins, runs of their hooks, and real workers, put together for a test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from support.processes.workers import running_worker, until
from support.rows.runs import dispatcher, settle

from queue_workflows.hooks.plugins.compile import compile_hooks
from queue_workflows.repositories import RunRepository
from queue_workflows.workflow.document.load import load_document

# Waits for a file, as other hooks make one.
UNTIL = "while [ ! -e {} ]; do sleep 0.1; done"


class Stage:
    """Plugins, a run of their hooks, and a worker."""

    def __init__(self, dsn: str, connection: psycopg.Connection[Any], directory: Path) -> None:
        self.dsn, self.connection, self.directory = dsn, connection, directory
        self.plugins, self.data = directory / "plugins", directory / "data"
        self.dispatcher = dispatcher(connection)

    def put(self, hook: str, *lines: str, **config: Any) -> None:
        path = self.plugins / hook
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
        path.chmod(0o755)
        if config:
            (path.parent / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def start(self, event: str = "Page", **inputs: Any) -> Any:
        document = load_document(compile_hooks(event, [self.plugins]))
        runs = RunRepository(self.connection)
        run_id = runs.insert(
            document.name, spec=document.snapshot(), spec_hash=document.hash, inputs=inputs
        ).id
        settle(self.dispatcher)
        return run_id

    @contextmanager
    def worker(self, *options: str, **settings: str) -> Iterator[Any]:
        with running_worker(
            self.dsn,
            "--queue",
            "hooks",
            *options,
            **{"QWF_HOOK_DIRS": str(self.plugins), "QWF_DATA_DIR": str(self.data)} | settings,
        ) as process:
            yield process

    def until(self, look: Any) -> None:
        """Dispatch until something is so."""

        def seen() -> Any:
            settle(self.dispatcher)
            return look()

        try:
            until(seen)
        except AssertionError:
            raise AssertionError(self.jobs()) from None

    def status(self, run_id: Any) -> str:
        run = RunRepository(self.connection).fetch(run_id)
        assert run is not None
        return run.status

    def jobs(self) -> dict[str, tuple[Any, ...]]:
        """Status and attempt of each job, by its hook's file."""
        rows = self.connection.execute(
            "SELECT node_module, status, attempt FROM workflow_node_jobs ORDER BY id"
        )
        return {name: tuple(rest) for name, *rest in rows.fetchall()}

    def jobs_of(self, status: str) -> int:
        """How many jobs are so, in all runs."""
        row = self.connection.execute(
            "SELECT count(*) FROM workflow_node_jobs WHERE status = %s", [status]
        ).fetchone()
        return int(row[0]) if row else 0

    def gate(self, run_id: Any, name: str = "gate") -> Path:
        """A pipe that whoever reads it waits at, without a turn of the processor, until somebody writes."""
        path = self.file(run_id, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        return path

    def until_through(self, gate: Path, look: Any) -> None:
        """The same, while everybody is let through a gate who comes to it."""

        def seen() -> Any:
            # Without a reader at this moment it cannot be opened.
            with suppress(OSError):
                os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            return look()

        self.until(seen)

    def file(self, run_id: Any, name: str) -> Path:
        return self.data / "runs" / str(run_id) / name


def result(status: str, said: str = "") -> str:
    return f"echo '{json.dumps({'type': 'Result', 'status': status, 'output_str': said})}'"
