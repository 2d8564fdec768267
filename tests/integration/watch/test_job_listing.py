"""Finding jobs of both families, and deciding on many of them page by page."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.rows.jobs import CLEAR, Jobs, ending, jobs_of
from support.rows.plans import explain

from queue_workflows.engine.operate.many_jobs import Verb, decide_matching, decide_named
from queue_workflows.errors import PayloadError
from queue_workflows.repositories.reports import job_listing
from queue_workflows.repositories.reports.job_listing import JobFilter, SelectingRepository
from queue_workflows.repositories.reports.job_search import JobSearch
from queue_workflows.repositories.sql.families import FAMILIES, INGEST, NODE, Family


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


def family_of(jobs: Jobs) -> Family:
    return next(family for family in FAMILIES if family.name == jobs.family)


def found(jobs: Jobs, **wanted: Any) -> list[int]:
    """The ids that match, the newest first."""
    return [line.id for line in JobSearch(jobs.connection).page(JobFilter(**wanted)).lines]


def fail(jobs: Jobs, message: str, kind: str = "ValueError") -> int:
    """A job that failed with these words."""
    jobs.enqueue(priorities=(9,), max_attempts=1)
    held = jobs.one()
    error = {"kind": "exception", "type": kind, "message": message}
    jobs.repository.end(ending(held, "failed", error=error, counts=True))
    return held.id


def test_jobs_are_found_by_what_they_are(jobs: Jobs) -> None:
    """Queue, status, name, worker, age; each filter alone, and together."""
    ids = jobs.enqueue(4)
    other = jobs.enqueue(queue="gpu" if jobs.family == "node" else "load")
    held = jobs.one("w7")
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET created_at = now() - interval '2 h' WHERE id = %s", [ids[1]]
    )
    assert found(jobs, queue=jobs.queue) == [ids[3], ids[2], ids[0], ids[1]]
    assert found(jobs, status=("running",)) == found(jobs, worker="w7") == [held.id]
    assert found(jobs, older_than_s=3600.0) == [ids[1]]
    assert found(jobs, newer_than_s=3600.0, status=("queued",)) == [*other, ids[3], ids[2]]
    named: dict[str, Any] = {"node": {"node": "n2"}, "ingest": {"task": "task"}}[jobs.family]
    assert found(jobs, **named) == ([ids[2]] if jobs.family == "node" else found(jobs))
    assert SelectingRepository(jobs.connection).count(JobFilter(status=("queued",)), at_most=100) == 4
    assert SelectingRepository(jobs.connection).count(JobFilter(status=("queued",)), at_most=2) == 2


def test_both_families_are_one_list(qwf_conn: psycopg.Connection) -> None:
    """By when they were enqueued; what only one family has narrows it to that one."""
    qwf_conn.execute(CLEAR)
    nodes, ingests = Jobs("node", qwf_conn), Jobs("ingest", qwf_conn)
    first, second, third = nodes.enqueue()[0], ingests.enqueue()[0], nodes.enqueue()[0]
    for age, (table, job_id) in enumerate(
        ((nodes.table, third), (ingests.table, second), (nodes.table, first))
    ):
        qwf_conn.execute(
            f"UPDATE {table} SET created_at = now() - %s * interval '1 m' WHERE id = %s", [age, job_id]
        )
    search = JobSearch(qwf_conn)
    assert [line.name for line in search.page(JobFilter()).lines] == [
        f"node:{third}",
        f"ingest:{second}",
        f"node:{first}",
    ]
    assert [line.name for line in search.page(JobFilter(), limit=2).lines][1] == f"ingest:{second}"
    assert JobFilter(task="t").families() == [INGEST]
    assert JobFilter(node="n").families() == [NODE]
    with pytest.raises(PayloadError):
        JobFilter(task="t", node="n").families()
    with pytest.raises(PayloadError):
        search.page(JobFilter(status=("done",)))


def test_failures_are_grouped_by_what_they_say(jobs: Jobs) -> None:
    """Ids and numbers in the words do not matter; a group's words find its jobs."""
    first = fail(jobs, "order 17 of 3.5 kg: 0x7fA0 is gone")
    second = fail(jobs, "order 4711 of 12 kg: 0x11bb22 is gone")
    run = "0190a4c2-9b1e-7c3d-8e4f-0123456789ab"
    third = fail(jobs, f"run {run} fell off the face of the earth")
    fail(jobs, "order 1 of 2 kg: 0xffffffff is gone", kind="KeyError")
    groups = SelectingRepository(jobs.connection).failures(since_s=3600)
    assert [(group.count, group.error) for group in groups if group.count > 1] == [
        (2, "ValueError: order # of # kg: # is gone")
    ]
    assert {group.error for group in groups} == {
        "ValueError: order # of # kg: # is gone",
        "ValueError: run # fell off the face of the earth",
        "KeyError: order # of # kg: # is gone",
    }
    assert groups[0].latest == [second, first]
    assert found(jobs, error=groups[0].error) == [second, first]
    assert found(jobs, error="FACE of the") == [third]
    assert found(jobs, error="100%") == []
    assert SelectingRepository(jobs.connection).failures(since_s=3600, queue="elsewhere") == []


