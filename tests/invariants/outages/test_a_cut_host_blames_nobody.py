"""A host that loses its network leaves no suspects, so others go on with its jobs side by side."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from support.processes.workers import until
from support.rows.jobs import jobs_of
from support.servers.statement_proxy import StatementProxy
from support.stages.floor import Floor

HELD = 2
BEAT_S = 5.0
LEASE_S = 30.0
# So that workers beat, and leases lapse, within seconds; none does while another worker starts.
QUICK = {"QWF_LEASE_S": "5", "QWF_RENEW_S": "0.5", "QWF_STALE_HEARTBEAT_S": "1"}
# A beat each second and a half: two workers of a host are not told apart by how late a busy machine has them.
CALM = {"QWF_LEASE_S": "9", "QWF_RENEW_S": "0.5", "QWF_STALE_HEARTBEAT_S": "9"}
DOUBTS = ("crash_count", "suspect")
HEARTBEAT = """
INSERT INTO worker_heartbeats (worker_id, host_label, queue, pid, state, started_at, last_seen)
VALUES (%s, %s, 'fetch', 1, 'busy', now() - %s * interval '1 s', now() - %s * interval '1 s')
"""
# Of the worker whose job lapsed, when it began and was heard of, in seconds before now; those beside it; and
# whether it is to blame.
SILENCES = {
    "alone on its host": ((600, 25), [], True),
    "with all others of its host": (
        (600, 25),
        [("there:fetch:2", 600, 27), ("there:fetch:3", 500, 22)],
        False,
    ),
    "with another that beat late": ((600, 30), [("there:fetch:2", 600, 43)], False),
    "with another while it beat late itself": ((600, 30), [("there:fetch:2", 600, 17)], False),
    "while another one is heard of": (
        (600, 25),
        [("there:fetch:2", 600, 27), ("there:fetch:3", 600, 2)],
        True,
    ),
    "while another host is": ((600, 25), [("there:fetch:2", 600, 27), ("here:fetch:3", 600, 2)], False),
    "after the one before it": ((20, 18), [("there:fetch:2", 600, 22)], True),
    "long after another": ((600, 25), [("there:fetch:2", 700, 60)], True),
    "too lately to know": ((600, 8), [("there:fetch:2", 600, 9)], True),
}


@pytest.mark.parametrize("family", ["node", "ingest"])
@pytest.mark.parametrize("silence", SILENCES)
def test_who_is_to_blame(family: str, silence: str, qwf_dsn: str) -> None:
    """Only a worker that died by itself: those of a host that fall silent together are its network's."""
    (began, heard), others, is_to_blame = SILENCES[silence]
    with jobs_of(family, qwf_dsn) as jobs:
        jobs.connection.execute("TRUNCATE worker_heartbeats")
        jobs.enqueue(2)
        alone = jobs.one("there:fetch:1").id
        for worker_id, began_at, heard_at in [("there:fetch:1", began, heard), *others]:
            host = worker_id.partition(":")[0]
            jobs.connection.execute(HEARTBEAT, [worker_id, host, began_at, heard_at])
        jobs.lapse(alone)
        (taken,) = jobs.repository.reclaim(max_crashes=3, lease_s=LEASE_S, beat_s=BEAT_S)
        assert (taken.id, taken.counted) == (alone, is_to_blame)
        assert jobs.seen(alone, *DOUBTS) == (int(is_to_blame), is_to_blame)


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_leases_that_lapse_a_beat_apart(family: str, qwf_dsn: str) -> None:
    """Nobody is to blame, though one sweep sees what one worker had, and a later one what the other had."""
    with jobs_of(family, qwf_dsn) as jobs:
        jobs.connection.execute("TRUNCATE worker_heartbeats")
        workers = ("there:fetch:1", "there:fetch:2")
        jobs.enqueue(2 * len(workers))
        held = {worker: [jobs.one(worker).id for _ in range(2)] for worker in workers}
        for worker, heard in zip(workers, (26, 26 - BEAT_S), strict=True):
            jobs.connection.execute(HEARTBEAT, [worker, "there", 600, heard])
        for worker, ids in held.items():
            for each in ids:
                jobs.lapse(each)
            taken = jobs.repository.reclaim(max_crashes=3, lease_s=LEASE_S, beat_s=BEAT_S)
            assert {(one.id, one.lost_worker, one.counted) for one in taken} == {
                (each, worker, False) for each in ids
            }
            # A beat goes by until the next sweep.
            jobs.connection.execute(
                "UPDATE worker_heartbeats SET last_seen = last_seen - %s * interval '1 s'", [BEAT_S]
            )
        for each in (job for ids in held.values() for job in ids):
            assert jobs.seen(each, *DOUBTS) == (0, False)


