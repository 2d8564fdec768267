"""Workers under a supervisor and one alone, a producer, and what befalls them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil
import psycopg

from bench.harness.servers import said
from bench.harness.workers import environment
from bench.kills.accounts import MAX_CRASHES
from queue_workflows import enqueue_many
from queue_workflows.repositories import NewIngestJob

ENDED: Final = "SELECT count(*) FROM ingest_jobs WHERE finished_at IS NOT NULL"
OPEN: Final = "SELECT count(*) FROM ingest_jobs WHERE finished_at IS NULL"
# A backend of any of the workers: of their claims, their guards or their listeners.
TERMINATE: Final = """
SELECT pg_terminate_backend(pid) FROM (
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'qwf:worker%%' ORDER BY md5(pid::text || %s)
    LIMIT 1
) AS victim
"""
# Short leases, so that a short soak sees many of them lapse.
SETTINGS: Final = {
    "QWF_LEASE_S": "2",
    "QWF_GRACE_S": "5",
    "QWF_STALE_HEARTBEAT_S": "6",
    "QWF_MAX_CRASHES": str(MAX_CRASHES),
}
BACKLOG: Final = 60
_PATIENCE_S: Final = 10.0
_DRAIN_S: Final = 300.0


class Chaos:
    """`did` counts what was done; `enqueued` are the ids of jobs whose transactions committed."""

    def __init__(self, dsn: str, ledger: Path, *, seed: int) -> None:
        self.did: Counter[str] = Counter()
        self.enqueued: set[int] = set()
        self._ledger = ledger
        self._random = random.Random(seed)
        self._environment = environment(dsn, SETTINGS)
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._supervisor = self._start("supervisor", "--worker", "fetch:2")
        self._alone = self._start("worker", "--queue", "fetch")
        self._stopped: dict[int, tuple[psutil.Process, float]] = {}

    def run(self, seconds: float) -> None:
        """Feed and trouble them for so long."""
        deeds: list[Callable[[], None]] = [self._kill, self._ask, self._stop, self._cut]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._feed()
            self._wake(time.monotonic())
            self._random.choice(deeds)()
            self._let_them_work(until)

    def drain(self) -> None:
        """Leave them in peace until nothing is left to do."""
        self._wake(float("inf"))
        until = time.monotonic() + _DRAIN_S
        while said(self._connection, OPEN) and time.monotonic() < until:
            self._revive()
            time.sleep(0.1)

    def _let_them_work(self, until: float) -> None:
        """For a moment, and until they got something done: on a busy machine they start slowly."""
        before = said(self._connection, ENDED)
        until = min(until, time.monotonic() + _PATIENCE_S)
        time.sleep(self._random.uniform(0.05, 0.5))
        while said(self._connection, ENDED) == before and time.monotonic() < until:
            self._wake(time.monotonic())
            time.sleep(0.05)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "queue_workflows", *command],
            env=self._environment,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _feed(self) -> None:
        room = BACKLOG - said(self._connection, OPEN)
        if room > 0:
            jobs = [self._job() for _ in range(room)]
            self.enqueued |= {one.id for one in enqueue_many(jobs, conn=self._connection)}

    def _job(self) -> NewIngestJob:
        args = {"ledger": str(self._ledger), "s": round(self._random.uniform(0, 0.1), 3)}
        return NewIngestJob(task_name="written", queue="fetch", args=args)

    def _workers(self) -> list[psutil.Process]:
        self._revive()
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(self._alone.pid), *psutil.Process(self._supervisor.pid).children()]
        return []

    def _revive(self) -> None:
        """The one that is alone has nobody who starts it again."""
        if self._alone.poll() is not None:
            self._alone = self._start("worker", "--queue", "fetch")

    def _send(self, number: signal.Signals, name: str) -> psutil.Process | None:
        workers = [one for one in self._workers() if one.pid not in self._stopped]
        if not workers:
            return None
        victim = self._random.choice(sorted(workers, key=lambda one: one.pid))
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
            self.did[name] += 1
            return victim
        return None

    def _kill(self) -> None:
        self._send(signal.SIGKILL, "workers killed")

    def _ask(self) -> None:
        self._send(signal.SIGTERM, "workers asked to stop")

    def _stop(self) -> None:
        victim = self._send(signal.SIGSTOP, "workers stopped and continued")
        if victim is not None:
            self._stopped[victim.pid] = victim, time.monotonic() + self._random.uniform(0.5, 5)

    def _wake(self, now: float) -> None:
        for pid, (process, at) in list(self._stopped.items()):
            if now >= at:
                del self._stopped[pid]
                # By the object, which knows a stranger with the same number.
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    def _cut(self) -> None:
        row: Any = self._connection.execute(TERMINATE, [str(self._random.random())]).fetchone()
        self.did["connections terminated"] += row is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wake(float("inf"))
        for process in (self._supervisor, self._alone):
            process.terminate()
        for process in (self._supervisor, self._alone):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._connection.close()
