"""ctx.limit: a window holds a slot of each key, frees them on every path, and deadlocks with nobody."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from typing import Any

import pytest
from support.connections.kept import own_connection
from support.processes.threads import together
from support.processes.workers import until
from support.rows.claimed_jobs import ingest_job, node_job
from support.rows.limited_jobs import LimitedJobs, limited_jobs

from queue_workflows import Cancelled, LimitRepository, RetryAfter, WindowOrder
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.limits import windows
from queue_workflows.engine.outcomes import Stop
from queue_workflows.errors import LeaseLost, PayloadError

FOR_EVER = {"max_wait_s": math.inf}


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[LimitedJobs]:
    with limited_jobs(qwf_dsn) as made:
        yield made


@pytest.fixture
def others(qwf_dsn: str, jobs: LimitedJobs) -> Iterator[LimitedJobs]:
    """The jobs of another process."""
    with own_connection(qwf_dsn) as connection:
        yield LimitedJobs(connection, worker="host:fetch:2")


class Inside:
    """Who is inside a window, counted there."""

    def __init__(self) -> None:
        self.most = 0
        self.count = 0
        self.total = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.count += 1
            self.total += 1
            self.most = max(self.most, self.count)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.count -= 1


def waiting(jobs: LimitedJobs, count: int) -> Callable[[], bool]:
    """Whether so many stand in line."""
    return lambda: len(jobs.windows.line._places) == count


def started(body: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", [ingest_job, node_job])
def test_a_window_holds_its_slots_and_frees_them(jobs: LimitedJobs, kind: Any) -> None:
    """One of each key, held with the job's lease until the end of the block."""
    ctx = jobs.ctx_of(kind)
    with ctx.limit("host:b", "host:a", "host:a", max=4):
        assert jobs.taken() == [("host:a", 1), ("host:b", 1)]
        assert [slot.key for slot in jobs.kept.of([ctx.job.fence])] == ["host:a", "host:b"]
    assert (jobs.taken(), jobs.kept.of([ctx.job.fence])) == ([], [])


def test_a_key_without_a_cap_is_open(jobs: LimitedJobs) -> None:
    """Until the operator sets one, live; the lower of two caps holds."""
    limits = LimitRepository(jobs.connection)
    with another(jobs.ctx().limit("host:a")), another(jobs.ctx().limit("host:a")):
        assert jobs.taken() == []
    limits.set("host:*", 1, actor="ann")
    with jobs.ctx().limit("host:a", max=4):
        assert is_full(jobs, "host:a", max=4)
    limits.set("host:a", 3, actor="ann")
    with another(jobs.ctx().limit("host:a", max=2)), another(jobs.ctx().limit("host:a", max=2)):
        assert is_full(jobs, "host:a", max=2)
        assert not is_full(jobs, "host:a")


@contextmanager
def another(window: Any) -> Iterator[None]:
    """A window of a job that runs beside this one, and not inside its windows."""
    elsewhere = Context()
    elsewhere.run(window.__enter__)
    try:
        yield
    finally:
        elsewhere.run(window.__exit__, None, None, None)


def is_full(jobs: LimitedJobs, *keys: str, **more: Any) -> bool:
    """Whether another job would have to wait."""
    try:
        # In a thread of its own, which is inside no window.
        together(lambda: held(jobs.ctx().limit(*keys, **more, max_wait_s=0)))
    except RetryAfter:
        return True
    return False


def held(window: Any) -> None:
    with window:
        pass


@pytest.mark.parametrize("max_", [0, -1, 1.5, True, "4"])
def test_a_cap_is_checked(jobs: LimitedJobs, max_: Any) -> None:
    """A whole number from 1 on; and there is a key."""
    with pytest.raises(PayloadError):
        jobs.ctx().limit("host:a", max=max_)
    with pytest.raises(PayloadError, match="names no key"):
        jobs.ctx().limit()
    with pytest.raises(PayloadError):
        jobs.ctx().limit("host:*")
    with pytest.raises(PayloadError):
        jobs.ctx().limit("host:a", max_wait_s=-1)


