"""At most one terminal result is accepted per job and generation, and it comes from the current attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.processes.threads import together
from support.reference.examples import examples
from support.rows.jobs import CLEAR, Jobs, ending, jobs_of

from queue_workflows.errors import LeaseLost
from queue_workflows.repositories import ClaimedJob
from queue_workflows.states import JOB_TERMINAL

HANDS = 6


@pytest.fixture(params=["node", "ingest"])
def hands(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[list[Jobs]]:
    """Several connections to an empty table."""
    with ExitStack() as stack:
        yield [stack.enter_context(jobs_of(request.param, qwf_dsn, clear=n == 0)) for n in range(HANDS)]


def test_of_many_finishes_at_one_moment_one_is_accepted(hands: list[Jobs]) -> None:
    """Whoever sends the same attempt's end several times at once gets one answer, and one event."""
    for round_ in range(20):
        (job_id,) = hands[0].enqueue()
        job = hands[0].one()
        ends = [ending(job, result={"by": n}) for n in range(HANDS)]

        def finish(n: int, ends: list[Any] = ends) -> bool:
            return not hands[n].repository.end_many([ends[n]]).lost

        accepted = together(*(lambda n=n: finish(n) for n in range(HANDS)))
        assert sum(accepted) == 1, round_
        assert hands[0].row(job_id)["result"] == {"by": accepted.index(True)}
        assert hands[0].events(job_id) == hands[0].ended((1, 1, "completed"))


def race(hands: list[Jobs]) -> str:
    """A worker's end, a host's marks and two reclaims at one moment; which of them was the end."""
    (job_id,) = hands[0].enqueue()
    job = hands[0].one()
    hands[0].lapse(job_id)
    one, two, three, four, five, _ = (each.repository for each in hands)
    together(
        lambda: one.end_many([ending(job, result={"by": "worker"})]),
        lambda: two.mark_failed(job_id, "by the host"),
        lambda: three.mark_completed(job_id, {"by": "host"}),
        lambda: four.reclaim(max_crashes=1, lease_s=30.0),
        lambda: five.reclaim_worker("w1", max_crashes=1),
    )
    row = hands[0].row(job_id)
    assert row["status"] in ("completed", "failed")
    assert hands[0].events(job_id) == hands[0].ended((1, 1, row["status"]))
    said = [entry["kind"] for entry in row["errors"]] or [row["result"]["by"]]
    assert len(said) == 1
    return said[0]


def test_host_worker_and_sweeper_end_it_once(hands: list[Jobs]) -> None:
    """Whoever comes first is the end; nobody adds to it, and it has one event."""
    for _ in range(20):
        assert race(hands) in ("worker", "host", "failed", "worker_lost")


ENDS = {"complete": "completed", "fail": "failed", "release": "queued", "later": "scheduled"}
MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            ["claim", "complete", "fail", "retry later", "release", "lapse", "reclaim", "cancel", "again"]
        ),
        st.integers(0, 2),
        st.integers(0, 5),
    ),
    max_size=30,
)


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_whatever_the_order(family: str, qwf_dsn: str) -> None:
    """Three workers that claim, forget and finish late, an operator, a sweeper: no generation ends twice."""
    with jobs_of(family, qwf_dsn) as jobs:

        @given(MOVES)
        @settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
        def play(moves: list[tuple[str, int, int]]) -> None:
            jobs.connection.execute(CLEAR)
            ids = jobs.enqueue(2)
            # Every claim that was ever handed out, kept as a zombie would.
            claims: list[ClaimedJob] = []
            ends: Counter[tuple[int, int]] = Counter()
            for move, worker, pick in moves:
                ends.update(step(jobs, claims, move, f"w{worker}", ids[pick % 2], pick))
            assert max(ends.values(), default=0) <= 1
            assert len({(job.id, job.attempt) for job in claims}) == len(claims)
            finished = [row for row in jobs.rows() if row["status"] in JOB_TERMINAL]
            assert all(ends[row["id"], row["generation"]] == 1 for row in finished)

        play()


def step(  # noqa: PLR0917 - the hands of one player
    jobs: Jobs, claims: list[ClaimedJob], move: str, worker: str, job_id: int, pick: int
) -> list[tuple[int, int]]:
    """One move; which (job, generation) it ended."""
    repository = jobs.repository
    if move == "claim":
        claims += jobs.claim(worker, alone=True)
    elif move == "lapse":
        jobs.connection.execute(
            f"UPDATE {jobs.table} SET lease_expires_at = now() - interval '1 s' WHERE status = 'running'"
        )
    elif move == "reclaim":
        taken = repository.reclaim(max_crashes=3, lease_s=30.0)
        return [(each.id, jobs.row(each.id)["generation"]) for each in taken if each.status in JOB_TERMINAL]
    elif move == "cancel":
        if repository.cancel(job_id) == "cancelled":
            return [(job_id, jobs.row(job_id)["generation"])]
    elif move == "again":
        repository.retry_many([job_id], actor="ann")
    elif claims:
        job = claims[pick % len(claims)]
        status = {"complete": "completed", "fail": "failed", "release": "queued", "retry later": "scheduled"}[
            move
        ]
        delay = {"delay_s": 0.0} if status == "scheduled" else {}
        try:
            became = repository.end(ending(job, status, **delay))
        except LeaseLost:
            return []
        assert jobs.row(job.id)["attempt"] == job.attempt
        repository.promote()
        if became in JOB_TERMINAL:
            return [(job.id, job.generation)]
    return []
