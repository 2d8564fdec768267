"""What a worker gives back as it ends another job runs no more when somebody may begin it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.workers import running_worker, until
from support.servers.statement_proxy import Moment, StatementProxy
from support.stages.floor import ENDS, Floor

from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository

APP = {"QWF_APP": "support.tasks.spoiling_tasks", "QWF_CANCEL_GRACE_S": "0.2"}


def attempts(ledger: Path) -> list[int]:
    """What ran, in order: each whole line."""
    return [int(line) for line in ledger.read_text().split("\n")[:-1]] if ledger.exists() else []


def is_one_after_the_other(ledger: Path) -> bool:
    seen = attempts(ledger)
    return seen == sorted(seen)


@pytest.mark.slow
def test_a_sibling_of_a_job_that_hangs(floor: Floor, proxy: StatementProxy, tmp_path: Path) -> None:
    """Its process is gone although nobody has told it that they are given back; nothing of it is counted."""
    ledger = tmp_path / "written"
    beside = floor.repository.enqueue("writes on", queue="fetch", args={"ledger": str(ledger)}).id
    hangs = floor.repository.enqueue(
        "waits", queue="fetch", args={"until": str(tmp_path / "go")}, timeout_s=1, max_attempts=2
    ).id
    given_back = proxy.trap(*ENDS, moment=Moment.UNREAD)
    with running_worker(proxy.dsn, "--concurrency", "2", **APP) as worker:
        until(lambda: attempts(ledger))
        given_back.sprung()
        # The answer is held up, and the process does not wait for it.
        assert worker.wait(150) == 75
        assert floor.jobs.seen(beside, "status", "failures", "crash_count") == ("queued", 0, 0)
        assert floor.jobs.seen(hangs, "status", "failures", "crash_count") == ("scheduled", 1, 0)
        with running_worker(floor.dsn, "--concurrency", "1", **APP):
            floor.until_completed(beside)
    assert set(attempts(ledger)) == {1, 2}
    assert is_one_after_the_other(ledger)


@pytest.mark.slow
def test_a_job_that_is_switched_off(floor: Floor, proxy: StatementProxy, tmp_path: Path) -> None:
    """The worker is another program by the time when its job is queued again."""
    ledger = tmp_path / "written"
    job = floor.repository.enqueue("writes on", queue="fetch", args={"ledger": str(ledger)}).id
    given_back = proxy.trap(*ENDS, moment=Moment.UNREAD)
    control, beats = WorkerControlRepository(floor.connection), HeartbeatRepository(floor.connection)
    with running_worker(proxy.dsn, "--concurrency", "1", **APP) as worker:
        until(lambda: attempts(ledger))
        control.set("*", "fetch", "off", actor="test")
        given_back.sprung()
        written = len(attempts(ledger))
        until(lambda: beats.list(state="parked"))
        assert worker.poll() is None
        assert len(attempts(ledger)) == written
        assert floor.jobs.seen(job, "status", "failures", "crash_count") == ("queued", 0, 0)
        control.clear("*", "fetch", actor="test")
        floor.until_completed(job)
    assert is_one_after_the_other(ledger)
