"""Hooks in a real worker: what a run of scripts comes to, step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.jobs import CLEAR
from support.runs import dispatcher, settle
from support.workers import running_worker, until

from queue_workflows.hooks.compiling import compile_hooks
from queue_workflows.repositories import RunRepository
from queue_workflows.workflow.spec import load_document


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
            QWF_HOOK_DIRS=str(self.plugins),
            QWF_DATA_DIR=str(self.data),
            **settings,
        ) as process:
            yield process

    def until(self, look: Any) -> None:
        """Dispatch until something is so."""

        def seen() -> Any:
            settle(self.dispatcher)
            return look()

        until(seen)

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

    def file(self, run_id: Any, name: str) -> Path:
        return self.data / "runs" / str(run_id) / name


@pytest.fixture
def stage(qwf_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR + "; TRUNCATE worker_heartbeats")
        yield Stage(qwf_dsn, connection, tmp_path)


def result(status: str, said: str = "") -> str:
    return f"echo '{json.dumps({'type': 'Result', 'status': status, 'output_str': said})}'"


def test_every_way_in_which_a_hook_may_end(stage: Stage) -> None:
    """Each in its own way, and none of them stops what comes later."""
    stage.put("a/on_Page__10_ok.sh", result("succeeded", "fine"), 'echo "$*" > args')
    stage.put("b/on_Page__11_soft.sh", result("failed", "no title"))
    stage.put("c/on_Page__12_skips.sh", result("skipped", "no need"))
    stage.put(
        "d/on_Page__13_hard.sh",
        "echo partial > partial",
        "echo broken >&2",
        "exit 3",
        **{"x-max-attempts": 2, "x-retry-s": 0},
    )
    stage.put(
        "e/on_Page__14_once.sh",
        "[ -e again ] && exit 0",
        "touch again",
        "exit 1",
        **{"x-max-attempts": 3, "x-retry-s": 0},
    )
    stage.put(
        "f/on_Page__15_off.sh", "touch ran", properties={"F_ENABLED": {"type": "boolean", "default": False}}
    )
    stage.put("g/on_Page__16_silent.sh", "true")
    stage.put(
        "h/on_Page__17_slow.sh",
        "sleep 600",
        properties={"H_TIMEOUT": {"type": "number", "default": 0.3}},
        **{"x-max-attempts": 1},
    )
    stage.put("z/on_Page__20_later.sh", "ls ../a > seen")
    run_id = stage.start(url="https://example.org/ x", tags=["a", "b"], enable_js=True)
    with stage.worker(QWF_BACKOFF_JITTER_S="0"):
        stage.until(lambda: stage.status(run_id) == "failed")
    assert stage.jobs() == {
        "on_Page__10_ok.sh": ("completed", 1),
        "on_Page__11_soft.sh": ("failed", 1),
        "on_Page__12_skips.sh": ("skipped", 1),
        "on_Page__13_hard.sh": ("failed", 2),
        "on_Page__14_once.sh": ("completed", 2),
        "on_Page__15_off.sh": ("skipped", 1),
        "on_Page__16_silent.sh": ("completed", 1),
        "on_Page__17_slow.sh": ("failed", 1),
        "on_Page__20_later.sh": ("completed", 1),
    }
    assert stage.file(run_id, "a/args").read_text() == "--url=https://example.org/ x --tags=a,b --enable-js\n"
    assert "args" in stage.file(run_id, "z/seen").read_text()
    assert not stage.file(run_id, "f/ran").exists()
