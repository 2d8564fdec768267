"""Which rows a claim takes, in which order, and what it makes of them; for both families."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.rows.jobs import Jobs, jobs_of

from queue_workflows.errors import PayloadError
from queue_workflows.repositories import Marks
from queue_workflows.repositories.sql.low_water_marks import PRIORITIES


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


def test_priority_then_place(jobs: Jobs) -> None:
    """All ten priorities, highest first, and within one who came first."""
    ids = jobs.enqueue(priorities=(3, 9, 0, 5, 9, 1, 8, 7, 2, 6, 4, 5))
    order = sorted(range(12), key=lambda n: (-jobs.row(ids[n])["priority"], n))
    assert [job.id for job in jobs.claim(limit=12)] == [ids[n] for n in order]


def test_one_by_one_is_the_same_order(jobs: Jobs) -> None:
    """A worker with marks gets what a worker without them gets."""
    ids = jobs.enqueue(priorities=(5, 9, 5, 0, 9))
    marks, got = Marks(1.0), []
    for tick in range(5):
        claimed = jobs.claim(positions=marks.positions(tick / 100))
        marks.claimed(claimed, 1)
        got += [job.id for job in claimed]
    assert got == [ids[n] for n in (1, 4, 0, 2, 3)]


def test_a_claim_fills_the_fence(jobs: Jobs) -> None:
    """It counts the attempt, names the worker, leases by the database's clock, and forgets old progress."""
    (job_id,) = jobs.enqueue()
    first = jobs.one()
    jobs.repository.beat(first.fence, {"fraction": 0.5})
    jobs.repository.release(first)
    job = jobs.one("w2", lease_s=5)
    row = jobs.row(job_id)
    assert (job.id, job.attempt, job.claimed_by) == (job_id, 2, "w2")
    names = ("status", "attempt", "claimed_by", "progress", "failures", "finished_at")
    assert tuple(row[name] for name in names) == ("running", 2, "w2", None, 0, None)
    assert (job.lease_expires_at - job.started_at).total_seconds() == 5.0
    (payload,) = [getattr(job, name) for name in ("inputs", "args") if hasattr(job, name)]
    assert payload == {"n": 0}


def test_a_node_comes_with_all_it_needs(qwf_dsn: str) -> None:
    """What the executor, the model cache and the guards read is in the claim; nothing is fetched again."""
    fields = {
        "node_module": "draw",
        "plugin": "p",
        "required_model": "sdxl",
        "step": 3,
        "background": True,
        "timeout_s": 60.5,
        "stall_timeout_s": 9.5,
        "host_lock": "gpu0",
        "limit_key": "host:example.org",
        "traceparent": "00-1-2-01",
        "max_attempts": 7,
        "backoff_s": 1.5,
        "kind": "hook",
        "host_priority": 2,
    }
    with jobs_of("node", qwf_dsn) as jobs:
        jobs.enqueue(**fields)
        job = jobs.one()
        assert {name: getattr(job, name) for name in fields} == fields
        row = jobs.rows()[0]
        same = ("id", "node_id", "map_index", "generation", "position", "crash_count", "suspect", "priority")
        assert {name: getattr(job, name) for name in same} == {name: row[name] for name in same}
        assert (str(job.run_id), job.cancel_requested_at) == (row["run_id"], None)


def test_only_what_is_queued_here(jobs: Jobs) -> None:
    """Another queue's rows, scheduled ones, running ones and finished ones are not claimable."""
    jobs.enqueue(queue={"node": "gpu", "ingest": "load"}[jobs.family])
    jobs.enqueue(delay=3600)
    done, held = jobs.enqueue(2)
    jobs.repository.complete(jobs.one())
    jobs.one()
    assert jobs.claim(limit=10) == []
    assert [row["status"] for row in jobs.rows() if row["id"] in (done, held)] == ["completed", "running"]


def test_marks_hide_what_stands_below(jobs: Jobs) -> None:
    """Each priority has its own mark; without marks everything is seen."""
    ids = jobs.enqueue(priorities=(9, 5, 9, 5))
    place = {job_id: jobs.row(job_id)["position"] for job_id in ids}
    positions = [0] * 10
    positions[PRIORITIES.index(9)] = place[ids[0]]
    positions[PRIORITIES.index(5)] = place[ids[3]]
    assert [job.id for job in jobs.claim(limit=9, positions=positions)] == [ids[2]]
    assert [job.id for job in jobs.claim(limit=9)] == [ids[0], ids[1], ids[3]]


