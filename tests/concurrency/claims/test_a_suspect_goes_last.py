"""A worker that keeps models takes a suspect after all others, also those that another claim looks at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR, Jobs
from support.rows.schemas import holding

from queue_workflows.gpu.affinity import Affinity
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.gpu.models import ModelRegistry
from queue_workflows.repositories import NodeJobRepository
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.low_water_marks import Marks
from queue_workflows.roles.worker.claims.session_by_model import ModelClaimSession
from queue_workflows.roles.worker.claims.terms import ClaimTerms

LOCK = "SELECT FROM workflow_node_jobs WHERE id = {} FOR UPDATE"


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield Jobs("node", connection)


@pytest.fixture
def claim_session(jobs: Jobs) -> ModelClaimSession:
    """Of a worker that has loaded nothing yet."""
    clock = count(0.0).__next__
    cache = ModelCache(ModelRegistry(list), queue="gpu", budget_mb=None, keep_s=1e9, clock=clock)
    affinity = Affinity(cache, max_wait_s=60.0, yield_s=0, fresh_s=30, first="high")
    terms = ClaimTerms(NodeJobRepository, "gpu", "host:gpu:1", 60.0, PayloadLimits(), affinity=affinity)
    return ModelClaimSession(terms, affinity, jobs.connection)


def test_what_another_claim_looks_at_comes_first(
    qwf_dsn: str, jobs: Jobs, claim_session: ModelClaimSession
) -> None:
    """The worker asks again; in their turn suspects come first, and after the others one by one."""
    suspects = jobs.enqueue(3, queue="gpu")
    jobs.connection.execute("UPDATE workflow_node_jobs SET suspect = true")
    (other,) = jobs.enqueue(queue="gpu")
    marks = Marks(0.0)

    def claim(*, suspects_first: bool = False) -> list[int]:
        return [job.id for job in claim_session.claim(marks, 0.0, suspects_first=suspects_first)]

    with holding(qwf_dsn, LOCK.format(other)):
        assert claim() == []
        assert not marks.empty
        assert claim(suspects_first=True) == [suspects[0]]
    assert claim() == [other]
    assert claim() == [suspects[1]]
    # It knows of no end yet, so it does not wait to be woken.
    assert not marks.empty
    assert claim() == [suspects[2]]
    assert claim() == []
    assert marks.empty
