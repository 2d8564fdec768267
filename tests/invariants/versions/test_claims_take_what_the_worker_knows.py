"""A worker claims no job of a task or node module that it does not know: one that does takes it, at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.processes.workers import running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, jobs_of

from queue_workflows.engine.registry.published_names import PublishedNames
from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository

OLD, NEW = "support.versions.app_one", "support.versions.app_two"
DURABLE = "support.versions.app_durable"
SOLO = ("--concurrency", "1")
CROWD = 5_000


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """Jobs of either family, with no worker known."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
    with jobs_of(request.param, qwf_dsn, clear=False) as jobs:
        yield jobs


def enqueue(jobs: Jobs, count: int, name: str) -> list[int]:
    """Jobs of a task or a node module."""
    if jobs.family == "node":
        ids: list[int] = jobs.enqueue(count, node_module=name)
        return ids
    return [jobs.repository.enqueue(name, queue=jobs.queue).id for _ in range(count)]


def worker(dsn: str, jobs: Jobs, app: str, *options: str, **settings: str) -> AbstractContextManager[Any]:
    """A worker of one version of the app, on a host that is called as it."""
    settings = {"QWF_HOST_LABEL": app.rpartition("_")[2], "QWF_APP": app} | settings
    return running_worker(dsn, "--queue", jobs.queue, *options, **settings)


def beat_of(jobs: Jobs, host: str) -> Any:
    """The last beat of the one worker of a host."""
    found = HeartbeatRepository(jobs.connection).list(host_label=host)
    return found[0] if found else None


def is_idle(jobs: Jobs, host: str) -> bool:
    beat = beat_of(jobs, host)
    return beat is not None and beat.state == "idle"


def are(jobs: Jobs, ids: list[int], status: str) -> bool:
    return {jobs.seen(one, "status") for one in ids} == {(status,)}


def said_of(jobs: Jobs, dsn: str, job_id: int) -> str:
    return qwf_here("--db", dsn, "explain", f"{jobs.family}:{job_id}").stdout


@pytest.mark.parametrize(
    ("jobs", "options"),
    [("node", SOLO), ("ingest", SOLO), ("ingest", ("--concurrency", "4"))],
    ids=["nodes", "one at a time", "many at once"],
    indirect=["jobs"],
)
def test_jobs_of_what_another_worker_knows_stay_in_the_queue(
    qwf_dsn: str, jobs: Jobs, options: tuple[str, ...]
) -> None:
    """The worker that lacks them goes on with its own, and claims of all of theirs no more than it met first.

    The one that knows them is paused, so that it cannot take them before the other meets them; when it goes
    on it takes them from the queue, as none was put aside.
    """
    control = WorkerControlRepository(jobs.connection)
    with worker(qwf_dsn, jobs, NEW, *options):
        until(lambda: is_idle(jobs, "two"))
        control.set("two", "*", "pause", actor="ann")
        until(lambda: beat_of(jobs, "two").state == "paused")
        with worker(qwf_dsn, jobs, OLD, *options):
            until(lambda: is_idle(jobs, "one"))
            first = enqueue(jobs, 1, "added")
            until(lambda: beat_of(jobs, "one").load.get("lacks") == ["added"])
            added, both = first + enqueue(jobs, 50, "added"), enqueue(jobs, 20, "both")
            until(lambda: are(jobs, both, "completed"))
            until(lambda: are(jobs, added, "queued"))
            assert [jobs.seen(one, "attempt", "hold_reason") for one in added[1:]] == [(0, None)] * 50
            assert jobs.seen(first[0], "attempt", "failures") == (1, 0)
            control.clear("two", "*", actor="ann")
            until(lambda: are(jobs, added, "completed"))
            results = {jobs.row(one)["result"]["app"] for one in added}
            assert (results, jobs.seen(added[-1], "attempt")) == ({"1.9"}, (1,))


def test_a_job_of_a_version_that_another_worker_may_have_is_put_on_hold_once(
    qwf_dsn: str, jobs: Jobs
) -> None:
    """It is not claimed over and over meanwhile, and it is said that the worker lacks the version."""
    HeartbeatRepository(jobs.connection).beat(
        f"old:{jobs.queue}:1", host_label="old", queue=jobs.queue, pid=1, state="paused"
    )
    (job,) = enqueue(jobs, 1, "long")
    jobs.connection.execute(
        "INSERT INTO durable_steps"
        " (job_family, job_id, name, call, position, kind, status, attempt, version, finished_at)"
        " VALUES (%s, %s, 'a', 0, 1, 'step', 'done', 1, '1', now())",
        [jobs.family, job],
    )
    table = "workflow_node_jobs" if jobs.family == "node" else "ingest_jobs"
    jobs.connection.execute(f"UPDATE {table} SET attempt = 1 WHERE id = %s", [job])
    with worker(qwf_dsn, jobs, DURABLE, *SOLO):
        until(lambda: jobs.seen(job, "attempt") != (1,))
        behind = enqueue(jobs, 20, "both")
        until(lambda: are(jobs, behind, "completed"))
        until(lambda: beat_of(jobs, "durable").load.get("lacks") == ["long@1"])
        assert "'long@1' put it aside; 1 of 2 that are alive may know it" in said_of(jobs, qwf_dsn, job)
    assert jobs.seen(job, "status", "hold_key", "attempt") == ("scheduled", "long@1", 2)


