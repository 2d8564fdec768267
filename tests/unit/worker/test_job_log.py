"""What a worker's log says of ended jobs: a line each, or a count a second where they are a crowd."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from support.rows.claimed_jobs import context, ingest_job, node_job

from queue_workflows.engine.execution.guards import Budget, HeldJob
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.roles.worker import job_log
from queue_workflows.roles.worker.job_log import LINES, LOGGER, JobLog
from queue_workflows.states import JobStatus

TRACE = 'Traceback (most recent call last):\n  File "/srv/app/tasks.py", line 3, in go\nValueError'


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def held(job: ClaimedJob, status: str = "completed", *, seconds: float = 0.25, **more: Any) -> HeldJob:
    """A job that has ended so."""
    one = HeldJob(job, context(job), Budget(60, 60), 10.0, 30.0)
    one.ended, one.ending = 10.0 + seconds, Ending(job.fence, JobStatus(status), **more)
    return one


def statuses(batch: list[HeldJob]) -> dict[int, JobStatus]:
    return {one.job.id: one.ending.status for one in batch if one.ending is not None}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines since the last call, each with its level."""
    caplog.set_level(logging.INFO, LOGGER)

    def since() -> list[tuple[str, str]]:
        found = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return found

    return since


def test_few_ends_have_a_line_each(lines):
    """The task, the id, the outcome, the seconds, the attempt; of a node where it stands in its run."""
    log, run = JobLog(Clock()), "00000000-0000-0000-0000-000000000001"
    batch = [
        held(ingest_job(id=1), seconds=0.00025),
        held(node_job(id=2, map_index=3)),
        held(node_job(id=5, node_id="a__10_a_sh", plugin="a", node_module="on_Page__10_a.sh", queue="hooks")),
        held(ingest_job(id=3), "skipped", error=json.dumps({"kind": "skipped", "message": "nothing new"})),
        held(ingest_job(id=4), "cancelled", seconds=1234.5),
    ]
    log.ended(batch, statuses(batch))
    assert lines() == [
        ("INFO", "task 1 completed after 0.25 ms, attempt 2"),
        ("INFO", f"plan (plan[3] of run {run}) 2 completed after 0.250 s, attempt 2"),
        ("INFO", f"a/on_Page__10_a.sh (a__10_a_sh of run {run}) 5 completed after 0.250 s, attempt 2"),
        ("INFO", "task 3 skipped after 0.250 s, attempt 2: nothing new"),
        ("INFO", "task 4 cancelled after 1,234 s, attempt 2"),
    ]
    assert log.due == math.inf


def test_a_crowd_is_counted_by_task_and_said_once_a_second(lines):
    """Each end is in one line or one count; the first quiet second has lines again."""
    clock = Clock()
    log = JobLog(clock)
    for _ in range(50):
        batch = [held(ingest_job(id=n, task_name="ab"[n % 2]), seconds=0.5) for n in range(100)]
        log.ended(batch, statuses(batch))
        clock.now += 0.01
    begun = lines()
    assert (
        begun == [("INFO", f"{'ab'[n % 2]} {n} completed after 0.500 s, attempt 2") for n in range(100)] * 2
    )
    assert len(begun) == LINES
    assert log.due_in(clock.now) == pytest.approx(0.5)
    clock.now += 0.5
    log.say_counted()
    # Two batches had a line for each.
    assert lines() == [("INFO", f"{task}: 2,400 completed, 0.500 s each") for task in "ab"]
    # The next second begins as a crowd, and is none.
    for _ in range(2):
        log.ended([held(ingest_job(id=5))], {5: JobStatus.COMPLETED})
        clock.now += 1.0
    log.ended([held(ingest_job(id=6))], {6: JobStatus.COMPLETED})
    assert lines() == [
        ("INFO", "task: 1 completed, 0.250 s each"),
        ("INFO", "task 5 completed after 0.250 s, attempt 2"),
        ("INFO", "task 6 completed after 0.250 s, attempt 2"),
    ]


def test_failures_are_never_only_counted(lines, caplog):
    """In a crowd too each has its own line, at ERROR, with its traceback and with when it runs again."""
    log = JobLog(Clock())
    error = json.dumps(
        {"kind": "exception", "type": "ValueError", "message": "no\nway", "traceback": f"{TRACE}\n"}
    )
    batch = [held(ingest_job(id=n)) for n in range(300)]
    batch.append(held(ingest_job(id=300), "scheduled", counts=True, delay_s=60.0, error=error))
    batch.append(held(ingest_job(id=301, failures=2), "failed", counts=True, error=error))
    log.ended(batch, statuses(batch))
    assert [record.exc_text for record in caplog.records] == [TRACE, TRACE]
    again, for_good = lines()
    assert again[0] == for_good[0] == "ERROR"
    begun, _, left = again[1].partition("; runs again in 60 s, at ")
    assert (begun, left[20:]) == (
        "task 300 failed after 0.250 s, attempt 2: ValueError: no way",
        ", failure 1 of 3",
    )
    assert for_good[1] == "task 301 failed after 0.250 s, attempt 2: ValueError: no way; failure 3 of 3"
    log.say_counted()
    assert lines() == [("INFO", "task: 300 completed, 0.250 s each")]


def test_what_asked_for_another_time_is_said_with_when(lines):
    """`RetryAfter` is no failure."""
    reason = json.dumps({"kind": "retry_after", "message": "busy"})
    one = held(ingest_job(), "scheduled", delay_s=30.0, error=reason)
    JobLog(Clock()).ended([one], statuses([one]))
    ((level, said),) = lines()
    assert (level, said.split(" at ")[0], said[-6:]) == (
        "INFO",
        "task 7 asked to run later after 0.250 s, attempt 2: runs again in 30 s,",
        ", busy",
    )


