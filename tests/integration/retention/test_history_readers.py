"""What operators and apps read by id, by list or by filter finds a job that has moved to the history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.rows.history import by_months, cleared, over, rows, settle
from support.rows.schemas import qwf

from queue_workflows.engine.watch.queue_snapshot import ingest_snapshot
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.reports.drain_progress import OutcomeRepository
from queue_workflows.repositories.reports.ends import EndOf, EndRepository, SeenEnd
from queue_workflows.repositories.reports.job_listing import JobFilter, SelectingRepository
from queue_workflows.repositories.reports.job_search import JobSearch
from queue_workflows.repositories.retention import PruningRepository
from queue_workflows.repositories.sql.families import INGEST


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables, and a connection whose every statement is seen at once."""
    with cleared(qwf_dsn) as connection:
        yield connection


@pytest.fixture
def moved(connection: psycopg.Connection[Any]) -> list[int]:
    """Ten jobs of which all but the last two have moved."""
    ids = over(connection, 8)
    by_months(connection)
    settle(connection)
    return [*ids, *over(connection, 2, days=0)]


def test_an_app_finds_it_by_id_and_in_lists(connection: psycopg.Connection[Any], moved: list[int]) -> None:
    """`fetch`, `list` in either order, by status, and `counts`."""
    jobs = IngestJobRepository(connection)
    job = jobs.fetch(moved[0])
    assert job is not None
    assert (job.id, job.status, job.result, job.args) == (moved[0], "completed", {"done": True}, {"n": 1})
    assert jobs.fetch(moved[-1] + 100) is None
    assert [one.id for one in jobs.list(limit=5)] == moved[:-6:-1]
    assert [one.id for one in jobs.list(limit=5, after=moved[5])] == moved[4::-1]
    assert [one.id for one in jobs.list(newest_first=False)] == moved
    assert [one.id for one in jobs.list(status=iter(["completed"]), queue="fetch")] == moved[::-1]
    assert jobs.list(status="failed") == []
    assert jobs.counts() == {"fetch": {"completed": 10}}


def test_what_is_waited_for_is_seen_to_be_over(connection: psycopg.Connection[Any], moved: list[int]) -> None:
    """Those that moved and those that did not in one look, and nothing of what never was."""
    wanted = [EndOf("ingest", job_id) for job_id in (moved[0], moved[-1], moved[-1] + 100)]
    seen = EndRepository(connection).look(wanted)
    assert seen == dict.fromkeys(wanted[:2], SeenEnd("completed", {"done": True}, None))


def test_a_search_goes_on_from_the_table_into_the_history(
    connection: psycopg.Connection[Any], moved: list[int]
) -> None:
    """Page by page, by the same cursors, and by how old a job is."""
    search, wanted = JobSearch(connection), JobFilter(family="ingest")
    found, cursor = [], None
    while True:
        page = search.page(wanted, limit=3, before=cursor)
        found += [line.id for line in page.lines]
        if (cursor := page.cursor) is None:
            break
    assert found == moved[::-1]
    old = search.page(JobFilter(task="task", older_than_s=86_400.0))
    assert [line.id for line in old.lines] == moved[-3::-1]
    assert search.page(JobFilter(family="ingest", status=("running",))).lines == []
    selecting = SelectingRepository(connection)
    assert selecting.count(JobFilter(family="ingest", status=("completed",)), at_most=100) == 10
    assert selecting.count(JobFilter(family="ingest", status=("failed",)), at_most=100) == 0


def test_statistics_count_what_ended_in_a_longer_while(
    connection: psycopg.Connection[Any], moved: list[int]
) -> None:
    """Also where that is longer than a job stays in its table; by default nothing of the past is counted."""
    for hours, ended in ((1, 2), (240, 10)):
        assert ingest_snapshot(conn=connection, window_s=3600.0 * hours)["fetch"].completed == ended
    ((now,),) = connection.execute("SELECT now() - interval '10 days'").fetchall()
    outcomes = OutcomeRepository(connection, INGEST).read("fetch", now)
    assert outcomes.ended == {"completed": 10}


def test_its_files_stay_while_it_does(connection: psycopg.Connection[Any], moved: list[int]) -> None:
    """What clears files asks whether the job is there."""
    repository = PruningRepository(connection, kept_s=86_400.0 * 30, ttl_s=0)
    standing = repository.standing_ingest(moved)
    assert {job_id: old for (job_id, _), old in standing.items()} == dict.fromkeys(moved, False)


@pytest.mark.slow
def test_commands_find_it(connection: psycopg.Connection[Any], qwf_dsn: str, moved: list[int]) -> None:
    """`job show`, `list`, `cancel`, `explain` and `retry`, which brings it back."""
    name = f"ingest:{moved[0]}"

    def run(*words: str) -> tuple[int, str]:
        done = qwf(*words, QWF_DB_URL=qwf_dsn, QWF_APP="support.tasks.worker_tasks")
        return done.returncode, done.stdout + done.stderr

    assert name in run("job", "show", name)[1]
    assert name in run("job", "list", "--older-than", "1d")[1]
    assert run("explain", name)[0] == 0
    assert "not cancelled, it is completed" in run("job", "cancel", name)[1]
    code, said = run("job", "retry", name, str(moved[1]), "--dry-run")
    assert (code, said.count("would be retried")) == (0, 2)
    before = rows(connection)
    code, said = run("job", "retry", name, f"ingest:{moved[1]}")
    assert (code, said.count("retried")) == (0, 2)
    assert len(rows(connection)) == len(before)
    queued = connection.execute("SELECT id FROM ingest_jobs WHERE status = 'queued' ORDER BY id").fetchall()
    assert queued == [(moved[0],), (moved[1],)]
