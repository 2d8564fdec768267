"""Jobs that kill their worker cost their neighbours little time, and no neighbour is blamed for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.poisoned import Stage, mixed, poison_job, stage
from support.supervised import idle

from queue_workflows.repositories import NewIngestJob

# When each crash was counted, of those that came before the last good job was done.
CRASHES_BEFORE = """
SELECT count(*) FROM ingest_jobs AS job, jsonb_array_elements(job.errors) AS error
WHERE task_name = 'poison' AND (error ->> 'counted')::boolean
    AND (error ->> 'at')::timestamptz < (SELECT max(finished_at) FROM ingest_jobs WHERE task_name = 'doze')
"""
LAST_WORDS = """
SELECT DISTINCT args ->> 'how', errors -> -1 ->> 'message' FROM ingest_jobs WHERE task_name = 'poison'
"""
MAX_CRASHES = 3
SIGNALS = {"kill": "SIGKILL", "segv": "SIGSEGV", "abort": "SIGABRT", "exit": "ended with 3"}


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


def test_of_whatever_priority(qwf_dsn: str, tmp_path: Path) -> None:
    """All of the poison stands in front: what has crashed once stands behind, and later jobs share again."""
    poison, good = 20, 200
    jobs = [poison_job(number, priority=9) for number in range(poison)]
    jobs += [NewIngestJob(task_name="doze", queue="fetch", args={"s": 0.05}) for _ in range(good)]
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


@pytest.mark.slow
def test_a_tenth_of_poison_is_out_of_the_way_after_its_first_crash(qwf_dsn: str) -> None:
    """A thousand good jobs on two workers of eight, with a hundred of poison in between."""
    good, poison = 1000, 100
    with stage(qwf_dsn) as there:
        there.jobs.enqueue_many(mixed(good, poison, seed=1, good_s=0.05))
        there.good_done(within_s=300)
        assert crashes_before_the_last_good(there) < 1.5 * poison
        there.all_done(within_s=300)
        check_ends(there, good=good, poison=poison)