def doubts(floor: Floor, *ids: int) -> set[tuple[int, bool]]:
    """What is counted against these jobs, and suspected."""
    return {floor.jobs.seen(each, *DOUBTS) for each in ids}


# Another was heard of since it began: without that nobody can say of two whether one only followed the other.
HEARD_TOGETHER = """
SELECT count(*) FROM worker_heartbeats WHERE host_label = 'there'
    AND last_seen > (SELECT max(started_at) FROM worker_heartbeats WHERE host_label = 'there')
"""


def are_heard_together(floor: Floor, workers: int) -> bool:
    """Whether so many workers of the host were heard of since the last of them began."""
    return floor.connection.execute(HEARD_TOGETHER).fetchone() == (workers,)


def cut(proxy: StatementProxy) -> None:
    """As a network does: nothing arrives any more, and nobody says so."""
    proxy.swallow()


@pytest.mark.slow
def test_a_host_of_two_workers(floor: Floor, proxy: StatementProxy) -> None:
    """What they held runs at another host at once and side by side, and none of it is a suspect."""
    with ExitStack() as stack:
        for _ in range(2):
            options = ("--host-label", "there", "--concurrency", str(HELD))
            stack.enter_context(floor.worker(*options, dsn=proxy.dsn, **CALM))
        jobs = [floor.enqueue(gated=True) for _ in range(2 * HELD)]
        for job in jobs:
            floor.until_begun(job, 1)
        stack.enter_context(floor.worker("--concurrency", "8", **CALM))
        until(lambda: are_heard_together(floor, 2))
        cut(proxy)
        # All of them at a time, which suspects never are.
        for job in jobs:
            floor.until_begun(job, 2)
        assert doubts(floor, *jobs) == {(0, False)}
        for job in jobs:
            floor.ledger.open_gate(job, 2)
        floor.until_completed(*jobs)
    assert doubts(floor, *jobs) == {(0, False)}
    assert {floor.jobs.row(job)["errors"][0]["message"] for job in jobs} == {
        "its host fell silent, with all of its workers"
    }


@pytest.mark.slow
@pytest.mark.parametrize("held", [1, 3])
def test_a_worker_that_comes_back_takes_the_blame_away(
    floor: Floor, proxy: StatementProxy, held: int
) -> None:
    """Alone on its host it is taken for dead; heard of again, its jobs are not to blame any more."""
    jobs = [floor.enqueue(gated=True) for _ in range(held)]
    options = ("--host-label", "there", "--concurrency", str(held))
    # Without the timer that would end it when its lease is over, as where a machine was paused.
    with floor.worker(*options, dsn=proxy.dsn, **QUICK, QWF_DEADMAN="off") as worker:
        for job in jobs:
            floor.until_begun(job, 1)
        cut(proxy)
        with floor.worker("--concurrency", "1", **QUICK):
            until(lambda: doubts(floor, *jobs) == {(int(held == 1), True)})
            proxy.recover()
            until(lambda: doubts(floor, *jobs) == {(0, False)})
            worker.wait(150)
            for job in jobs:
                for attempt in range(1, 6):
                    floor.ledger.open_gate(job, attempt)
            floor.until_completed(*jobs)
    for job in jobs:
        assert any(entry.get("withdrawn") for entry in floor.jobs.row(job)["errors"])
    assert doubts(floor, *jobs) == {(0, False)}
