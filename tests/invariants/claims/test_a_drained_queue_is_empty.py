"""When `qwf queue run --drain` is through, nothing is left to claim, and it tells what became of the jobs."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes.commands import qwf_here
from support.processes.supervised import Supervised
from support.processes.workers import patiently
from support.stages.floor import Floor

from queue_workflows.cli.log.log_lines import level_of
from queue_workflows.repositories import LimitRepository, NewIngestJob
from queue_workflows.repositories.jobs.bulk_insert import Enqueued


def run(dsn: str, *options: str, **settings: str) -> Supervised:
    """The command, as a real process with what it starts."""
    return Supervised(
        [sys.executable, "-m", "queue_workflows", "queue", "run", "fetch", *options],
        dsn,
        env={"QWF_APP": "support.tasks.worker_tasks", "QWF_GRACE_S": "300", **settings},
    )


def told(process: Supervised) -> dict[str, Any]:
    """What it printed at the end."""
    start = max(number for number, line in enumerate(process.said) if line == "{")
    return json.loads("\n".join(process.said[start : process.said.index("}", start) + 1]))


def enqueue(floor: Floor, task: str, count: int = 1, **fields: Any) -> list[Enqueued]:
    return floor.repository.enqueue_many(
        NewIngestJob(task_name=task, **{"queue": "fetch"} | fields) for _ in range(count)
    )


def left(dsn: str) -> tuple[int, int]:
    """What `qwf queue stats` shows as queued and running."""
    queues = json.loads(qwf_here("--db", dsn, "queue", "stats", "--json").stdout)["queues"]
    return sum(one["queued"] for one in queues), sum(one["running"] for one in queues)


def test_drain_then_stats_shows_zero_queued_and_running(floor, qwf_dsn):
    """Whatever the jobs do; 1, as some failed, wait for another try, or are of a task that nobody knows."""
    enqueue(floor, "note", 50)
    enqueue(floor, "fails", 2, max_attempts=1)
    enqueue(floor, "fails", 3, max_attempts=2, backoff_s=600.0)
    enqueue(floor, "nobody", 4)
    enqueue(floor, "later", 5)
    enqueue(floor, "note", 6, delay=600)
    with run(qwf_dsn, "--drain", "--json") as process:
        assert process.status(300) == 1
    assert told(process) == {
        "queue": "fetch",
        "ended": {"completed": 50, "failed": 2},
        "put_off": {"retry": 3, "unknown_task": 4, "later": 11},
        "queued": 0,
        "running": 0,
    }
    assert left(qwf_dsn) == (0, 0)


def test_a_quiet_drain_tells_of_errors_alone(floor: Floor, qwf_dsn: str) -> None:
    """Beside its table: what failed, with its traceback, and nothing of how the worker is."""
    enqueue(floor, "fails", max_attempts=1)
    enqueue(floor, "nobody")
    with run(qwf_dsn, "--drain", "--quiet") as process:
        assert process.status(300) == 1
    assert [level for line in process.said if (level := level_of(line))] == ["ERROR"]
    assert any(line.startswith("Traceback") for line in process.said)


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_what_a_dead_worker_left_is_drained_as_well(floor: Floor, concurrency: str) -> None:
    """Its lease is over before the drain begins, so its job is part of what there is to drain."""
    job = floor.enqueue()
    assert floor.repository.claim("fetch", worker_id="gone", lease_s=300, limit=1)
    floor.jobs.lapse(job)
    with floor.worker("--drain", "--concurrency", concurrency) as worker:
        assert worker.wait(150) == 0
    assert floor.jobs.seen(job, "status", "attempt") == ("completed", 2)


# Each time that a worker takes its leave, what has failed once is due again.
DUE_AT_THE_END = """
CREATE OR REPLACE FUNCTION due_at_the_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE ingest_jobs SET status = 'queued', run_at = statement_timestamp()
    WHERE status = 'scheduled' AND failures = 1;
    RETURN NULL;
