"""Hooks that mean harm, in a real worker: nothing outside is read, and nothing that they say stops it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import patiently, running_worker
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, settle

from queue_workflows import HookRecordRepository, RunRepository, start_run
from queue_workflows.hooks.plugins.compile import compile_hooks

HOOKS = {
    # Writes outside, and says that it is its output.
    "climbs": """
        mkdir -p ../../../outside && echo stolen > ../../../outside/loot
        ln -s ../../../outside inside; ln -s /etc/passwd passwd; mkfifo pipe
        echo mine > mine.txt
        echo '{"type": "Result", "status": "succeeded", "output_str": "../../etc/passwd"}'""",
    # Leaves a child that swaps a directory for a link as fast as it can, until it is ended.
    "swaps": """
        mkdir real; echo mine > real/passwd
        (while :; do ln -sfn /etc real2; mv -T real2 link 2>/dev/null; rm -f link; \
            mkdir link 2>/dev/null; echo mine > link/passwd; rm -rf link; done) >/dev/null 2>&1 &
        echo '{"type": "Result", "status": "succeeded"}'""",
    # Not a line of it can be stored as it is.
    "garbage": """
        head -c 300000 /dev/urandom
        printf '\\n{"type": "Tag", "name": "after"}\\n{"type": "Result", "status": "succeeded"}\\n'""",
    # 200 MB, without an end of a line and with many.
    "floods": """
        echo '{"type": "Tag", "name": "before"}'
        head -c 100000000 /dev/zero | tr '\\0' x
        yes '{"type": "Tag", "name": "again"}' | head -c 100000000""",
}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nothing_outside_is_read_and_nothing_stops(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path
) -> None:
    """All four end, their files are those of their own directories, and what they said is stored."""
    for plugin, script in HOOKS.items():
        hook = tmp_path / "plugins" / plugin / f"on_Page__10_{plugin}.sh"
        hook.parent.mkdir(parents=True)
        hook.write_text(f"#!/bin/bash\n{script}\n")
        hook.chmod(0o755)
    run_id = start_run(compile_hooks("Page", [tmp_path / "plugins"]), conn=conn).id
    runs, dispatching = RunRepository(conn), dispatcher(conn)

    def over() -> bool:
        settle(dispatching)
        run = runs.fetch(run_id)
        return run is not None and run.finished_at is not None

    places = {"QWF_HOOK_DIRS": str(tmp_path / "plugins"), "QWF_DATA_DIR": str(tmp_path / "data")}
    with running_worker(qwf_dsn, "--queue", "hooks", **places):
        patiently(over)
    run = runs.fetch(run_id)
    assert run is not None
    assert run.status == "completed"
    found = {
        record.plugin: [(each["path"], each["sha256"]) for each in record.payload["files"]]
        for record in HookRecordRepository(conn).list(run_id, kind="Files")
    }
    assert [path for path, _ in found["climbs"]] == ["mine.txt"]
    mine = dict(found["swaps"])["real/passwd"]
    assert {sha for path, sha in found["swaps"] if path.startswith("link")} <= {mine}
    said = {
        plugin: [
            (record.type, record.line_no) for record in HookRecordRepository(conn).list(run_id, plugin=plugin)
        ]
        for plugin in HOOKS
    }
    assert ("Tag", 1) in said["floods"]
    floods = HookRecordRepository(conn).list(run_id, plugin="floods", warnings=True)
    assert floods[-1].warning == "the output has more than 16,777,216 bytes: what follows was not read"
    assert len(said["floods"]) <= 10_300
    assert [kind for kind, _ in said["garbage"]][-2:] == ["Tag", "Result"]
    stored = conn.execute("SELECT count(*) FROM hook_records WHERE payload::text LIKE '%root:%'").fetchone()
    assert stored == (0,)
