"""A slot that a crash of the server forgot and that is taken again belongs to the window or job it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import Context
from types import SimpleNamespace
from typing import Any

import pytest
from support.rows.claim_sessions import CLEAR_LIMITS, Hand, cap, hand, holders
from support.rows.claimed_jobs import context
from support.rows.jobs import Jobs, jobs_of

from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.limits.wait_loop import DatabaseCalls
from queue_workflows.engine.limits.windows import Windows
from queue_workflows.engine.outcomes import Stop
from queue_workflows.roles.worker.claims.session import ClaimSession

KEY = "host:example.org"
Told = list[tuple[int, Stop]]


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_LIMITS)
        yield jobs


class Windowed:
    """A worker with a guardian, and the windows of its jobs."""

    def __init__(self, jobs: Jobs, worker: Hand) -> None:
        self.worker = worker
        self.guardian = ClaimSession(worker.terms, jobs.connection)
        self.told: Told = []
        self._connection = jobs.connection
        calls = DatabaseCalls(lambda job, question: question(worker.connection))
        self.windows = Windows(calls, worker.terms.kept, worker.terms.locks, lease_s=60)

    def ctx(self) -> JobContext:
        """That of another job."""
        (job,) = self.worker.claim()
        return context(job, windows=self.windows)

    def crash_and_renew(self, meanwhile: Callable[[], Any] = lambda: None) -> None:
        """The server forgets all slots, and `meanwhile` happens after the guardian saw that they are lost."""
        self._connection.execute("UPDATE limit_slots SET lease_expires_at = '-infinity'")
        held: list[Any] = [
            SimpleNamespace(job=job, tell=lambda why, *_, of=job.id: self.told.append((of, why)))
            for job in self.worker.held
        ]
        take = self.guardian._slot_claims._slots.take

        def take_later(*args: Any, **more: Any) -> Any:
            meanwhile()
            return take(*args, **more)

        self.guardian._slot_claims._slots.take = take_later  # type: ignore[method-assign]
        self.guardian.renew(held)
        self.guardian._slot_claims._slots.take = take  # type: ignore[method-assign]


@pytest.fixture
def windowed(jobs: Jobs, qwf_dsn: str) -> Iterator[Windowed]:
    with hand(qwf_dsn, "w1") as worker:
        yield Windowed(jobs, worker)


def test_a_cap_of_its_own_holds_again(jobs: Jobs, windowed: Windowed) -> None:
    """No operator has limited the key: what the window asked for is its only cap."""
    jobs.enqueue()
    window = windowed.ctx().limit(KEY, max=1)
    with window:
        windowed.crash_and_renew()
        assert len(holders(jobs.connection, KEY)) == 1
    assert holders(jobs.connection, KEY) == []


def test_each_is_asked_for_with_its_own_cap(jobs: Jobs, windowed: Windowed) -> None:
    """A narrow window does not stand in the way of a wide one that held a slot beside it."""
    jobs.enqueue(2)
    narrow, wide = windowed.ctx(), windowed.ctx()
    windows = [narrow.limit(KEY, max=1), wide.limit(KEY, max=3)]
    for window in windows:
        Context().run(window.__enter__)
    windowed.crash_and_renew()
    assert holders(jobs.connection, KEY) == [narrow.job.id, wide.job.id]
    assert windowed.told == []
    for window in windows:
        window.__exit__(None, None, None)
    assert holders(jobs.connection, KEY) == []


def test_closing_frees_what_was_taken_again(jobs: Jobs, windowed: Windowed) -> None:
    """Also after a second time; the job's next window need not wait for its last."""
    cap(jobs.connection, KEY, 1)
    jobs.enqueue()
    ctx = windowed.ctx()
    with ctx.limit(KEY):
        windowed.crash_and_renew()
        windowed.crash_and_renew()
        assert holders(jobs.connection, KEY) == [ctx.job.id]
    assert holders(jobs.connection, KEY) == []
    with ctx.limit(KEY, max_wait_s=0):
        assert holders(jobs.connection, KEY) == [ctx.job.id]


def test_a_window_that_is_closed_meanwhile_keeps_nothing(jobs: Jobs, windowed: Windowed) -> None:
    """The guardian took a slot for it after it gave its own back."""
    cap(jobs.connection, KEY, 1)
    jobs.enqueue()
    window = windowed.ctx().limit(KEY)
    window.__enter__()
    windowed.crash_and_renew(lambda: window.__exit__(None, None, None))
    assert holders(jobs.connection, KEY) == []
    assert not windowed.worker.terms.kept


def test_a_window_that_is_closed_meanwhile_sends_no_job_back(
    jobs: Jobs, windowed: Windowed, qwf_dsn: str
) -> None:
    """Another has the slot by then, which this one has done with."""
    cap(jobs.connection, KEY, 1)
    jobs.enqueue()
    window = windowed.ctx().limit(KEY)
    window.__enter__()
    (late,) = jobs.enqueue(limit_key=KEY)
    with hand(qwf_dsn, "w2") as other:

        def meanwhile() -> None:
            window.__exit__(None, None, None)
            other.claim()

        windowed.crash_and_renew(meanwhile)
    assert holders(jobs.connection, KEY) == [late]
    assert windowed.told == []


def test_a_job_that_ends_meanwhile_keeps_nothing(jobs: Jobs, windowed: Windowed) -> None:
    """Its end is through before the guardian takes; who waits in the lane gets what that took in vain."""
    cap(jobs.connection, KEY, 1)
    jobs.enqueue(2, limit_key=KEY)
    windowed.worker.claim(2)
    windowed.crash_and_renew(windowed.worker.end)
    assert holders(jobs.connection, KEY) == []
    assert not windowed.worker.terms.kept
    assert len(windowed.worker.claim()) == 1


def test_a_job_whose_slot_is_taken_again_while_it_ends(jobs: Jobs, windowed: Windowed) -> None:
    """The end gave back what it had seen before: the rest goes with the claim after it."""
    cap(jobs.connection, KEY, 1)
    jobs.enqueue(2, limit_key=KEY)
    worker = windowed.worker
    worker.claim(2)
    slots = worker.claim_session._slot_claims._slots
    send = slots.send_free

    def taken_again_first(given: Any) -> None:
        windowed.crash_and_renew()
        send(given)

    slots.send_free = taken_again_first  # type: ignore[method-assign]
    worker.end()
    slots.send_free = send  # type: ignore[method-assign]
    worker.claim()
    assert len(worker.held) + len(worker.claim()) == 1
    assert len(holders(jobs.connection, KEY)) == 1
    worker.end()
    assert holders(jobs.connection, KEY) == []


def test_a_claim_that_fails_half_way_leaves_no_trace(jobs: Jobs, windowed: Windowed) -> None:
    """Nobody hears of its jobs, so none of them is kept in mind for ever."""
    cap(jobs.connection, KEY, 1)
    jobs.enqueue(limit_key=KEY)

    def fail(*_: Any) -> int:
        raise ConnectionError

    windowed.worker.claim_session._slot_claims._lanes.admit = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(ConnectionError):
        windowed.worker.claim()
    assert not windowed.worker.terms.kept
