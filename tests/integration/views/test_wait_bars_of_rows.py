"""Wait bars of real rows: what claims, holds, ends, retries and pauses leave is what a bar shows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, ending

from queue_workflows.engine.execution.backoff import Backoff
from queue_workflows.engine.execution.ending import ending_of
from queue_workflows.engine.explain import queue_waits as queue_waits_of
from queue_workflows.engine.explain import time_spent
from queue_workflows.engine.explain.history import history
from queue_workflows.engine.explain.queue_waits import queue_waits
from queue_workflows.engine.explain.time_spent import past_of, sentence_of
from queue_workflows.engine.explain.wait_bar import Segment, bar_of_job
from queue_workflows.engine.outcomes import Failed
from queue_workflows.repositories import LimitRepository
from queue_workflows.repositories.claims.end import error_entry
from queue_workflows.repositories.explain.explain_job import Circumstances, ExplainingRepository
from queue_workflows.repositories.limits.lanes import LaneRepository
from queue_workflows.repositories.sql.families import BY_NAME, HOLDS_KEPT
from queue_workflows.repositories.workers.control import WorkerControlRepository


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.fixture(params=["node", "ingest"])
def jobs(conn: psycopg.Connection, request: pytest.FixtureRequest) -> Jobs:
    """The jobs of either family."""
    return Jobs(request.param, conn)


def circumstances(jobs: Jobs, job_id: int) -> Circumstances:
    there = ExplainingRepository(jobs.connection).circumstances(BY_NAME[jobs.family], job_id)
    assert there is not None
    return there


def bar(jobs: Jobs, job_id: int) -> list[Segment]:
    return bar_of_job(circumstances(jobs, job_id))


def told(jobs: Jobs, job_id: int) -> list[tuple[str, str]]:
    return told_of(bar(jobs, job_id))


def told_of(segments: list[Segment]) -> list[tuple[str, str]]:
    return [(one.kind, one.note) for one in segments]


def history_of(jobs: Jobs, job_id: int) -> list[str]:
    return [event.text for event in history(circumstances(jobs, job_id))]


def test_from_an_enqueue_to_an_end(jobs: Jobs) -> None:
    """Queued, put aside until it is freed, tried twice, and over."""
    (job_id,) = jobs.enqueue()
    jobs.repository.hold(jobs.one(), "unknown_task", "task", delay_s=600)
    assert told(jobs, job_id) == [("queued", ""), ("held", "unknown task 'task'")]
    jobs.repository.promote_held("unknown_task", ["task"], queue=jobs.queue)
    was = [("queued", ""), ("held", "unknown task 'task'")]
    assert told(jobs, job_id) == [*was, ("queued", "")]
    error = {"kind": "exception", "type": "ValueError", "message": "no"}
    jobs.repository.end(ending(jobs.one(), "scheduled", error=error, counts=True, delay_s=600))
    tried = [*was, ("queued", ""), ("running", "attempt 2 on w1")]
    assert told(jobs, job_id) == [*tried, ("retry", "")]
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET status = 'queued', run_at = statement_timestamp() WHERE id = %s", [job_id]
    )
    claimed = jobs.one("w2")
    jobs.repository.end(ending(claimed, "completed"))
    segments = bar(jobs, job_id)
    assert [(one.kind, one.note) for one in segments][-2:] == [
        ("running", "attempt 3 on w2"),
        ("ended", "completed"),
    ]
    row = jobs.row(job_id)
    first, last = (datetime.fromisoformat(row[name]) for name in ("created_at", "finished_at"))
    assert (segments[0].start, segments[-1].end) == (first, last)


def test_a_pause_of_the_queue_and_not_of_one_of_its_hosts(jobs: Jobs) -> None:
    """It is told by whom; workers elsewhere may claim all the same where one host was paused."""
    (job_id,) = jobs.enqueue()
    control = WorkerControlRepository(jobs.connection)
    control.set("h", jobs.queue, "pause", actor="bob")
    assert told(jobs, job_id) == [("queued", "")]
    control.set("*", jobs.queue, "pause", actor="ann")
    assert told(jobs, job_id) == [("queued", ""), ("paused", "paused by ann")]
    control.clear("*", jobs.queue, actor="ann")
    assert told(jobs, job_id) == [("queued", ""), ("paused", "paused by ann"), ("queued", "")]
    jobs.connection.execute("DELETE FROM worker_control")


def test_a_job_for_later_waits_for_its_time(jobs: Jobs) -> None:
    """And not for a worker."""
    when = "now() + interval '1 h'"
    (job_id,) = jobs.enqueue()
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET status = 'scheduled', run_at = {when} WHERE id = %s", [job_id]
    )
    assert told(jobs, job_id) == [("due", "")]


def test_an_attempt_that_was_given_back_was_at_work(jobs: Jobs) -> None:
    """It is no hold, though it is kept beside those, and its time is not the next attempt's."""
    (job_id,) = jobs.enqueue()
    first = jobs.one()
    jobs.repository.release(first)
    back = jobs.row(job_id)["past_holds"]
    jobs.repository.end(ending(jobs.one("w2"), "completed"))
    bar_of_it = bar(jobs, job_id)
    assert told_of(bar_of_it) == [
        ("queued", ""),
        ("running", "attempt 1 on w1, given back"),
        ("queued", ""),
        ("running", "attempt 2 on w2"),
        ("ended", "completed"),
    ]
    assert bar_of_it[1].start == first.started_at
    assert [datetime.fromisoformat(one["until"]) for one in back] == [bar_of_it[1].end]
    explained = history_of(jobs, job_id)
    assert "attempt 1 given back by w1" in explained
    assert not [text for text in explained if text.startswith("on hold")]


