"""Many ends and a claim: two statements, one transaction, one round trip."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from support.rows.jobs import Jobs, ending, jobs_of
from support.rows.schemas import blocked, holding, until

from queue_workflows.repositories import Ended
from queue_workflows.repositories.claims.end import MANY

CUT = "SELECT pg_terminate_backend(%s)"


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family, each with jobs enough for two batches."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        jobs.enqueue(3 * MANY)
        yield jobs


@contextmanager
def beside(jobs: Jobs, dsn: str, *, autocommit: bool = True) -> Iterator[Jobs]:
    """The same jobs on another connection."""
    with closing(psycopg.connect(dsn, autocommit=autocommit)) as connection:
        yield Jobs(jobs.family, connection)


def end_and_claim(jobs: Jobs, held: list[Any], status: str = "completed") -> tuple[Ended, list[Any]]:
    """The end of these beside the claim of as many."""
    done, claimed = jobs.repository.end_and_claim(
        [ending(job, status) for job in held], jobs.queue, worker_id="w1", lease_s=30, limit=MANY
    )
    return done, claimed


def ids(jobs: list[Any]) -> set[int]:
    """Whose."""
    return {job.id for job in jobs}


def test_a_claim_leaves_alone_what_others_have_claimed_since_the_ends_began(qwf_dsn: str, jobs: Jobs) -> None:
    """Nobody's end then waits for it: in one statement it locked what was queued when the statement began."""
    held = jobs.claim(limit=MANY)
    first = f"SELECT FROM {jobs.table} WHERE id = {held[0].id} FOR UPDATE"
    with (
        holding(qwf_dsn, first) as holder,
        beside(jobs, qwf_dsn) as others,
        ThreadPoolExecutor(1) as threads,
    ):
        answer = threads.submit(end_and_claim, jobs, held)
        until(lambda: blocked(qwf_dsn, holder.info.backend_pid), "the wait for the first row")
        theirs = others.claim("w2", limit=MANY)
        holder.rollback()
        done, claimed = answer.result(150)
        assert len(done.statuses) == len(claimed) == MANY
        assert not ids(theirs) & ids(claimed)
        locked = others.connection.execute(
            f"SELECT count(*) FROM {jobs.table}"
            " WHERE claimed_by = 'w2' AND xmax::text NOT IN ('0', xmin::text)"
        ).fetchone()
    assert locked == (0,)


def test_what_many_give_back_they_do_not_take_again_at_once(jobs: Jobs) -> None:
    """Though the claim that follows would see it: whoever comes next may have it."""
    held = jobs.claim(limit=MANY)
    done, claimed = end_and_claim(jobs, held, "queued")
    assert set(done.statuses.values()) == {"queued"}
    assert not ids(held) & ids(claimed)


def test_those_whose_lease_is_lost_are_named(jobs: Jobs) -> None:
    """The others end, and the claim goes on."""
    held = jobs.claim(limit=MANY)
    lost = held[3].fence
    jobs.connection.execute(f"UPDATE {jobs.table} SET attempt = 9 WHERE id = {lost.job_id}")
    done, claimed = end_and_claim(jobs, held)
    assert (len(done.statuses), done.lost, len(claimed)) == (MANY - 1, [lost], MANY)


@pytest.mark.parametrize("refused", ["completed", "running"])
def test_one_that_is_refused_undoes_the_other(jobs: Jobs, refused: str) -> None:
    """An end that the server will not have claims nothing, and a claim that it will not have ends nothing."""
    held = jobs.claim(limit=MANY)
    before = jobs.rows()
    jobs.connection.execute(
        f"CREATE FUNCTION no_more() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE 'no more'; END $$;"
        f"CREATE TRIGGER no_more BEFORE UPDATE ON {jobs.table} FOR EACH ROW"
        f" WHEN (NEW.status = '{refused}') EXECUTE FUNCTION no_more()"
    )
    try:
        with pytest.raises(psycopg.errors.RaiseException):
            end_and_claim(jobs, held)
    finally:
        jobs.connection.execute("DROP FUNCTION no_more CASCADE")
    assert jobs.rows() == before
    done, claimed = end_and_claim(jobs, held)
    assert len(done.statuses) == len(claimed) == MANY


def test_a_session_that_has_forgotten_its_statements_is_asked_anew(jobs: Jobs) -> None:
    """Nothing is done twice, and nothing is lost."""
    _, held = end_and_claim(jobs, jobs.claim(limit=MANY))
    jobs.connection.execute("DEALLOCATE ALL")
    done, claimed = end_and_claim(jobs, held)
    assert len(done.statuses) == len(claimed) == MANY
    done, none = end_and_claim(jobs, claimed)
    assert (len(done.statuses), none) == (MANY, [])
    assert [row["attempt"] for row in jobs.rows()] == [1] * (3 * MANY)


def test_in_a_callers_transaction_it_is_the_callers(qwf_dsn: str, jobs: Jobs) -> None:
    """Who rolls back has ended and claimed nothing."""
    held = jobs.claim(limit=MANY)
    before = jobs.rows()
    with beside(jobs, qwf_dsn, autocommit=False) as theirs:
        done, claimed = end_and_claim(theirs, held)
        assert len(done.statuses) == len(claimed) == MANY
        theirs.connection.rollback()
    assert jobs.rows() == before


def test_a_connection_that_is_cut_meanwhile_says_so(qwf_dsn: str, jobs: Jobs) -> None:
    """As any other does; nothing was ended or claimed."""
    held = jobs.claim(limit=MANY)
    before = jobs.rows()
    first = f"SELECT FROM {jobs.table} WHERE id = {held[0].id} FOR UPDATE"
    with (
        holding(qwf_dsn, first) as holder,
        beside(jobs, qwf_dsn) as cut,
        ThreadPoolExecutor(1) as threads,
    ):
        answer = threads.submit(end_and_claim, cut, held)
        until(lambda: blocked(qwf_dsn, holder.info.backend_pid), "the wait for the first row")
        jobs.connection.execute(CUT, [cut.connection.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            answer.result(150)
        assert cut.connection.closed
    assert jobs.rows() == before