END $$;
CREATE TRIGGER due_at_the_end AFTER DELETE ON worker_heartbeats
FOR EACH ROW EXECUTE FUNCTION due_at_the_end()
"""


@pytest.mark.slow
def test_what_is_due_when_its_worker_ends_is_done_too(floor, qwf_dsn):
    """A failure's delay may be over at that very moment, though nothing has ended meanwhile."""
    enqueue(floor, "fails", 2, max_attempts=3, backoff_s=600.0)
    floor.connection.execute(DUE_AT_THE_END)
    try:
        with run(qwf_dsn, "--drain", "--json") as process:
            assert process.status(300) == 1
    finally:
        floor.connection.execute("DROP TRIGGER due_at_the_end ON worker_heartbeats")
    assert told(process) == {
        "queue": "fetch",
        "ended": {},
        "put_off": {"retry": 2},
        "queued": 0,
        "running": 0,
    }
    assert left(qwf_dsn) == (0, 0)


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_its_jobs_done(floor, qwf_dsn):
    """A job that kills its worker each time ends as failed; all the others are done."""
    enqueue(floor, "suicide", 2)
    enqueue(floor, "note", 50)
    with run(qwf_dsn, "--drain", "--json") as process:
        assert process.status(900) == 1
    assert told(process)["ended"] == {"completed": 50, "failed": 2}
    assert left(qwf_dsn) == (0, 0)


@pytest.mark.slow
def test_nothing_failed_is_0_with_a_table(floor, qwf_dsn):
    """Only what happens meanwhile counts; and who waits for a limit that this frees is waited for."""
    enqueue(floor, "fails", max_attempts=1)
    with run(qwf_dsn, "--drain") as process:
        assert process.status(300) == 1
    enqueue(floor, "note", 3)
    LimitRepository(floor.connection).set("host:a", 1, actor="ann")
    enqueue(floor, "note", 100, limit_key="host:a")
    with run(qwf_dsn, "--drain") as process:
        assert process.status(300) == 0
    assert process.said[-2:] == ["OUTCOME    JOBS", "completed  103"]
    with run(qwf_dsn, "--drain") as process:
        assert process.status(300) == 0
    assert process.said[-1] == "there was nothing to do on fetch"
    enqueue(floor, "nobody")
    with run(qwf_dsn, "--drain") as process:
        assert process.status(300) == 1
    assert "no worker here knows the tasks of some" in process.said[-1]


@pytest.mark.slow
def test_ctrl_c_lets_the_current_job_finish(floor, qwf_dsn, tmp_path):
    """Nothing is claimed after it, what it leaves is told, and the status is 130."""
    begun, until = tmp_path / "begun", tmp_path / "until"
    enqueue(floor, "deaf", args={"begun": str(begun), "until": str(until)})
    with run(qwf_dsn, "--drain", "--json") as process:
        patiently(begun.exists)  # one that is claimed and not begun is given back
        process.signal(signal.SIGINT)
        process.until("the supervisor: stopping", 300)
        enqueue(floor, "note", 3)
        Path(until).touch()
        assert process.status(300) == 130
    assert told(process) | {"put_off": {}} == {
        "queue": "fetch",
        "ended": {"completed": 1},
        "put_off": {},
        "queued": 3,
        "running": 0,
    }


@pytest.mark.slow
def test_a_worker_that_cannot_begin_ends_it(floor, qwf_dsn, tmp_path):
    """With the worker's own words and status; nobody is there to mend it meanwhile."""
    wiring = tmp_path / "only_once.py"
    wiring.write_text(
        "import os\nif os.environ.get('QWF_LAUNCHER_PID'):\n    raise RuntimeError('no second time')\n"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    with run(qwf_dsn, "--drain", QWF_APP="only_once", PYTHONPATH=paths) as process:
        assert process.status(300) == 78
    assert any("no second time" in line for line in process.said)
    assert any("ended with 78" in line for line in process.said)