def test_a_job_in_a_lane_is_held_from_the_moment_it_came_there(jobs: Jobs) -> None:
    """Nobody claims it for that; what it waited before was no limit's."""
    limits = LimitRepository(jobs.connection)
    limits.set("host:x", 1, actor="me")
    (job_id,) = jobs.enqueue(limit_key="host:x")
    lanes = LaneRepository(jobs.connection, BY_NAME[jobs.family])
    ((before,),) = jobs.connection.execute("SELECT statement_timestamp()").fetchall()
    assert lanes.move_others(["host:x"]) == 1
    assert told(jobs, job_id) == [("queued", ""), ("held", "limit full 'host:x'")]
    assert bar(jobs, job_id)[1].start >= before
    assert lanes.admit(["host:x"]) == 1
    assert told(jobs, job_id) == [("queued", ""), ("held", "limit full 'host:x'"), ("queued", "")]
    assert bar(jobs, job_id)[1].start >= before
    limits.clear("host:x", actor="me")


def test_an_attempt_that_failed_keeps_when_its_job_was_due(jobs: Jobs) -> None:
    """The worker writes it, where it was later than the enqueue; a retry sets the time anew."""
    at_once, later = jobs.enqueue(2)
    back = f"UPDATE {jobs.table} SET created_at = created_at - interval '1 h', run_at = %s WHERE id = %s"
    due = datetime.fromisoformat(jobs.row(later)["created_at"])
    jobs.connection.execute(back, [due, later])
    failed = Failed(error_entry("exception", "no"), retryable=True)
    for job in jobs.claim(limit=2):
        ended = ending_of(failed, job, Backoff(), 0.0)
        assert ended is not None
        jobs.repository.end(ended)
    assert ["due" in jobs.row(job_id)["errors"][0] for job_id in (at_once, later)] == [False, True]
    assert [one.kind for one in bar(jobs, later)] == ["due", "queued", "running", "retry"]
    assert bar(jobs, later)[0].end == due
    assert [one.kind for one in bar(jobs, at_once)] == ["queued", "running", "retry"]


def test_what_is_retried_was_over_until_then(jobs: Jobs) -> None:
    """Its last attempt and its end are kept by the retry; what it was over is no wait, of a queue neither."""
    (job_id,) = jobs.enqueue()
    jobs.repository.end(ending(jobs.one(), "completed"))
    jobs.connection.execute(
        f"""UPDATE {jobs.table} SET created_at = now() - interval '5 h', run_at = now() - interval '5 h',
            started_at = now() - interval '4 h', finished_at = now() - interval '3 h'"""
    )
    jobs.repository.retry_many([job_id], actor="ann")
    jobs.repository.end(ending(jobs.one("w2"), "completed"))
    past = past_of(jobs.connection, circumstances(jobs, job_id))
    hours = [(one.kind, round((one.end - one.start).total_seconds() / 3600)) for one in past.parts]
    assert [one for one in hours if one[1]] == [("unserved", 1), ("running", 1), ("over", 3)]
    assert (round(past.spent.waited.total_seconds() / 3600), past.spent.over > past.spent.waited) == (2, True)
    (waits,) = queue_waits(jobs.connection, since_s=60).queues
    assert {one.cause.kind for one in waits.causes} <= {"unserved", "tried", "queued"}
    told = history_of(jobs, job_id)
    assert told.count("completed") == 2
    assert not [text for text in told if text.startswith(("on hold", "due"))]


