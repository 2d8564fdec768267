"""Two sweepers against two hundred workers that finish at that very moment: each job goes one way."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from support.processes.threads import together
from support.rows.jobs import Jobs, ending, jobs_of

JOBS = 200
FINISHERS = 4


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_two_reclaimers_against_200_completions(family: str, qwf_dsn: str) -> None:
    """Accepted means completed with its event; refused means reclaimed, once, and back in its place."""
    with ExitStack() as stack:
        hands = [stack.enter_context(jobs_of(family, qwf_dsn, clear=n == 0)) for n in range(FINISHERS + 2)]
        first = hands[0]
        ids = first.enqueue(JOBS)
        # Alone with its job each, so that a reclaim counts and shows if it happened twice.
        held = [first.one(f"w{n}") for n in range(JOBS)]
        first.lapse(*ids)

        def finish(hand: Jobs, share: list) -> dict[int, bool]:
            return {job.id: not hand.repository.end_many([ending(job)]).lost for job in share}

        def sweep(hand: Jobs) -> dict[int, bool]:
            taken: dict[int, bool] = {}
            for _ in range(20):
                for each in hand.repository.reclaim(max_crashes=9, lease_s=30.0):
                    assert each.id not in taken
                    taken[each.id] = each.counted
            return taken

        # Some are over before, some finished by nobody: something for either side, whoever is quicker.
        early = finish(first, held[:5])
        answers = together(
            *(lambda n=n: finish(hands[n], held[10 + n :: FINISHERS]) for n in range(FINISHERS)),
            *(lambda n=n: sweep(hands[FINISHERS + n]) for n in range(2)),
        )
        accepted = {
            job_id for answer in (early, *answers[:FINISHERS]) for job_id, was in answer.items() if was
        }
        one, two = answers[FINISHERS:]
        assert not one.keys() & two.keys()
        taken = one | two
        assert accepted | taken.keys() == set(ids)
        assert not accepted & taken.keys()
        assert accepted
        assert taken
        for job_id in ids:
            names = ("status", "attempt", "crash_count")
            expected = ("completed", 1, 0) if job_id in accepted else ("queued", 1, 1)
            assert first.seen(job_id, *names) == expected
            assert first.events(job_id) == (first.ended((1, 1, "completed")) if job_id in accepted else [])


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_claims_share_nothing(family: str, qwf_dsn: str) -> None:
    """Workers that claim, finish and claim again side by side run every job once."""
    with ExitStack() as stack:
        hands = [stack.enter_context(jobs_of(family, qwf_dsn, clear=n == 0)) for n in range(4)]
        ids = hands[0].enqueue(300)

        def drain(hand: Jobs, worker: str) -> list[int]:
            ran: list[int] = []
            held = hand.claim(worker, limit=3)
            while held:
                ran += [job.id for job in held]
                _, held = hand.repository.end_and_claim(
                    [ending(job) for job in held], hand.queue, worker_id=worker, lease_s=30, limit=3
                )
            return ran

        ran = together(*(lambda n=n: drain(hands[n], f"w{n}") for n in range(4)))
        assert sorted(job_id for each in ran for job_id in each) == sorted(ids)
        assert {row["attempt"] for row in hands[0].rows()} == {1}
