"""The order in which workers with loaded models claim, and how long it may keep anybody waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.threads import together
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs

from queue_workflows import ModelSpec
from queue_workflows.gpu.affinity import Affinity
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.gpu.models import ModelRegistry
from queue_workflows.repositories import HeartbeatRepository
from queue_workflows.repositories.claims.claim_by_model import AffinityRepository, Preference, WarmClaim
from queue_workflows.repositories.sql.low_water_marks import PRIORITIES


class Gpu:
    """The queue, and workers that are nothing but their claims."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.jobs = Jobs("node", connection)
        self._claims = AffinityRepository(connection)

    def enqueue(self, *models: str | None, **more: Any) -> list[int]:
        """A job for each, in order."""
        return [self.jobs.enqueue(queue="gpu", required_model=model, **more)[0] for model in models]

    def claim(self, *warm: str, worker: str = "w", **wanted: Any) -> WarmClaim:
        """What a worker with these models gets."""
        return self._claims.ask("gpu", Preference(warm=warm, **wanted), worker_id=worker, lease_s=30)()

    def claimed(self, *warm: str, **wanted: Any) -> int | None:
        """The id of it."""
        job = self.claim(*warm, **wanted).job
        return None if job is None else job.id

    def claim_by(self, affinity: Affinity, now: float, worker: str = "w") -> int | None:
        """What a worker gets whose preference this is; it learns from that."""
        preference = affinity.preference(now)
        job, has_passed = self.claim(*preference.warm, worker=worker, oldest=preference.oldest)
        if job is not None:
            affinity.claimed(job.priority, now, has_passed=has_passed)
        return None if job is None else job.id

    def beat(self, worker: str, *models: str, state: str = "idle", queue: str = "gpu") -> None:
        """A worker is heard of."""
        HeartbeatRepository(self.connection).beat(
            worker, host_label="h", queue=queue, pid=1, state=state, cached_models=models
        )


@pytest.fixture
def gpu(qwf_dsn: str) -> Iterator[Gpu]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Gpu(connection)


def test_warm_first_within_a_priority(gpu: Gpu) -> None:
    """Priority, then what is loaded, then age; a job without a model is one that nobody has loaded."""
    old, plain, warm, also = gpu.enqueue("cold", None, "a", "b")
    (urgent,) = gpu.enqueue("cold", priorities=(9,))
    assert [gpu.claimed("b", "a") for _ in range(6)] == [urgent, warm, also, old, plain, None]


def test_host_priority_counts_from_the_end_that_a_host_prefers(gpu: Gpu) -> None:
    """After warmth and before age, among the warm as among the others."""
    for first, order in (("high", [1, 0, 3, 4, 2]), ("low", [0, 1, 2, 4, 3])):
        ids = [
            gpu.enqueue(model, host_priority=given)[0]
            for model, given in (("a", 0), ("a", 7), ("x", -1), ("x", 9), ("y", 0))
        ]
        assert [ids.index(gpu.claimed("a", first=first) or 0) for _ in ids] == order


def test_the_oldest_wins_when_its_time_has_come(gpu: Gpu) -> None:
    """By age alone, whatever its model and host_priority; and each claim says whether it passed somebody."""
    old, warm, warmer = gpu.enqueue("cold", "a", "a")
    assert gpu.claim("a")[1] is True
    assert gpu.claimed("a", oldest=PRIORITIES) == old
    last = gpu.claim("a")
    assert (last.job and last.job.id, last.has_passed) == (warmer, False)
    assert gpu.jobs.seen(warm, "status", "attempt", "claimed_by") == ("running", 1, "w")


def test_nobody_is_passed_for_longer_than_it_may_last(gpu: Gpu) -> None:
    """However many jobs for loaded models keep coming, to several workers at once, and of whatever priority,
    the oldest one is next within `affinity_max_wait_s` of becoming it; then the next oldest is.
    """
    now, took_s = 0.0, 10.0
    workers = {name: affinity_with("a", lambda: now) for name in ("w1", "w2", "w3")}
    cold = gpu.enqueue(*[f"cold{n}" for n in range(9)])
    taken_at: dict[int, float] = {}
    while len(taken_at) < len(cold):
        gpu.enqueue("a", "a", "a")
        if now % 50 == 40:
            # Each worker gets one now and then; it is the oldest of its own priority.
            gpu.enqueue("a", "b", None, priorities=(9,))
        for name, affinity in workers.items():
            job = gpu.claim_by(affinity, now, worker=name)
            assert job is not None
            if job in cold:
                taken_at[job] = now
        now += took_s
        assert now < 1000
    assert list(taken_at) == cold
    # Three of them each time, as each of the three workers has passed the oldest for as long as it may. One
    # that has just begun does not know whom others have passed.
    assert list(taken_at.values()) == [0.0] * 3 + [70.0] * 3 + [150.0] * 3