def test_what_nobody_alive_knows_is_on_hold_and_explained(qwf_dsn: str, jobs: Jobs) -> None:
    """All of it; and after the last worker that knew it is gone, which version that was, and until when."""
    with worker(qwf_dsn, jobs, OLD, *SOLO):
        until(lambda: is_idle(jobs, "one"))
        ids = enqueue(jobs, 3, "added")
        until(lambda: are(jobs, ids, "scheduled"))
        assert "no worker alive knows the" in (said := said_of(jobs, qwf_dsn, ids[0]))
        assert "'added', and none is remembered that did" in said
        with worker(qwf_dsn, jobs, NEW, *SOLO) as new:
            until(lambda: are(jobs, ids, "completed"))
            new.terminate()
            assert new.wait(150) == 0
        again = enqueue(jobs, 3, "added")
        until(lambda: "app 1.9 did until 2" in said_of(jobs, qwf_dsn, again[0]))


def test_what_is_listed_and_not_found_is_lacked_until_it_comes_anew(qwf_dsn: str) -> None:
    """As a file that is there and cannot be imported; else workers of the same code hand its jobs around."""
    listed = ["draw", "plan"]
    published = PublishedNames("cpu", None, lambda: (listed, False))
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        published.keep(connection)
        assert published.lack("draw")
        published.keep(connection)
        assert published.lacked == ("draw",)
        listed.remove("draw")
        published.keep(connection)
        listed.append("draw")
        published.keep(connection)
        assert published.lacked == ()


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (("idle",), "the only one alive may know it, and take it within a minute"),
        (("idle", "paused"), "2 of 2 that are alive may know it, and take it within a minute"),
        (
            ("paused", "parked"),
            "2 of 2 that are alive may know it, and take it once on again: ",
        ),
    ],
)
def test_a_job_that_only_paused_workers_know_waits_for_their_operator(
    qwf_dsn: str, jobs: Jobs, states: tuple[str, ...], said: str
) -> None:
    """It is said that those would take it, and that none of them does for now."""
    for number, state in enumerate(states):
        HeartbeatRepository(jobs.connection).beat(
            f"one:{jobs.queue}:{number}", host_label="one", queue=jobs.queue, pid=1, state=state
        )
    (job,) = enqueue(jobs, 1, "added")
    reason = "unknown_module" if jobs.family == "node" else "unknown_task"
    jobs.repository.put_aside(jobs.queue, ["added"], reason=reason, delay_s=60)
    assert said in said_of(jobs, qwf_dsn, job)


def test_a_worker_publishes_what_it_knows_once(qwf_dsn: str, jobs: Jobs) -> None:
    """One row for all workers that run the same code; the list has the version, and how much each knows."""
    with worker(qwf_dsn, jobs, OLD), worker(qwf_dsn, jobs, OLD, QWF_HOST_LABEL="other"):
        until(lambda: is_idle(jobs, "one") and is_idle(jobs, "other"))
        told = "SELECT queue, app_version, names, is_open FROM worker_code"
        assert jobs.connection.execute(told).fetchall() == [(jobs.queue, "1.8", ["both", "dropped"], False)]
        table = qwf_here("--db", qwf_dsn, "workers", "list").stdout.splitlines()
        title, *lines = map(str.split, table)
        assert title[-3:] == ["APP", "KNOWS", "ASKED"]
        assert [line[-3:] for line in lines] == [["1.8", "2", "on"]] * 2


def test_a_crowd_that_few_know_is_fetched_page_by_page(qwf_dsn: str) -> None:
    """Of thousands at the head of the queue the worker that lacks them reads none twice, and none is lost."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
    with jobs_of("ingest", qwf_dsn, clear=False) as jobs:
        jobs.connection.execute(
            "INSERT INTO ingest_jobs (task_name, queue) SELECT 'added', 'fetch' FROM generate_series(1, %s)",
            [CROWD],
        )
        (behind,) = enqueue(jobs, 1, "both")
        with (
            worker(qwf_dsn, jobs, OLD, "--concurrency", "4"),
            worker(qwf_dsn, jobs, NEW, "--concurrency", "4"),
        ):
            until(lambda: are(jobs, [behind], "completed"))
            left = "SELECT count(*) FROM ingest_jobs WHERE status <> 'completed'"
            until(lambda: jobs.connection.execute(left).fetchone() == (0,))
        counts = (
            "SELECT count(*), sum(failures), sum(crash_count), count(*) FILTER (WHERE attempt > 2)"
            " FROM ingest_jobs"
        )
        assert jobs.connection.execute(counts).fetchone() == (CROWD + 1, 0, 0, 0)
