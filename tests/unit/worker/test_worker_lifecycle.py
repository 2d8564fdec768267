"""What a worker does between two jobs, decided without a database."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.engine.limits.offered_host_locks import LockOffers
from queue_workflows.repositories.claims.end import Ended
from queue_workflows.repositories.sql.table import LONGEST_PAGE
from queue_workflows.roles.worker.common.lifecycle import WorkerLifecycle, WorkerOptions
from queue_workflows.roles.worker.single import Worker


class Held:
    """What is on hold for a model, and who asks for it."""

    def __init__(self, held: int) -> None:
        self.held = held
        self.asked: list[tuple[str, list[str]]] = []
        self.most: list[int] = []
        self.warm: list[str] = []
        self.promoted = False
        self.modules = ["p/m"]

    def held_keys(self, reason: str, *, queue: str) -> list[str]:
        assert queue in {"gpu", "hooks", "cpu"}
        return [*self.modules] if reason == "unknown_module" and queue != "gpu" else []

    def promote_held(self, reason: str, keys: list[str], *, queue: str, limit: int = LONGEST_PAGE) -> int:
        assert queue in {"gpu", "hooks", "cpu"}
        self.asked.append((reason, keys))
        self.most.append(limit)
        return self.held

    def look_for_the_oldest(self) -> None:
        self.promoted = True


def lifecycle(
    held: Held, models: list[str] | None, queue: str = "gpu", *, drain: bool = False
) -> WorkerLifecycle:
    """That of a worker that can load these."""
    stand_in: Any = SimpleNamespace(
        terms=SimpleNamespace(
            published=None,
            queue=queue,
            host="here",
            affinity=held,
            locks=KeptLocks(),
            offers=LockOffers(),
            takes_offers=False,
        ),
        holdings=SimpleNamespace(bounded=nullcontext),
        repository=lambda: held,
        task_names=list,
        loadable_models=lambda: models or [],
        warm_models=lambda: [*held.warm],
        keeps_models=models is not None,
        poll=SimpleNamespace(holds_nothing=lambda _reason: False),
        is_resting=False,
        wish=None,
        stopping=None,
        knows_module=lambda label: label == "p/m",
    )
    return WorkerLifecycle(
        WorkerOptions(queue, drain=drain),
        guardian=stand_in,
        listener=stand_in,
        job_runner=stand_in,
        worker_connection=stand_in,
    )


@pytest.mark.parametrize(
    ("models", "held", "soon", "late"),
    [
        (["a"], 0, False, True),
        (["a"], 1, True, True),
        ([], 0, False, True),
        (None, 0, False, True),
    ],
    ids=["knows some", "some wait", "knows none yet", "keeps none"],
)
def test_a_worker_with_models_looks_again_for_what_waits_for_them(
    models: list[str] | None, held: int, *, soon: bool, late: bool
) -> None:
    """Also one that knows of none yet; what it has fetched is next, before another puts it aside again."""
    there = Held(held)
    it = lifecycle(there, models)
    assert not it.must_fetch(time.monotonic())
    it.fetch_what_waited_for_us()
    now = time.monotonic()
    assert (it.must_fetch(now + 2), it.must_fetch(now + 61)) == (soon, late)
    assert there.asked == ([("model_unknown", ["a"])] if models else [])
    assert there.promoted is (held > 0)


def test_what_is_fetched_soon_again_is_for_what_is_loaded() -> None:
    """Few at a time, as others put aside again what they cannot load; it is no reason to load another model.
    Who drains the queue takes all, as he does not come again.
    """
    there = Held(3)
    it = lifecycle(there, ["a", "warm"])
    it.fetch_what_waited_for_us()
    it.fetch_what_waited_for_us()
    there.warm.append("warm")
    there.promoted = False
    it.fetch_what_waited_for_us()
    assert [keys for _, keys in there.asked] == [["a", "warm"], ["a", "warm"], ["warm"]]
    assert (there.most, there.promoted) == ([32] * 3, False)
    lifecycle(there, ["a"], drain=True).fetch_what_waited_for_us()
    assert there.most[3] == LONGEST_PAGE


@pytest.mark.parametrize("is_due", [False, True])
def test_a_worker_that_is_never_idle_looks_for_what_waits_for_it_too(*, is_due: bool) -> None:
    """When it is time for that, the end of a job brings no other: the worker comes round to look first."""
    parts, held = MagicMock(), MagicMock()
    parts.rng.random.return_value = 1.0
    held.ctx.take_progress.return_value = None
    parts.lifecycle.may_claim.return_value = True
    parts.lifecycle.must_fetch.return_value = is_due
    claim_session = parts.worker_connection.claim_session.return_value
    claim_session.end.return_value = Ended()
    claim_session.end_and_claim.return_value = (Ended(), [])
    assert Worker(parts)._end(held, MagicMock()) is None
    assert (claim_session.end.called, claim_session.end_and_claim.called) == (is_due, not is_due)
    assert parts.lifecycle.look_at_locks.called is not is_due


@pytest.mark.parametrize("queue", ["hooks", "cpu"])
def test_a_worker_of_nodes_looks_again_for_what_it_has(queue: str) -> None:
    """Who lacks a script or a module puts its jobs aside at any time, and what is lacking may come later.
    What was found may be put aside again by another, so it is looked for again soon.
    """
    there = Held(0)
    there.modules = ["p/later"]
    it = lifecycle(there, None, queue)
    it.fetch_what_waited_for_us()
    assert not it.fetch_again(time.monotonic() + 2)
    assert there.asked == []
    there.modules, there.held = ["p/later", "p/m"], 1
    it.fetch_again(time.monotonic() + 61)
    assert there.asked == [("unknown_module", ["p/m"])]
    assert it.must_fetch(time.monotonic() + 2)