def test_a_job_that_cannot_run_here_is_not_the_one_that_was_waited_for(gpu: Gpu) -> None:
    """The next oldest of its priority follows at once, not after the same time again; and when nothing
    waits nobody is passed.
    """
    affinity = affinity_with("a", lambda: 0.0)
    affinity.nothing_waits()
    unknown, also, old = gpu.enqueue("none", "none", "cold")
    warm = gpu.enqueue("a", "a", "a")
    assert gpu.claim_by(affinity, 0.0) == warm[0]
    assert gpu.claim_by(affinity, 60.0) == unknown
    affinity.put_aside()
    assert gpu.claim_by(affinity, 60.0) == also
    affinity.put_aside()
    assert gpu.claim_by(affinity, 60.0) == old
    assert gpu.claim_by(affinity, 120.0) == warm[1]
    assert affinity.preference(120.0).oldest == ()
    affinity = affinity_with("a", lambda: 0.0)
    assert (affinity.is_passing, affinity.preference(0.0).oldest) == (True, PRIORITIES)
    affinity.nothing_waits()
    assert (affinity.is_passing, affinity.preference(1e9).oldest) == (False, ())


def test_what_an_idle_worker_has_loaded_is_left_to_it_for_a_moment(gpu: Gpu) -> None:
    """Only what came just now, only to who is idle, on this queue, heard of and not flagged; to nobody else,
    and not by who has it loaded or is to take the oldest.
    """
    (theirs,) = gpu.enqueue("a")
    gpu.beat("peer", "b", "a")
    assert gpu.claimed(yield_s=3600) is None
    assert gpu.claimed(worker="peer", yield_s=3600) == theirs
    for number, hindrance in enumerate(
        [
            "state = 'busy'",
            "queue = 'cpu'",
            "last_seen = now() - interval '1 h'",
            "last_flagged_dead_at = now()",
        ]
    ):
        gpu.beat("peer", "b", "a")
        (theirs,) = gpu.enqueue("a")
        assert gpu.claimed(yield_s=3600) is None
        gpu.connection.execute(f"UPDATE worker_heartbeats SET {hindrance}")
        assert gpu.claimed(yield_s=3600, worker=f"w{number}") == theirs
    gpu.beat("peer", "b", "a")
    late, other = gpu.enqueue("a", "c")
    gpu.connection.execute(
        "UPDATE workflow_node_jobs SET run_at = run_at - interval '9 s' WHERE id = %s", [late]
    )
    assert [gpu.claimed(yield_s=8), gpu.claimed(yield_s=8)] == [late, other]
    (own,) = gpu.enqueue("a")
    assert gpu.claimed("a", yield_s=3600) == own
    (forced,) = gpu.enqueue("a")
    assert gpu.claimed(yield_s=3600, oldest=PRIORITIES) == forced


def test_claims_at_one_moment_get_a_job_each(gpu: Gpu, qwf_dsn: str) -> None:
    """One that somebody is claiming is passed over, and no other is locked meanwhile."""
    ids = gpu.enqueue(*["a"] * 12, *["b"] * 12)
    with psycopg.connect(qwf_dsn) as other:
        other.execute("SELECT FROM workflow_node_jobs WHERE id = ANY(%s) FOR UPDATE", [[ids[0], ids[12]]])
        assert [gpu.claimed("b"), gpu.claimed()] == [ids[13], ids[1]]

    def worker(number: int) -> list[int]:
        got: list[int] = []
        with psycopg.connect(qwf_dsn, autocommit=True) as connection:
            mine = Gpu(connection)
            while (job := mine.claimed("b", worker=f"w{number}")) is not None:
                got.append(job)
        return got

    shares = together(*[lambda number=number: worker(number) for number in range(4)])
    assert sorted(job for share in shares for job in share) == sorted({*ids} - {ids[13], ids[1]})


def test_a_claim_in_this_order_is_fenced_like_any_other(gpu: Gpu) -> None:
    """The attempt is new, the lease is the worker's, and what is not to run now is not there for it."""
    (job_id,) = gpu.enqueue("a")
    gpu.jobs.enqueue(queue="cpu", required_model="a")
    gpu.jobs.enqueue(queue="gpu", required_model="a", delay=3600)
    job = gpu.claim("a").job
    assert job is not None
    assert (job.id, job.attempt, job.claimed_by, job.required_model) == (job_id, 1, "w", "a")
    assert gpu.jobs.seen(job_id, "status", "attempt", "claimed_by") == ("running", 1, "w")
    assert gpu.claimed("a") is None
    gpu.jobs.repository.release(job)
    gpu.connection.execute("UPDATE workflow_node_jobs SET suspect = true WHERE id = %s", [job_id])
    # A suspect stands in no order of others: it is claimed when this one has nothing left.
    assert gpu.claimed("a") is None
    (again,) = gpu.jobs.repository.claim("gpu", worker_id="w", lease_s=30, alone=True)
    assert (again.id, again.attempt) == (job_id, 2)


def affinity_with(name: str, clock: Any) -> Affinity:
    """The preference of a worker with one model loaded."""
    return Affinity(cache_with(name, clock), max_wait_s=60.0, yield_s=0, fresh_s=30, first="high")


def cache_with(name: str, clock: Any) -> ModelCache:
    """A worker's models, one of them loaded."""
    registry = ModelRegistry(lambda: [ModelSpec(name, load=object)])
    cache = ModelCache(registry, queue="gpu", budget_mb=None, keep_s=1e9, clock=clock)
    cache.obtain(name, lambda: True)
    return cache