def test_caps_hold_for_threads_of_two_processes(jobs: LimitedJobs, others: LimitedJobs) -> None:
    """Counted inside: never more than the cap, and everybody comes in."""
    inside = Inside()

    def work(mine: LimitedJobs) -> Callable[[], None]:
        def run() -> None:
            for _ in range(5):
                with mine.ctx().limit("host:a", max=2, **FOR_EVER), inside:
                    # As long as others need to come in, if anything let them.
                    threading.Event().wait(0.002)

        return run

    together(*[work(jobs)] * 4, *[work(others)] * 4)
    assert (inside.most <= 2, inside.total, jobs.taken()) == (True, 40, [])


def test_caps_hold_for_tasks_of_one_job(jobs: LimitedJobs) -> None:
    """Each task has a window of its own, and none blocks the loop."""
    inside = Inside()

    async def run() -> None:
        ctx = jobs.ctx()

        async def fetch() -> None:
            async with ctx.limit("host:a", max=3, **FOR_EVER):
                with inside:
                    await asyncio.sleep(0)

        await asyncio.gather(*[fetch() for _ in range(20)])
        with pytest.raises(RuntimeError, match=r"async with ctx\.limit"), ctx.limit("host:a"):
            pass

    asyncio.run(run())
    assert (inside.most <= 3, inside.total, jobs.taken()) == (True, 20, [])


