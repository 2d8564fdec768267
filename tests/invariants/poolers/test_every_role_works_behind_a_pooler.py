"""A whole house behind a real PgBouncer: each job is done once, nobody's session is ended, no role ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.processes.supervised import supervisor_of
from support.processes.workers import until, worker_environment
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.servers.pgbouncer import PgBouncer
from support.stages.hook_stage import Stage, result
from support.stages.ledger import Ledger

from queue_workflows import start_run, wait_for
from queue_workflows.db.connections.bounded_wire import WireLost
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.proxies import find_proxy
from queue_workflows.errors import DatabaseUnreachable
from queue_workflows.hooks.plugins.compile import compile_hooks
from queue_workflows.repositories import IngestJobRepository, NewIngestJob, ScheduleRepository

# A house is many processes, which a busy machine starts slowly.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IGNORED = {"ignore_startup_parameters": "options,extra_float_digits"}
# A session stays with its client; a transaction needs no backend of its own.
POOLS = {"transaction": "3", "session": "60"}
CHAIN = {
    "name": "chain",
    "nodes": [
        {"id": "a", "module": "echo", "inputs": {"n": 1}},
        {"id": "b", "module": "echo", "inputs": {"n": {"$from": "a.n"}}},
    ],
    "outputs": {"n": {"$from": "b.n"}},
}
EACH_SECOND = "* * * * * *"
ROLES = (
    "--worker",
    "fetch --concurrency 1",
    "--worker",
    "load --concurrency 4",
    "--worker",
    "cpu",
    "--worker",
    "hooks",
)
LATE_S = 120.0


def qwf(dsn: str, *command: str) -> subprocess.CompletedProcess[str]:
    """The shipped command, through the proxy."""
    return subprocess.run(
        [sys.executable, "-m", "queue_workflows", *command],
        env=worker_environment(dsn),
        capture_output=True,
        text=True,
        timeout=LATE_S,
    )


class House:
    """Producers, and what became of what they enqueued."""

    def __init__(self, dsn: str, eyes: psycopg.Connection[Any], directory: Path) -> None:
        self.dsn, self.eyes = dsn, eyes
        self.ledger = Ledger(directory)

    def args(self, **more: bool) -> dict[str, Any]:
        return {"ledger": str(self.ledger.directory), "gated": False, "stuck": False, **more}

    def enqueue(self, queue: str, count: int) -> list[int]:
        """Half of them one by one on our engine, the others at once on a connection of the host app's."""
        with Database.open(self.dsn, role="producer") as database:
            ids = []
            for _ in range(count // 2):
                with database.engine.begin() as connection:
                    jobs = IngestJobRepository(connection)
                    ids.append(jobs.enqueue("recorded", queue=queue, args=self.args()).id)
        with psycopg.connect(self.dsn, prepare_threshold=None) as connection:
            wanted = (
                NewIngestJob(task_name="recorded", queue=queue, args=self.args()) for _ in range(count // 2)
            )
            return ids + [one.id for one in IngestJobRepository(connection).enqueue_many(wanted)]

    def gated(self) -> int:
        """One whose body waits."""
        with psycopg.connect(self.dsn, prepare_threshold=None) as connection:
            jobs = IngestJobRepository(connection)
            return jobs.enqueue("recorded", queue="fetch", args=self.args(gated=True)).id

    def start(self, document: dict[str, Any], **inputs: Any) -> str:
        with psycopg.connect(self.dsn, prepare_threshold=None) as connection:
            return f"run:{start_run(document, inputs, conn=connection).id}"

    def done_once(self, ids: list[int]) -> None:
        """Wait for each as a producer does, and count what its body did."""
        assert [wait_for(one, LATE_S, db_url=self.dsn)["attempt"] for one in ids] == [1] * len(ids)
        assert [self.ledger.attempts(one) for one in ids] == [[1]] * len(ids)


@contextmanager
def bystander(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A host app in the middle of a transaction through the same pool, with a lock of its own."""
    with psycopg.connect(dsn, prepare_threshold=None) as connection:
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND pid = %s"
        connection.execute("SELECT pg_advisory_xact_lock(4711)")
        pid = connection.execute("SELECT pg_backend_pid()").fetchone()
        yield connection
        assert connection.execute("SELECT pg_backend_pid()").fetchone() == pid
        assert connection.execute(held, pid).fetchone() == (1,)
        connection.commit()


# Each kind of pool and each answer to the settings of a session once; the other two pairs of them by night.
@pytest.mark.parametrize(
    ("pooling", "settings"),
    [
        pytest.param("transaction", {}, id="transaction-refused"),
        pytest.param("session", IGNORED, id="session-ignored"),
        pytest.param("transaction", IGNORED, id="transaction-ignored", marks=pytest.mark.nightly),
        pytest.param("session", {}, id="session-refused", marks=pytest.mark.nightly),
    ],
)
def test_a_whole_house_works(pooling: str, settings: dict[str, str], qwf_dsn: str, tmp_path: Path) -> None:
    """Roles, producers and commands; a worker is killed, and the proxy restarted."""
    with (
        psycopg.connect(qwf_dsn, autocommit=True) as eyes,
        PgBouncer(qwf_dsn, pooling, default_pool_size=POOLS[pooling], **settings) as pooler,
    ):
        eyes.execute(CLEAR_WITH_WORKERS + "; DELETE FROM schedules")
        house = House(pooler.dsn(), eyes, tmp_path)
        stage = Stage(qwf_dsn, eyes, tmp_path)
        stage.put("a/on_Page__10_ok.sh", result("succeeded", "fine"))
        ScheduleRepository(eyes).upsert("tick", cron=EACH_SECOND, task_name="note", queue="load")
        env = {"QWF_HOOK_DIRS": str(stage.plugins), "QWF_DATA_DIR": str(stage.data)}
        roles = (*ROLES, "--orchestrator", "--scheduler", "--no-spare", "--no-janitor")
        with supervisor_of(house.dsn, *roles, env=env) as supervisor:
            house.done_once(house.enqueue("fetch", 6) + house.enqueue("load", 20))
            run = house.start(CHAIN)
            assert wait_for(run, LATE_S, db_url=house.dsn) == {"n": 1}
            wait_for(house.start(compile_hooks("Page", [stage.plugins])), LATE_S, db_url=house.dsn)
            check_commands(house, pooling, house.start(CHAIN))
            until(lambda: ticks(eyes) > 1)

            gated = house.gated()
            pid = until(lambda: [one.pid for one in house.ledger.begun(gated)])[0]
            with bystander(house.dsn):
                os.kill(pid, signal.SIGKILL)
                until(lambda: house.ledger.attempts(gated) == [1, 2])
                house.done_once(house.enqueue("load", 4))
            house.ledger.open_gate(gated, 2)
            assert wait_for(gated, LATE_S, db_url=house.dsn)["attempt"] == 2

            pooler.restart()
            house.done_once(house.enqueue("fetch", 2) + house.enqueue("load", 4))
            before = ticks(eyes)
            until(lambda: ticks(eyes) > before)
            assert wait_for(house.start(CHAIN), LATE_S, db_url=house.dsn) == {"n": 1}
            assert supervisor.stop() == 0
        check_said(supervisor.said, pooling, pid)
        assert eyes.execute("SELECT count(*) FROM ingest_jobs WHERE crash_count > 0").fetchone() == (1,)
        assert doubled(eyes) == []


def test_what_ends_during_the_look_was_not_looked_at(qwf_dsn: str) -> None:
    """A proxy that ends between the two looks is no other kind of proxy from then on: the look fails."""
    with PgBouncer(qwf_dsn, "session") as pooler:

        def another() -> psycopg.Connection[Any]:
            return psycopg.connect(pooler.dsn(), autocommit=True)

        def another_after_the_end() -> psycopg.Connection[Any]:
            pooler.stop()
            return another()

        def another_that_ends() -> psycopg.Connection[Any]:
            second = another()
            pooler.stop()
            return second

        def refused() -> psycopg.Connection[Any]:
            raise DatabaseUnreachable("no connection is left", advice="wait")

        with another() as first:
            assert find_proxy({}, first, another).pooling == "session"
            assert find_proxy({}, first, refused).pooling == "transaction"
            with pytest.raises((WireLost, psycopg.Error)):
                find_proxy({}, first, another_after_the_end)
        pooler.start()
        with another() as first, pytest.raises((WireLost, psycopg.Error)):
            find_proxy({}, first, another_that_ends)


def check_commands(house: House, pooling: str, run: str) -> None:
    """Each says what it has to, and ends as it should."""
    commands = (["run", "watch", run.removeprefix("run:")], ["doctor"], ["db", "upgrade"])
    with ThreadPoolExecutor(len(commands)) as threads:
        watched, examined, upgraded = threads.map(lambda command: qwf(house.dsn, *command), commands)
    assert (watched.returncode, "Traceback" in watched.stderr) == (0, False), watched.stderr
    assert examined.returncode == 0, examined.stdout
    assert ("transaction-pooling" in examined.stdout) is (pooling == "transaction")
    if pooling == "session":
        assert upgraded.returncode == 0, upgraded.stderr
    else:
        assert upgraded.returncode == 78
        assert "QWF_DIRECT_DB_URL" in upgraded.stderr


def check_said(said: list[str], pooling: str, killed: int) -> None:
    """No role ended but the one that was killed, and each told what it found."""
    started = [line for line in said if re.search(r": started, pid \d+", line)]
    assert len(started) == 7, "\n".join(said)  # six roles, and the killed one's successor
    assert len([line for line in said if f"pid {killed} killed by SIGKILL" in line]) == 1, "\n".join(said)
    assert not [line for line in said if "Traceback" in line or "administrator command" in line]
    found = [line for line in said if "queue_workflows.db.connections.route" in line]
    tellers = [re.search(r" INFO (\d+) ", line)[1] for line in found]  # type: ignore[index]
    assert len(tellers) == len(set(tellers)) == 8, "\n".join(said)  # and the supervisor
    assert {"poll-only" in line for line in found} == {pooling == "transaction"}, "\n".join(found)


def ticks(eyes: psycopg.Connection[Any]) -> int:
    (number,) = eyes.execute("SELECT count(*) FROM ingest_jobs WHERE task_name = 'note'").fetchone() or (0,)
    return int(number)


def doubled(eyes: psycopg.Connection[Any]) -> list[Any]:
    """Jobs that took a second attempt without a crash of their own."""
    return eyes.execute(
        "SELECT id, status, attempt, crash_count FROM ingest_jobs WHERE attempt > 1 + crash_count"
    ).fetchall()


def test_a_role_behind_single_statements_says_so_and_ends(qwf_dsn: str) -> None:
    """One line, what to set, and the status of a wrong configuration."""
    with PgBouncer(qwf_dsn, "statement", **IGNORED) as pooler:
        commands = (["worker", "--queue", "fetch", "--once"], ["orchestrator"], ["scheduler"])
        with ThreadPoolExecutor(len(commands)) as threads:
            all_ended = list(threads.map(lambda command: qwf(pooler.dsn(), *command), commands))
        for ended in all_ended:
            assert ended.returncode == 78, ended.stderr
            assert "pools single statements" in ended.stderr
            assert "pool_mode = transaction" in ended.stderr
            assert "Traceback" not in ended.stderr