def test_a_late_commit_below_the_mark_is_found(qwf_dsn: str, jobs: Jobs) -> None:
    """A row inserted before others and committed after them is claimed once a marked claim comes up short."""
    with psycopg.connect(qwf_dsn) as slow:
        (late,) = Jobs(jobs.family, slow).enqueue()
        (early,) = jobs.enqueue()
        marks = Marks(3600.0)

        def claim() -> list[int]:
            claimed = jobs.claim(positions=marks.positions(1.0))
            marks.claimed(claimed, 1)
            return [job.id for job in claimed]

        assert claim() == [early]
        slow.commit()
        assert (claim(), marks.empty) == ([], False)
        assert (claim(), marks.empty) == ([late], False)
        assert (claim(), claim(), marks.empty) == ([], [], True)


def test_what_another_transaction_is_at_is_passed_by_above_the_mark(qwf_dsn: str) -> None:
    """And what one was at and let go, until the next look at everything: at once after a short answer."""
    with jobs_of("ingest", qwf_dsn) as jobs, psycopg.connect(qwf_dsn) as other:
        ids = jobs.enqueue(6)
        marks = Marks(3600.0, passes_by=True)

        def claim(limit: int = 1) -> list[int]:
            claimed = jobs.claim(limit=limit, positions=marks.positions(1.0))
            marks.claimed(claimed, limit)
            return [job.id for job in claimed]

        assert claim() == [ids[0]]
        lock = f"SELECT FROM {jobs.table} WHERE id = ANY (%s) FOR NO KEY UPDATE"
        other.execute(lock, [ids[1:3]])
        assert claim() == [ids[3]]
        other.rollback()
        assert claim(4) == [ids[4], ids[5]]
        assert claim(2) == [ids[1], ids[2]]
        assert min(marks.positions(1.0)) == 0


def test_no_more_rows_are_locked_than_are_wanted(qwf_dsn: str, jobs: Jobs) -> None:
    """While a claim is not committed, everybody else can have all the other rows, of every priority."""
    jobs.enqueue(priorities=tuple(range(10)) * 5)
    with jobs_of(jobs.family, qwf_dsn, autocommit=False, clear=False) as other:
        assert len(other.claim(limit=7)) == 7
        free = jobs.connection.execute(
            f"SELECT count(*) FROM (SELECT FROM {jobs.table} FOR UPDATE SKIP LOCKED) AS free"
        ).fetchone()
        assert free == (43,)
        assert len(jobs.claim("w2", limit=50)) == 43


def test_a_suspect_goes_to_who_is_alone(jobs: Jobs) -> None:
    """Whatever its priority, after all others, by itself; and now and then before them."""
    first, second, third, fourth = jobs.enqueue(priorities=(9, 9, 5, 0))
    some = f"UPDATE {jobs.table} SET suspect = true, crash_count = %s WHERE id = %s"
    jobs.connection.execute(some, [2, first])
    jobs.connection.execute(some, [0, third])
    assert [job.id for job in jobs.claim(limit=5)] == [second, fourth]
    (fifth,) = jobs.enqueue()
    assert [job.id for job in jobs.claim("w2", alone=True)] == [fifth]
    (alone,) = jobs.claim("w2", alone=True)
    assert (alone.id, alone.suspect) == (third, True)
    jobs.repository.release(alone)
    jobs.enqueue()
    assert [job.id for job in jobs.claim("w2", alone=True, suspects_first=True)] == [first]
    with pytest.raises(PayloadError, match="alone"):
        jobs.claim(limit=2, alone=True)


def test_a_claim_may_be_asynchronous_in_its_own_transaction_only(qwf_dsn: str, jobs: Jobs) -> None:
    """Nothing of ours stays in the session, and a transaction of the caller's stays durable."""
    jobs.enqueue(4)
    show = "SELECT current_setting('synchronous_commit')"
    before = jobs.connection.execute(show).fetchone()
    assert before != ("off",)
    during = f"""
        CREATE FUNCTION pg_temp.during() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN NEW.traceparent := current_setting('synchronous_commit'); RETURN NEW; END $$;
        CREATE TRIGGER during BEFORE UPDATE ON {jobs.table} FOR EACH ROW EXECUTE FUNCTION pg_temp.during()
    """
    jobs.connection.execute(during)
    try:
        assert jobs.one(durable=False).traceparent == "off"
        assert jobs.connection.execute(show).fetchone() == before
        assert jobs.one().traceparent == before[0]
        with jobs.connection.transaction():
            assert jobs.one(durable=False).traceparent == before[0]
        with jobs.connection.pipeline():
            assert jobs.one(durable=False).traceparent == before[0]
    finally:
        jobs.connection.execute(f"DROP TRIGGER during ON {jobs.table}")


def test_a_claim_wants_sensible_numbers(jobs: Jobs) -> None:
    """What would claim nothing, or for no time, is refused before it is sent."""
    for wrong in ({"limit": 0}, {"lease_s": 0.0}, {"lease_s": float("nan")}, {"worker": ""}):
        with pytest.raises(PayloadError):
            jobs.claim(**wrong)