def test_an_unknown_task_is_a_warning_once(lines):
    """However many jobs of it are put on hold, by this worker that cannot run them."""
    log = JobLog(Clock())
    for name in ("new", "new", "newer"):
        one = held(ingest_job(), "scheduled", delay_s=60.0, hold_reason="unknown_task", hold_key=name)
        log.ended([one], statuses([one]))
    assert [(level, said.split(":")[0]) for level, said in lines()] == [
        ("WARNING", "the task new is not registered here"),
        ("WARNING", "the task newer is not registered here"),
    ]


def test_an_unknown_module_is_a_warning_that_says_where_it_may_come_from(lines):
    """Of a command that was given no wiring that is the likely reason."""
    one = held(node_job(), "scheduled", delay_s=60.0, hold_reason="unknown_module", hold_key="draw")
    JobLog(Clock()).ended([one], statuses([one]))
    ((level, said),) = lines()
    assert (level, said.split(": ")) == (
        "WARNING",
        [
            "the node module draw is not found here",
            "its jobs wait for a worker that has it, or for --app MODULE that brings it",
        ],
    )


def test_what_was_not_begun_or_is_not_ours_has_no_line(lines):
    """What is given back as it was claimed ahead; and an end that was refused, which is told elsewhere."""
    ahead, lost = held(ingest_job(id=1), "queued"), held(ingest_job(id=2))
    ahead.started = ahead.ended = math.inf
    JobLog(Clock()).ended([ahead, lost], {1: JobStatus.QUEUED})
    assert lines() == []


def test_the_facts_are_in_the_record_too(caplog):
    """For handlers that write more than the words."""
    caplog.set_level(logging.INFO, LOGGER)
    one = held(ingest_job(id=9))
    JobLog(Clock()).ended([one], statuses([one]))
    (record,) = caplog.records
    names = ("job_id", "attempt", "queue", "family", "worker_id", "task_name", "outcome", "seconds")
    assert [getattr(record, name) for name in names] == [
        *(9, 2, "fetch", "ingest", "host:fetch:1", "task", "completed", 0.25)
    ]


def test_at_a_higher_level_successes_cost_nothing(caplog):
    """They are not even counted."""
    caplog.set_level(logging.WARNING, LOGGER)
    log = JobLog(Clock())
    batch = [held(ingest_job(id=n)) for n in range(500)]
    log.ended(batch, statuses(batch))
    assert (caplog.records, log.due) == ([], math.inf)


def test_a_handler_that_raises_ends_no_worker(caplog):
    """What the host app's logging does is its own affair."""

    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise OSError("no")

    broken, logger = Broken(), logging.getLogger(LOGGER)
    caplog.set_level(logging.INFO, LOGGER)
    logger.addFilter(broken)
    try:
        log = JobLog(Clock())
        one = held(ingest_job())
        log.ended([one], statuses([one]))
        assert one.ending is not None
        log.ended_one(one, one.ending, one.ending.status)
    finally:
        logger.removeFilter(broken)
    log.ended([one], statuses([one]))
    assert len(caplog.records) == 1


def test_a_refused_result_has_no_traceback(lines, caplog):
    """Its frames are the engine's alone, and the message says all."""
    ours = f'Traceback (most recent call last):\n  File "{job_log.__file__}", line 1, in f\nPayloadError'
    error = json.dumps({"kind": "exception", "type": "PayloadError", "message": "no JSON", "traceback": ours})
    batch = [held(ingest_job(id=1), "failed", counts=True, error=error)]
    JobLog(Clock()).ended(batch, statuses(batch))
    assert [(record.exc_text, "no JSON" in record.getMessage()) for record in caplog.records] == [
        (None, True)
    ]


@pytest.mark.parametrize(
    "said",
    [
        "+ rsync -a /data /backup\nrsync: No space left on device (28)",
        TRACE.replace("/srv/app", str(Path(job_log.__file__).parents[2]) + "_extras"),
    ],
)
def test_what_is_no_frame_of_ours_is_shown(said, caplog):
    """What a hook printed before it failed, and code of the host app's in a directory beside ours."""
    error = json.dumps({"kind": "exception", "type": "HookFailed", "message": "status 1", "traceback": said})
    batch = [held(node_job(id=1), "failed", counts=True, error=error)]
    JobLog(Clock()).ended(batch, statuses(batch))
    assert [record.exc_text for record in caplog.records] == [said]


def test_a_name_writes_no_line_of_its_own(lines, caplog):
    """Nor does a key that a job waits for, or what an error says: each is shown on the job's one line."""
    forged = "x\n2026-05-04T12:30:07Z INFO 1 queue_workflows.jobs: pay 5 completed\x1b[2J\u202e"
    error = json.dumps({"kind": "exception", "type": "E", "message": f"no{forged}"})
    batch = [
        held(ingest_job(id=1, task_name=forged), "scheduled", hold_reason="unknown_task", hold_key=forged),
        held(ingest_job(id=2), "scheduled", hold_reason="limit_full", hold_key=forged),
        held(ingest_job(id=3), "failed", counts=True, error=error),
    ]
    JobLog(Clock()).ended(batch, statuses(batch))
    assert len(caplog.records) == 3
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert caplog.records[0].task_name == forged
