"""Finding jobs of both families, and deciding on many of them page by page."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.rows.jobs import CLEAR, Jobs, ending, jobs_of

from queue_workflows.engine.operate.many_jobs import Verb, decide_matching, decide_named
from queue_workflows.errors import FilterRefused, PayloadError
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
    selecting = SelectingRepository(qwf_conn)
    assert [selecting.count(JobFilter(), at_most=most) for most in (1, 2, 3, 10)] == [1, 2, 3, 3]
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
    groups = SelectingRepository(jobs.connection).failures(since_s=3600).groups
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
    assert SelectingRepository(jobs.connection).failures(since_s=3600, queue="elsewhere").groups == []


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


def test_words_with_a_digit_among_hexadecimal_ones_are_ids(jobs: Jobs) -> None:
    """From six on, in whatever place the digit is; a word of letters alone is a word."""
    words = ["1bcdef", "a1cdef", "ab1def", "abc1ef", "abcd1f", "abcde1", "abcdefabcdef1", "A-B-C-1-D", "0X1f"]
    for word in words:
        fail(jobs, f"no {word} here")
    for other in ("abcdef", "facade", "defaced", "ab1de", "abcde1g"):
        fail(jobs, f"no {other} here")
    groups = SelectingRepository(jobs.connection).failures(since_s=3600).groups
    assert {group.error: group.count for group in groups} == {
        "ValueError: no # here": len(words),
        "ValueError: no abcdef here": 1,
        "ValueError: no facade here": 1,
        "ValueError: no defaced here": 1,
        "ValueError: no ab#de here": 1,
        "ValueError: no abcde#g here": 1,
    }


def test_failures_are_looked_at_in_parts(jobs: Jobs) -> None:
    """The latest first, each in one part, those of the same moment too; and how many there are in all."""
    ids = [fail(jobs, f"no {word}") for word in ("b", "a", "a", "b", "a")]
    jobs.connection.execute(
        f"UPDATE {jobs.table} AS job SET finished_at = date_trunc('minute', now()) - age * interval '1 min'"
        " FROM unnest(%s::bigint[], %s::int[]) AS ended (id, age) WHERE job.id = ended.id",
        [ids, [4, 4, 3, 2, 2]],
    )
    moments = dict(jobs.connection.execute(f"SELECT id, finished_at FROM {jobs.table}").fetchall())
    selecting, before, parts, reached = SelectingRepository(jobs.connection), None, [], []
    while True:
        found = selecting.failures(since_s=3600, most=2, before=before)
        parts.append([(group.error[-1], group.count, group.latest) for group in found.groups])
        reached.append(found.looked_back_to)
        before = found.cursor
        if before is None:
            break
    assert parts == [
        [("a", 1, [ids[4]]), ("b", 1, [ids[3]])],
        [("a", 2, [ids[2], ids[1]])],
        [("b", 1, [ids[0]])],
    ]
    assert reached == [moments[ids[3]], moments[ids[1]], None]
    assert selecting.count_failed(since_s=3600, at_most=100) == 5
    assert selecting.count_failed(since_s=3600, at_most=2) == 2
    assert selecting.count_failed(since_s=150, at_most=100) <= 2
    elsewhere = selecting.failures(since_s=3600, most=2, queue="elsewhere")
    assert (elsewhere.groups, elsewhere.looked_back_to) == ([], moments[ids[3]])
    with pytest.raises(FilterRefused):
        selecting.failures(since_s=3600, before="ingest12")
    with pytest.raises(PayloadError):
        selecting.failures(since_s=3600, most=0)
