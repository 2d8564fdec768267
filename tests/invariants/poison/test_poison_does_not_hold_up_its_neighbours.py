"""Jobs that kill their worker cost their neighbours little time, and no neighbour is blamed for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.supervised import idle
from support.processes.workers import until
from support.stages.poisoned import SIGNALS, Stage, mixed, poison_job, stage

from queue_workflows.repositories import NewIngestJob

# When each crash was counted, of those that came before the last good job was done.
CRASHES_BEFORE = """
SELECT count(*) FROM ingest_jobs AS job, jsonb_array_elements(job.errors) AS error
WHERE task_name = 'poison' AND (error ->> 'counted')::boolean
    AND (error ->> 'at')::timestamptz < (SELECT max(finished_at) FROM ingest_jobs WHERE task_name = 'doze')
"""
# Whether the last good job was done before the last poison was.
GOOD_FIRST = """
SELECT max(finished_at) FILTER (WHERE task_name = 'doze')
    < max(finished_at) FILTER (WHERE task_name = 'poison') FROM ingest_jobs
"""
SUSPECTS = "SELECT count(*) FROM ingest_jobs WHERE task_name = 'doze' AND suspect"
LAST_WORDS = """
SELECT DISTINCT args ->> 'how', errors -> -1 ->> 'message' FROM ingest_jobs WHERE task_name = 'poison'
"""
MAX_CRASHES = 3
GOOD = NewIngestJob(task_name="doze", queue="fetch", args={"s": 0.05})


def check_ends(there: Stage, *, good: int, poison: int) -> None:
    """Nobody is blamed but the poison, each of which says what its own end was."""
    assert there.ends("doze") == [("completed", 0, good)]
    assert there.ends("poison") == [("failed", MAX_CRASHES, poison)]
    words = there.connection.execute(LAST_WORDS).fetchall()
    assert {how for how, _ in words} == set(SIGNALS)
    for how, said in words:
        assert f"it killed its worker {MAX_CRASHES} times, each time running alone" in said
        assert SIGNALS[how] in said


def crashes_before_the_last_good(there: Stage) -> int:
    ((count,),) = there.connection.execute(CRASHES_BEFORE).fetchall()
    return int(count)


@pytest.mark.slow
def test_of_whatever_priority(qwf_dsn: str, tmp_path: Path) -> None:
    """All of the poison stands in front: what has crashed once stands behind, and later jobs share again."""
    poison, good = 20, 200
    jobs = [poison_job(number, priority=9) for number in range(poison)]
    jobs += [GOOD] * good
    with stage(qwf_dsn, log=tmp_path / "log") as there:
        there.jobs.enqueue_many(jobs)
        there.good_done(within_s=120)
        # Each of them once, and few a second time, though every worker has met all of them by then.
        assert crashes_before_the_last_good(there) < 1.5 * poison
        there.all_done(within_s=120)
        check_ends(there, good=good, poison=poison)
        for slot in ("fetch/1", "fetch/2"):
            there.supervisor.until(f"{slot}: no job has crashed for")
        idle(there.connection, 2)


def test_what_had_not_begun_is_no_suspect(qwf_dsn: str) -> None:
    """A worker of two claims hundreds of short jobs ahead; only what ran when it died is doubted."""
    concurrency, short = 2, NewIngestJob(task_name="doze", queue="fetch", args={"s": 0})
    with stage(qwf_dsn, concurrency=concurrency) as there:
        there.jobs.enqueue_many([*[short] * 1000, poison_job(0), *[short] * 1000])
        there.all_done(within_s=120)
        assert there.ends("doze") == [("completed", 0, 2000)]
        ((suspects,),) = there.connection.execute(SUSPECTS).fetchall()
        assert suspects < concurrency


@pytest.mark.slow
def test_all_of_it_in_front(qwf_dsn: str) -> None:
    """Twelve before sixty good ones, all as urgent: each fails alone, and the good are done first."""
    poison, good = 12, 60
    jobs = [poison_job(number) for number in range(poison)]
    jobs += [GOOD] * good
    with stage(qwf_dsn) as there:
        there.jobs.enqueue_many(jobs)
        there.all_done(within_s=300)
        check_ends(there, good=good, poison=poison)
        assert there.connection.execute(GOOD_FIRST).fetchone() == (True,)


@pytest.mark.slow
def test_suspects_have_their_turn_beside_good_work_that_never_ends(qwf_dsn: str) -> None:
    """However much waits that is not suspect, poison comes to its end, and what is innocent is done."""
    poison, ahead = 4, 100
    with stage(qwf_dsn) as there:

        def is_over() -> bool:
            """Whether all poison has failed; until then there is always more good work."""
            missing = ahead - there.left_of("doze")
            there.jobs.enqueue_many([GOOD] * max(0, missing))
            return not there.left_of("poison")

        there.jobs.enqueue_many([poison_job(number) for number in range(poison)])
        until(is_over, within_s=300)
        assert there.left_of("doze") > 0, "there was an end to the good work"
        there.all_done(within_s=120)
        assert there.ends("poison") == [("failed", MAX_CRASHES, poison)]
        ((status, crashes, _),) = there.ends("doze")
        assert (status, crashes) == ("completed", 0)


@pytest.mark.slow
def test_a_tenth_of_poison_is_out_of_the_way_after_its_first_crash(qwf_dsn: str) -> None:
    """Three hundred good jobs on two workers of eight, with thirty of poison in between."""
    good, poison = 300, 30
    with stage(qwf_dsn) as there:
        there.jobs.enqueue_many(mixed(good, poison, seed=1, good_s=0.05))
        there.good_done(within_s=300)
        assert crashes_before_the_last_good(there) < 1.5 * poison
        there.all_done(within_s=300)
        check_ends(there, good=good, poison=poison)