def test_who_came_first_goes_first(jobs: LimitedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process the slot is handed from one to the next in the order of the line, without a poll."""
    for name in ("FIRST_LOOK_S", "LONGEST_LOOK_S", "LONGEST_STAND_S"):
        monkeypatch.setattr(windows, name, 600.0)
    order: list[int] = []

    def enter(number: int) -> None:
        with jobs.ctx().limit("host:a", max=1, **FOR_EVER):
            order.append(number)

    with jobs.ctx().limit("host:a", max=1):
        threads = []
        for number in range(5):
            threads.append(started(lambda number=number: enter(number)))
            until(waiting(jobs, number + 1))
    for thread in threads:
        thread.join(150)
    assert order == [0, 1, 2, 3, 4]


def test_who_waits_no_more_lets_the_next_one_look(
    jobs: LimitedJobs, others: LimitedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a slot that comes free elsewhere, which nobody here is told."""
    monkeypatch.setattr(windows, "LONGEST_STAND_S", 600.0)
    first = jobs.ctx()
    with others.ctx().limit("host:a", max=1):
        threads = [started(lambda: swallowed(first.limit("host:a", max=1, **FOR_EVER)))]
        until(waiting(jobs, 1))
        threads.append(started(lambda: held(jobs.ctx().limit("host:a", max=1, **FOR_EVER))))
        until(waiting(jobs, 2))
        first.stop(Stop.CANCEL)
        until(waiting(jobs, 1))
    for thread in threads:
        thread.join(150)
    assert waiting(jobs, 0)()


def swallowed(window: Any) -> None:
    with pytest.raises(Cancelled):
        held(window)


def test_who_waits_for_something_else_is_passed(jobs: LimitedJobs) -> None:
    """A host that is full keeps nobody from another one, though both need the same second key."""
    with jobs.ctx().limit("host:a", max=1):
        stuck = started(lambda: held(jobs.ctx().limit("host:a", "resolver", max=1, **FOR_EVER)))
        until(waiting(jobs, 1))
        together(lambda: held(jobs.ctx().limit("host:b", "resolver", max=1, **FOR_EVER)))
        assert stuck.is_alive()
    stuck.join(150)
    assert jobs.taken() == []


def test_only_who_is_first_asks(jobs: LimitedJobs) -> None:
    """However many wait for a key, one of them asks the server."""
    askers: set[int] = set()
    jobs.held_up = lambda: askers.add(threading.get_ident())
    with jobs.ctx().limit("host:a", max=1):
        threads = []
        for number in range(6):
            threads.append(started(lambda: held(jobs.ctx().limit("host:a", max=1, **FOR_EVER))))
            until(waiting(jobs, number + 1))
        askers.clear()
        asked = jobs.asked
        until(lambda: jobs.asked >= asked + 3)
        assert askers == {threads[0].ident}
    for thread in threads:
        thread.join(150)


def test_all_keys_or_none(jobs: LimitedJobs) -> None:
    """Who waits for one of two keys holds nothing of the other."""
    with jobs.ctx().limit("host:b", max=1):
        thread = started(lambda: held(jobs.ctx().limit("host:a", "host:b", max=1, **FOR_EVER)))
        asked = jobs.asked
        until(lambda: jobs.asked >= asked + 3)
        assert jobs.taken() == [("host:b", 1)]
    thread.join(150)
    assert jobs.taken() == []


def test_windows_in_opposite_order_do_not_deadlock(jobs: LimitedJobs, others: LimitedJobs) -> None:
    """Two jobs that name two keys the other way round, again and again."""

    def work(mine: LimitedJobs, *keys: str) -> Callable[[], int]:
        def run() -> int:
            for _ in range(20):
                held(mine.ctx().limit(*keys, max=1, **FOR_EVER))
            return 20

        return run

    assert together(work(jobs, "a", "b"), work(others, "b", "a")) == [20, 20]


@pytest.mark.parametrize("inner", [("a",), ("b",), ("a", "c")])
def test_a_window_inside_another_keeps_the_order(jobs: LimitedJobs, inner: tuple[str, ...]) -> None:
    """Else two jobs could wait for each other; it says so at once, and what to write instead."""
    ctx = jobs.ctx()
    with ctx.limit("b", max=1):
        with pytest.raises(WindowOrder, match=r"open one for all of them, ctx\.limit\('") as caught:
            held(ctx.limit(*inner))
        with ctx.limit("c", max=1), ctx.limit("d", max=1):
            assert [key for key, _ in jobs.taken()] == ["b", "c", "d"]
    assert (caught.value.wanted, caught.value.held) == (inner, ("b",))
    held(ctx.limit(*inner))


def test_tasks_begun_inside_a_window_are_inside_it(jobs: LimitedJobs) -> None:
    """As their parent waits for them while it holds its slots; what comes after the window is not."""

    async def run() -> None:
        ctx = jobs.ctx()

        async def inner() -> None:
            async with ctx.limit("a", max=1):
                pass

        async with ctx.limit("b", max=1):
            with pytest.raises(WindowOrder):
                await asyncio.create_task(inner())
        await asyncio.create_task(inner())

    asyncio.run(run())


def test_a_key_that_the_job_was_claimed_under_is_held_already(jobs: LimitedJobs) -> None:
    """By the job, as long as it runs: its window takes no second slot, and waits for nobody."""
    LimitRepository(jobs.connection).set("host:a", 1, actor="ann")
    with jobs.ctx().limit("host:a"):
        ctx = jobs.ctx(limit_key="host:a")
        together(lambda: held(ctx.limit("host:a")))
        together(lambda: held(ctx.limit("host:a", "host:b", max=1)))
        assert jobs.taken() == [("host:a", 1)]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("raised", [ValueError, Cancelled, SystemExit, GeneratorExit, None])
def test_slots_are_freed_on_every_path(
    jobs: LimitedJobs, raised: type[BaseException] | None, is_async: bool
) -> None:
    """Whatever ends the block; and it passes on what was raised inside."""

    def body() -> None:
        assert len(jobs.taken()) == 1
        if raised is not None:
            raise raised

    def run() -> None:
        with jobs.ctx().limit("host:a", max=1):
            body()

    async def run_async() -> None:
        async with jobs.ctx().limit("host:a", max=1):
            body()

    def by_hand() -> None:
        # A loop would take the exit of a process for its own.
        try:
            run_async_by_hand(run_async())
        except BaseException as exc:
            seen.append(type(exc))

    seen: list[type[BaseException]] = []
    if is_async:
        by_hand()
    else:
        try:
            run()
        except BaseException as exc:
            seen.append(type(exc))
    assert seen == [raised] * (raised is not None)
    assert jobs.taken() == []


def run_async_by_hand(body: Any) -> None:
    """The body in a loop, whatever it raises."""
    caught: list[BaseException] = []

    async def outer() -> None:
        try:
            await body
        except BaseException as exc:
            caught.append(exc)

    asyncio.run(outer())
    if caught:
        raise caught[0]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_stop_ends_the_wait(jobs: LimitedJobs, is_async: bool) -> None:
    """A job that is cancelled while it waits holds nothing and is in nobody's way; its wait is recorded."""
    ctx = jobs.ctx()

    async def enter() -> None:
        async with ctx.limit("host:a", max=1, **FOR_EVER):
            raise AssertionError("it never came in")

    async def enter_and_be_cancelled() -> None:
        task, loop = asyncio.ensure_future(enter()), asyncio.get_running_loop()
        with ctx.interrupted_by(lambda: loop.call_soon_threadsafe(task.cancel)):
            await task

    def run() -> None:
        with pytest.raises((Cancelled, asyncio.CancelledError)):
            asyncio.run(enter_and_be_cancelled()) if is_async else held(
                ctx.limit("host:a", max=1, **FOR_EVER)
            )

    with jobs.ctx().limit("host:a", max=1):
        thread = started(run)
        asked = jobs.asked
        until(lambda: jobs.asked >= asked + 3)
        ctx.stop(Stop.CANCEL)
        thread.join(150)
        assert waiting(jobs, 0)()
        assert ctx.waits.limits == 1
        assert ctx.waits.limit_s > 0
    assert jobs.taken() == []


def test_a_task_that_is_cancelled_while_its_slots_are_taken_holds_none(jobs: LimitedJobs) -> None:
    """The answer comes all the same, and what it brought is given back."""
    asking, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        asking.set()
        go_on.wait(150)

    async def cancelled() -> None:
        async def enter() -> None:
            async with jobs.ctx().limit("host:a", max=1):
                raise AssertionError("it never came in")

        task = asyncio.create_task(enter())
        await asyncio.to_thread(asking.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    jobs.held_up = hold_up
    asyncio.run(cancelled())
    assert jobs.taken() == []


def test_who_waits_in_vain_is_put_back(jobs: LimitedJobs) -> None:
    """Uncounted, so that it holds up neither its thread nor what it was claimed for."""
    with jobs.ctx().limit("host:a", max=1), pytest.raises(RetryAfter) as caught:
        together(lambda: held(jobs.ctx().limit("host:a", max=1, max_wait_s=0.05)))
    assert "waited 0.05 s for a window of 'host:a'" in str(caught.value)


def test_a_lost_lease_opens_no_window(jobs: LimitedJobs) -> None:
    """And one that is open says so at its end, unless something else went wrong inside."""
    window = jobs.ctx().limit("host:a", max=1)

    def lost() -> None:
        raise LeaseLost("ingest job", 1, 2)

    def fail_inside() -> None:
        with window:
            jobs.held_up = lost
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    with pytest.raises(LeaseLost):
        held(jobs.ctx().limit("host:a", max=1))
    assert waiting(jobs, 0)()


def test_a_holder_that_is_gone_leaves_its_slots(jobs: LimitedJobs, others: LimitedJobs) -> None:
    """Who renews them no more has them until the end of the lease."""
    others.windows.lease_s = 0.5
    window = others.ctx().limit("host:a", max=1)
    Context().run(window.__enter__)
    (until_then,) = jobs.connection.execute("SELECT lease_expires_at FROM limit_slots").fetchone() or (None,)
    held(jobs.ctx().limit("host:a", max=1, **FOR_EVER))
    (after,) = jobs.connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
    assert after > until_then


def test_a_window_is_used_once_at_a_time(jobs: LimitedJobs) -> None:
    """One after the other is fine."""
    window = jobs.ctx().limit("host:a", max=2)
    held(window)
    with window, pytest.raises(RuntimeError, match="open already"):
        held(window)
    with ExitStack() as stack:
        stack.enter_context(window)
    assert jobs.taken() == []


def test_a_window_that_is_closed_admits_the_next_of_a_lane(jobs: LimitedJobs) -> None:
    """Jobs may wait to be claimed for what was a window's."""
    LimitRepository(jobs.connection).set("host:a", 1, actor="ann")
    jobs.connection.execute("TRUNCATE ingest_jobs")
    with jobs.ctx().limit("host:a"):
        jobs.connection.execute(
            "INSERT INTO ingest_jobs (task_name, queue, limit_key, status, hold_reason, hold_key, run_at)"
            " VALUES ('t', 'fetch', 'host:a', 'scheduled', 'limit_full', 'host:a', '9000-01-01')"
        )
    seen = jobs.connection.execute("SELECT status FROM ingest_jobs").fetchall()
    assert seen == [("queued",)]


def test_a_context_without_a_worker_names_what_is_missing(jobs: LimitedJobs) -> None:
    """As everything of limits does."""
    ctx: JobContext = jobs.ctx()
    ctx._windows = None
    with pytest.raises(Exception, match="outside a worker"):
        ctx.limit("host:a")