def test_many_are_decided_on_page_by_page(jobs: Jobs) -> None:
    """All that match, each page committed by itself, and written down with who and why."""
    ids = jobs.enqueue(7)
    held = jobs.claim(limit=2)
    pages = decide_matching(
        jobs.connection, Verb.CANCEL, JobFilter(queue=jobs.queue), actor="ann", reason="old", page=3
    )
    assert list(pages) == [
        Counter({"running": 2, "cancelled": 1}),
        Counter({"cancelled": 3}),
        Counter({"cancelled": 1}),
    ]
    assert [row["status"] for row in jobs.rows()] == ["running"] * 2 + ["cancelled"] * 5
    assert all(row["cancel_requested_at"] for row in jobs.rows())
    logged = jobs.connection.execute(
        "SELECT DISTINCT actor, action, reason, count(*) OVER () FROM audit_log"
    ).fetchall()
    assert logged == [("ann", "job.cancel", "old", 7)]
    jobs.repository.end_many([ending(job, "cancelled") for job in held])
    retried = decide_matching(
        jobs.connection, Verb.RETRY, JobFilter(status=("cancelled",)), actor="bob", reason=None, page=4
    )
    assert sum(retried, Counter()) == Counter({"retried": 7})
    assert [(row["id"], row["status"], row["generation"]) for row in jobs.rows()] == [
        (job_id, "queued", 2) for job_id in ids
    ]


def test_what_is_enqueued_meanwhile_is_not_meant(jobs: Jobs) -> None:
    """A busy producer does not keep an operator's command going for ever."""
    jobs.enqueue(2)
    pages = decide_matching(
        jobs.connection, Verb.CANCEL, JobFilter(queue=jobs.queue), actor="ann", reason=None, page=2
    )
    assert next(pages).total() == 2
    later = jobs.enqueue(2)
    assert sum(pages, Counter()).total() == 0
    assert found(jobs, status=("queued",)) == later[::-1]


def meanwhile(
    jobs: Jobs, dsn: str, verb: Verb, wanted: JobFilter, first: Callable[[Jobs], object]
) -> Counter[str]:
    """Decide while `first` has rows locked, which commits when the command waits for one of them."""
    outcome: list[Counter[str]] = []
    with psycopg.connect(dsn) as other, psycopg.connect(dsn, autocommit=True) as second:

        def decide() -> None:
            outcome.extend(decide_matching(second, verb, wanted, actor="bob", reason=None, page=1))

        with other.transaction():
            first(Jobs(jobs.family, other))
            waiting = threading.Thread(target=decide)
            waiting.start()
            while not jobs.connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                [second.info.backend_pid],
            ).fetchone():
                assert waiting.is_alive()
        waiting.join(150)
    return sum(outcome, Counter())


def test_two_operators_retry_each_job_once(jobs: Jobs, qwf_dsn: str) -> None:
    """The second waits for the first, and retries what that one did not."""
    ids = [fail(jobs, "no") for _ in range(3)]
    done = meanwhile(
        jobs,
        qwf_dsn,
        Verb.RETRY,
        JobFilter(status=("failed",)),
        lambda first: first.repository.retry_many(ids[:2], actor="ann"),
    )
    assert done == Counter({"retried": 1})
    assert [row["generation"] for row in jobs.rows()] == [2, 2, 2]


def test_a_job_that_a_worker_claims_first_is_not_meant_any_more(jobs: Jobs, qwf_dsn: str) -> None:
    """Cancelling what is queued asks no running job to stop."""
    ids = jobs.enqueue(3)
    done = meanwhile(
        jobs, qwf_dsn, Verb.CANCEL, JobFilter(status=("queued",)), lambda first: first.claim("w1")
    )
    assert done == Counter({"cancelled": 2})
    assert jobs.seen(ids[0], "status", "cancel_requested_at") == ("running", None)


def test_named_jobs_say_what_became_of_each(qwf_conn: psycopg.Connection) -> None:
    """In one transaction over both families; those that the verb does not apply to are left out."""
    qwf_conn.execute(CLEAR)
    node, ingest = Jobs("node", qwf_conn).enqueue()[0], Jobs("ingest", qwf_conn).enqueue(2)
    Jobs("ingest", qwf_conn).repository.cancel(ingest[1])
    names = [(NODE, node), (INGEST, ingest[0]), (INGEST, ingest[1])]
    became = decide_named(qwf_conn, Verb.CANCEL, names, actor="ann", reason=None)
    assert became == {("node", node): "cancelled", ("ingest", ingest[0]): "cancelled"}


def test_failures_are_read_by_when_they_ended(jobs: Jobs) -> None:
    """Years of finished jobs cost nothing."""
    jobs.connection.execute(f"ALTER TABLE {jobs.table} SET (autovacuum_enabled = off)")
    fail(jobs, "no")
    jobs.connection.execute("SET session_replication_role = replica")
    template = next(name for name in jobs.rows())
    skipped = ("id", "position", "finished_at", "result", "map_index")
    columns = [name for name in template if name not in (*skipped, "context_delta")]
    index = ", map_index" if jobs.family == "node" else ""
    number = ", n" if jobs.family == "node" else ""
    jobs.connection.execute(
        f"INSERT INTO {jobs.table} ({', '.join(columns)}, finished_at{index})"
        f" SELECT {', '.join(columns)}, now() - interval '1 y' {number}"
        f" FROM {jobs.table}, generate_series(1, 20000) AS n"
    )
    jobs.connection.execute(f"RESET session_replication_role; ANALYZE {jobs.table}")
    sql = job_listing.written(job_listing.FAILURES, family_of(jobs))
    plan = explain(
        jobs.connection, "force_generic_plan", sql, {"since_s": 3600.0, "queue": None, "most": 50_000}
    )
    assert f"ix_{jobs.table}_finished" in [node.get("Index Name") for node in plan]
    jobs.connection.execute(f"ALTER TABLE {jobs.table} RESET (autovacuum_enabled)")