def test_what_a_row_keeps_no_more_is_said_to_be_so(jobs: Jobs) -> None:
    """The oldest holds go as newer ones come; their time is nobody's queue."""
    (job_id,) = jobs.enqueue()
    for number in range(HOLDS_KEPT + 1):
        jobs.repository.hold(jobs.one(), "host_lock", f"disk{number}", delay_s=0.0)
        jobs.repository.promote()
    first, *others = bar(jobs, job_id)
    assert (first.kind, first.note.split(":")[0]) == ("queued", "or what its row keeps no more")
    assert [one.key for one in others if one.kind == "held"] == [
        f"disk{number}" for number in range(1, HOLDS_KEPT + 1)
    ]


def test_a_time_in_which_nothing_of_its_queue_ran(jobs: Jobs) -> None:
    """It is told apart from that in which it was behind others, which are counted; another queue's are none.
    In sums over the queue it is as long.
    """
    job_id, other = jobs.enqueue(2, priorities=(5, 9))
    held = jobs.claim(limit=2)
    jobs.repository.end_many([ending(job) for job in held])
    set_back = f"""
        UPDATE {jobs.table} SET created_at = now() - %(created)s * interval '1 min', run_at = created_at,
            started_at = now() - %(started)s * interval '1 min',
            finished_at = now() - %(finished)s * interval '1 min'
        WHERE id = %(id)s"""
    jobs.connection.execute(set_back, {"id": other, "created": 50, "started": 50, "finished": 40})
    jobs.connection.execute(set_back, {"id": job_id, "created": 60, "started": 10, "finished": 5})
    jobs.connection.execute(f"UPDATE {jobs.table} SET run_at = created_at")
    past = past_of(jobs.connection, circumstances(jobs, job_id))
    parts = [(one.kind, round((one.end - one.start).total_seconds() / 60)) for one in past.parts]
    assert parts == [("unserved", 10), ("queued", 10), ("unserved", 30), ("running", 5)]
    assert (past.spent.ran_meanwhile, past.spent.is_about) == (1, False)
    sentence = sentence_of(past.spent, is_over=True)
    assert sentence.startswith("it waited 3000.0 s: 2400.0 s nothing of its queue ran; 600.0 s queued")
    assert sentence.endswith("while 1 job of its queue ran")
    (waits,) = queue_waits(jobs.connection, since_s=7200).queues
    sums = {one.cause.kind: (one.jobs, round(one.seconds / 60)) for one in waits.causes}
    assert (waits.queue, waits.jobs, sums) == (jobs.queue, 2, {"unserved": (1, 40), "queued": (1, 10)})
    assert queue_waits(jobs.connection, since_s=7200, queue="other").queues == ()


def test_what_ran_all_the_time_and_ended_long_after_it_is_found(jobs: Jobs) -> None:
    """Among ever so many that ended since; where these are too many to read nothing is said to be unserved.
    What was cancelled while it waited to be tried again did not run.
    """
    job_id, long = jobs.enqueue(100)[:2]
    jobs.repository.end_many([ending(job) for job in jobs.claim(limit=100)])
    jobs.connection.execute(
        f"""UPDATE {jobs.table} SET started_at = now() - interval '3 min' + id * interval '0.1 s',
            created_at = now() - interval '3 min', finished_at = now() - interval '2 min',
            run_at = now() - interval '3 min', queue = CASE WHEN id = ANY(%s) THEN queue ELSE 'other' END""",
        [[job_id, long]],
    )
    times = f"""UPDATE {jobs.table} SET created_at = now() - %s * interval '1 min', run_at = created_at,
        started_at = now() - %s * interval '1 min', finished_at = now() - %s * interval '1 min',
        claimed_by = 'w' WHERE id = %s"""
    jobs.connection.execute(times, [110, 100, 99, job_id])
    jobs.connection.execute(times, [125, 120, 1, long])
    jobs.connection.execute(f"UPDATE {jobs.table} SET run_at = created_at")

    def kinds() -> list[str]:
        return [one.kind for one in past_of(jobs.connection, circumstances(jobs, job_id)).parts]

    assert kinds() == ["queued", "running"]
    jobs.connection.execute(f"UPDATE {jobs.table} SET claimed_by = NULL WHERE id = %s", [long])
    assert kinds() == ["unserved", "running"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_spent, "AFTER", 50)
        assert kinds() == ["queued", "running"]


