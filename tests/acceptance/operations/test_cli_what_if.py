"""`--dry-run` of what operators do to workers and limits: it foretells what happens, and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.processes.commands import Said, qwf_here
from support.processes.workers import running_worker, until
from support.rows.claim_sessions import CLEAR_LIMITS, hand
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, jobs_of

from queue_workflows.repositories import HeartbeatRepository, LimitRepository, WorkerControlRepository
from queue_workflows.states import WorkerState

PATIENCE_S = 150
WRITTEN = (
    "worker_control",
    "worker_control_clock",
    "worker_heartbeats",
    "audit_log",
    "concurrency_limits",
    "limit_slots",
    "ingest_jobs",
)


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    """No jobs, workers, wishes or limits."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_WITH_WORKERS + ";" + CLEAR_LIMITS)
        yield jobs


def qwf(dsn: str, *arguments: str, status: int = 0) -> Said:
    return qwf_here("--db", dsn, *arguments, status=status)


def foretold(dsn: str, *arguments: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(qwf(dsn, *arguments, "--dry-run", "--json").stdout)
    return told


def rows(connection: psycopg.Connection) -> dict[str, list[Any]]:
    """Everything that one of these commands could have written."""
    return {
        table: connection.execute(f"SELECT to_jsonb(t) FROM {table} AS t ORDER BY t::text").fetchall()
        for table in WRITTEN
    }


def beat(connection: psycopg.Connection, worker_id: str, host: str = "h1", queue: str = "fetch") -> None:
    beats = HeartbeatRepository(connection)
    models = ("x",) if queue == "gpu" else ()
    beats.beat(worker_id, host_label=host, queue=queue, pid=7, state="busy", cached_models=models)


@pytest.mark.slow
@pytest.mark.usefixtures("jobs")
def test_a_switch_off_does_what_was_foretold(qwf_dsn: str, jobs: Jobs) -> None:
    """The jobs that were named come back uncounted, those behind them are left in the queue."""
    deaf = [jobs.repository.enqueue("deaf", queue="fetch").id for _ in range(2)]
    with running_worker(qwf_dsn, "--concurrency", "2"):
        until(lambda: [jobs.seen(job, "status") for job in deaf] == [("running",)] * 2, within_s=PATIENCE_S)
        until(lambda: HeartbeatRepository(jobs.connection).list(state=WorkerState.BUSY), within_s=PATIENCE_S)
        (worker,) = HeartbeatRepository(jobs.connection).list()
        told = foretold(qwf_dsn, "workers", "off", "here", "fetch")
        assert told == {
            "host_label": "here",
            "queue": "fetch",
            "desired": "off",
            "workers": [worker.worker_id],
            "already": [],
            "silent": [],
            "jobs": {
                "finished": 0,
                "given_back": 2,
                "failed": 0,
                "first": [f"ingest:{job}" for job in deaf],
            },
            "models": [],
            "queues_left": [{"queue": "fetch", "queued": 0, "at_least": False}],
        }
        assert WorkerControlRepository(jobs.connection).list() == []
        qwf(qwf_dsn, "workers", "off", "here", "fetch", "--wait")
        given_back = [
            f"ingest:{row['id']}" for row in jobs.rows() if (row["status"], row["failures"]) == ("queued", 0)
        ]
        assert sorted(given_back) == sorted(told["jobs"]["first"])
        again = foretold(qwf_dsn, "workers", "off", "here", "fetch")
        assert (again["workers"], again["already"]) == ([], [worker.worker_id])


def test_a_preview_writes_nothing(qwf_dsn: str, jobs: Jobs) -> None:
    """Neither wish nor limit, no version, no entry in the audit log."""
    beat(jobs.connection, "w1")
    jobs.enqueue(3, limit_key="host:a")
    jobs.claim("w1")
    LimitRepository(jobs.connection).set("host:*", 2, actor="ann")
    before = rows(jobs.connection)
    for words in (
        ("workers", "pause", "*", "*"),
        ("workers", "off", "h1", "fetch", "--for", "1h"),
        ("queue", "pause", "fetch"),
        ("limits", "set", "host:a", "9"),
        ("limits", "set", "host:*", "0"),
    ):
        assert "nothing is changed" in qwf(qwf_dsn, *words, "--dry-run").stdout
        foretold(qwf_dsn, *words)
    assert rows(jobs.connection) == before


def test_a_pause_of_a_queue_names_jobs_and_what_is_left(qwf_dsn: str, jobs: Jobs) -> None:
    """On every host; the first ten jobs by name, and how many wait on a queue without any other worker."""
    beat(jobs.connection, "w1")
    beat(jobs.connection, "w2", host="h2")
    beat(jobs.connection, "g1", queue="gpu")
    ids = jobs.enqueue(14)
    jobs.claim("w1", 12)
    said = qwf(qwf_dsn, "queue", "pause", "fetch", "--dry-run").stdout.splitlines()
    named = ", ".join(f"ingest:{job}" for job in ids[:10])
    assert said == [
        "(*, fetch) would be paused; nothing is changed",
        "2 workers would obey: w1, w2",
        f"12 jobs would be finished first: {named} and 2 more",
        "the queue fetch would be left without a worker that claims, with 2 queued",
    ]
    told = foretold(qwf_dsn, "workers", "off", "h1", "*")
    assert told["queues_left"] == [{"queue": "gpu", "queued": 0, "at_least": False}]
    assert told["models"] == [{"model": "x", "unloaded_by": ["g1"], "still_loaded_by": []}]


def test_what_has_begun_for_its_only_time_would_fail(qwf_dsn: str, jobs: Jobs) -> None:
    """It cannot be given back, so it is counted apart."""
    beat(jobs.connection, "w1")
    jobs.enqueue(2, at_most_once=True, max_attempts=1)
    first, _ = (one for _ in range(2) for one in jobs.claim("w1"))
    jobs.connection.execute("UPDATE ingest_jobs SET begun_generation = generation WHERE id = %s", [first.id])
    told = foretold(qwf_dsn, "workers", "off", "*", "*")
    assert (told["jobs"]["given_back"], told["jobs"]["failed"]) == (1, 1)


def test_a_lower_and_a_higher_cap(qwf_dsn: str, jobs: Jobs) -> None:
    """How many hold it, would be over it, or would find room; by a pattern, key by key."""
    limits = LimitRepository(jobs.connection)
    limits.set("host:*", 3, actor="ann")
    jobs.enqueue(8, limit_key="host:a")
    with hand(qwf_dsn, "ingest") as worker:
        worker.claim(3)
        lower = foretold(qwf_dsn, "limits", "set", "host:a", "1")
        assert {name: lower[name] for name in ("was", "taken", "waiting", "over", "could_begin")} == {
            "was": None,
            "taken": 3,
            "waiting": 5,
            "over": 2,
            "could_begin": 0,
        }
        higher = foretold(qwf_dsn, "limits", "set", "host:*", "5")
        assert (higher["was"], higher["over"], higher["could_begin"], higher["could_begin_now"]) == (
            3,
            0,
            2,
            0,
        )
        assert [one["key"] for one in higher["keys"]] == ["host:a"]
        said = qwf(qwf_dsn, "limits", "set", "host:*", "5", "--dry-run").stdout.splitlines()
        assert said == [
            "host:*: would be at most 5 at once, is 3; nothing is changed",
            "3 hold it now, 0 of them over the new cap",
            "5 wait, 2 would find room, 0 do now",
            "KEY     CAP  THEN  TAKEN  OVER  WAITING  ROOM FOR",
            "host:a  3    5     3      0     5        2",
        ]
        qwf(qwf_dsn, "limits", "set", "host:*", "5")
        assert len(worker.claim(10)) == higher["could_begin"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("workers", "off", "here", "fetch", "--json"), "--json goes with --dry-run"),
        (("workers", "pause", "here", "fetch", "--dry-run", "--wait"), "nothing to --wait for"),
        (("limits", "set", "a", "--rate", "5/s", "--dry-run"), "--dry-run goes with a CAP"),
        (("limits", "set", "exclusive:a", "3", "--dry-run"), "the cap of 'exclusive:a' is one"),
        (("limits", "set", "a*b", "3", "--dry-run"), "key_pattern"),
        (("workers", "on", "here", "fetch", "--dry-run"), "No such option '--dry-run'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(
    qwf_dsn: str, jobs: Jobs, words: tuple[str, ...], said: str
) -> None:
    """A preview refuses what the act itself would refuse."""
    ended = qwf(qwf_dsn, *words, status=2)
    assert said in ended.stderr
    assert (ended.stdout, ended.stderr.count("\n")) == ("", 1)