def test_of_a_wait_that_began_before_the_time_all_is_told(jobs: Jobs) -> None:
    """A metric of the last minutes says of hours in which nothing ran what the sums of a day do."""
    jobs.enqueue()
    jobs.repository.end(ending(jobs.one(), "completed"))
    ago = "now() - interval '10 h'"
    jobs.connection.execute(f"UPDATE {jobs.table} SET created_at = {ago}, run_at = {ago}")
    for since_s in (300.0, 86_400.0):
        (waits,) = queue_waits(jobs.connection, since_s=since_s).queues
        causes = {one.cause.kind: round(one.seconds / 3600) for one in waits.causes}
        assert {kind: hours for kind, hours in causes.items() if hours} == {"unserved": 10}


def test_causes_that_are_not_told_one_by_one_are_counted_by_their_jobs(jobs: Jobs) -> None:
    """Each job once, whatever number of them it waited for."""
    ids = jobs.enqueue(queue_waits_of.CAUSES + 3)
    jobs.repository.end_many([ending(job) for job in jobs.claim(limit=len(ids))])
    hold = """jsonb_build_object('reason', 'limit_full', 'key', {key} || id, 'attempt', 0, 'times', 1,
        'since', now() - interval '{since} min', 'until', now() - interval '{until} min')"""
    holds = [hold.format(key="'a'", since=59, until=31), hold.format(key="'b'", since=31, until=2)]
    jobs.connection.execute(
        f"""UPDATE {jobs.table} SET created_at = now() - interval '1 h', run_at = now() - interval '2 min',
            started_at = now() - interval '1 min', past_holds = jsonb_build_array({", ".join(holds)})"""
    )
    (waits,) = queue_waits(jobs.connection, since_s=60).queues
    (others,) = [one for one in waits.causes if one.cause == queue_waits_of.OTHERS]
    assert others.jobs == len(ids)


def test_where_more_ended_than_are_read_they_stand_for_all(jobs: Jobs) -> None:
    """All of the part are counted, however close they ended, and said to be about so; where there are more
    than are counted it is at least so many.
    """
    ids = jobs.enqueue(40)
    jobs.repository.end_many([ending(job) for job in jobs.claim(limit=40)])
    jobs.connection.execute(
        f"""UPDATE {jobs.table} SET started_at = at - interval '1 s', finished_at = at,
            created_at = at - interval '11 s', run_at = at - interval '11 s'
        FROM (SELECT now() - (100 - n) * interval '1 s' AS at, id AS of_id
            FROM unnest(%s::bigint[]) WITH ORDINALITY AS one (id, n)) AS times WHERE id = of_id""",
        [ids],
    )
    (exact,) = queue_waits(jobs.connection, since_s=120, slices=1, each=100).queues
    (about,) = queue_waits(jobs.connection, since_s=120, slices=1, each=10).queues
    assert (exact.jobs, exact.is_about, round(exact.worked_s)) == (40, False, 40)
    assert about.is_about
    assert (about.jobs, round(about.worked_s), about.is_at_least) == (40, 40, False)
    assert about.waited_s == pytest.approx(exact.waited_s)
    (least,) = queue_waits(jobs.connection, since_s=120, slices=1, each=10, counted=30).queues
    assert (least.jobs, least.is_at_least, exact.is_at_least) == (30, True, False)
    jobs.connection.execute(f"UPDATE {jobs.table} SET finished_at = now() - interval '50 s'")
    (burst,) = queue_waits(jobs.connection, since_s=120, slices=1, each=10).queues
    assert burst.jobs == 40
