"""ctx: the fence is durable before it is shown, stopping reaches everybody, and no beat is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from typing import Any

import pytest
from support.rows.claimed_jobs import MOMENT, context, ingest_job, node_job

from queue_workflows.engine.execution.context import FenceToken, JobContext
from queue_workflows.engine.outcomes import Cancelled, Stop
from queue_workflows.errors import LeaseLost, PayloadError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_facts_of_the_job():
    """What a function may want to know of itself; what the other family has is None."""
    ctx = context(ingest_job(failures=2))
    assert (ctx.id, ctx.attempt, ctx.generation) == (7, 2, 1)
    assert (ctx.queue, ctx.worker_id) == ("fetch", "host:fetch:1")
    assert (ctx.task_name, ctx.run_id, ctx.node_id) == ("task", None, None)
    assert ctx.is_last_attempt
    node = context(node_job())
    assert (node.task_name, node.run_id, node.node_id) == (None, node_job().run_id, "plan")
    assert not node.is_last_attempt


def test_the_fence_is_made_durable_before_it_is_shown():
    """Once, by the first use."""
    made: list[int] = []
    ctx = context(ingest_job(), make_durable=lambda: made.append(1) is None)
    assert made == []
    assert ctx.fence == ctx.fence == FenceToken("ingest job", 7, 2, "host:fetch:1")
    assert made == [1]


def test_threads_that_want_the_fence_at_once_make_it_durable_once():
    """The second waits for the first's answer and does not get a token that is not durable yet."""
    asked, answer = threading.Event(), threading.Event()
    calls: list[int] = []

    def make_durable() -> bool:
        calls.append(1)
        asked.set()
        return answer.wait(150)

    ctx = context(ingest_job(), make_durable=make_durable)
    got: list[FenceToken] = []
    threads = [threading.Thread(target=lambda: got.append(ctx.fence)) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert asked.wait(150)
    assert got == []
    answer.set()
    for thread in threads:
        thread.join(150)
    assert (len(got), len(calls)) == (8, 1)


def test_a_fence_that_is_lost_is_not_shown():
    """LeaseLost, each time, and the attempt has to stop."""
    ctx = context(ingest_job(), make_durable=lambda: False)
    for _ in range(2):
        with pytest.raises(LeaseLost) as caught:
            _ = ctx.fence
    assert (caught.value.family, caught.value.job_id, caught.value.attempt) == ("ingest job", 7, 2)
    assert ctx.stopping is Stop.LEASE_LOST


def test_a_fence_that_was_durable_is_not_shown_after_the_lease_was_lost():
    """The guard thread may know more than the renewal of an hour ago."""
    ctx = context(ingest_job())
    assert ctx.fence
    ctx.stop(Stop.LEASE_LOST)
    with pytest.raises(LeaseLost):
        _ = ctx.fence


def test_a_failed_renewal_is_tried_again():
    """An outage is no answer: neither durable nor lost."""
    answers: list[Any] = [ConnectionError("gone"), True]

    def make_durable() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    ctx = context(ingest_job(), make_durable=make_durable)
    with pytest.raises(ConnectionError):
        _ = ctx.fence
    assert ctx.fence.attempt == 2
    assert not ctx.cancelled


def test_except_exception_does_not_swallow_a_cancel():
    """A task that survives every exception still stops."""
    ctx = context(ingest_job())
    ctx.raise_if_cancelled()
    ctx.stop(Stop.CANCEL, "asked by mia")

    def survive_everything() -> None:
        with contextlib.suppress(Exception):
            ctx.raise_if_cancelled()

    with pytest.raises(Cancelled, match="asked by mia"):
        survive_everything()
    assert ctx.cancelled


def test_a_weaker_reason_never_replaces_a_stronger_one():
    """Lease lost > cancelled > released, in whatever order they come."""
    ctx = context(ingest_job())
    seen = []
    for why in (Stop.RELEASE, Stop.CANCEL, Stop.RELEASE, Stop.LEASE_LOST, Stop.CANCEL):
        ctx.stop(why)
        seen.append(ctx.stopping)
    assert seen == [Stop.RELEASE, Stop.CANCEL, Stop.CANCEL, Stop.LEASE_LOST, Stop.LEASE_LOST]
    assert ctx.stop_reason == "the lease of this job is lost"


def test_a_job_that_was_cancelled_before_it_was_claimed_has_to_stop():
    """The row says so, and nobody needs to tell it again."""
    assert context(ingest_job(cancel_requested_at=MOMENT)).stopping is Stop.CANCEL


def test_sleep_wakes_on_cancel():
    """A job that waits an hour stops at once, because the wait ends and not because it was polled."""
    ctx = context(ingest_job())
    asleep = threading.Event()
    ended: list[str] = []

    def job() -> None:
        asleep.set()
        try:
            ctx.sleep(3600)
        except Cancelled as cancelled:
            ended.append(str(cancelled))

    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    assert asleep.wait(150)
    ctx.stop(Stop.CANCEL)
    thread.join(150)
    assert ended == ["this job was cancelled"]


def test_what_a_stop_wakes_finds_that_it_has_to_stop():
    """It looks as soon as it is woken: a sleep that returned all the same let the job go on, and complete."""
    ctx = context(ingest_job())
    seen: list[Stop | None] = []

    class Woken:
        def release(self) -> None:
            seen.append(ctx.stopping)

    ctx._running = Woken()
    ctx.stop(Stop.CANCEL, "enough")
    assert seen == [Stop.CANCEL]


def test_sleep_sleeps():
    """Undisturbed it waits its time, and no longer; nothing and less than nothing are no time."""
    ctx = context(ingest_job())
    began = time.monotonic()
    ctx.sleep(0.05)
    assert time.monotonic() - began >= 0.05
    ctx.sleep(0)
    ctx.sleep(-1)


def test_sleep_does_not_block_an_event_loop():
    """In async code it says what to use instead."""

    async def job() -> None:
        context(ingest_job()).sleep(0)

    with pytest.raises(RuntimeError, match=r"asyncio\.sleep"):
        asyncio.run(job())


def test_a_sleeping_job_is_not_stalled():
    """The stall watchdog counts from the end of the wait; a job that never beat stays unarmed."""
    clock = Clock()
    ctx = context(ingest_job(), clock=clock)
    ctx.stop(Stop.CANCEL)
    with pytest.raises(Cancelled):
        ctx.sleep(600)
    assert ctx.last_beat is None
    ctx.progress()
    with pytest.raises(Cancelled):
        ctx.sleep(600)
    assert ctx.last_beat == 700.0
    ctx.progress()
    assert ctx.last_beat == 700.0


def test_the_first_beat_arms_and_every_beat_counts():
    """Also those that are not written."""
    clock = Clock()
    ctx = context(ingest_job(), clock=clock)
    assert ctx.last_beat is None
    ctx.progress(0.1)
    assert ctx.last_beat == 100.0
    clock.now = 100.2
    ctx.progress()
    assert ctx.last_beat == 100.2


def test_progress_is_written_once_a_second_and_the_last_one_wins():
    """However often it is reported; and what came last goes with the job's end."""
    ctx = context(ingest_job())
    taken = []
    for step in range(40):
        ctx.progress(step / 40, page=step)
        taken.append(ctx.take_progress(now=10 + step / 10))
    written = [json.loads(text)["page"] for text in taken if text is not None]
    assert written == [0, 10, 20, 30]
    assert json.loads(ctx.take_progress(now=13.9, final=True) or "") == {"fraction": 0.975, "page": 39}
    assert ctx.take_progress(now=99, final=True) is None


def test_a_bare_beat_keeps_what_was_said():
    """It writes nothing, and takes nothing back."""
    ctx = context(ingest_job())
    ctx.progress(0.5, "half")
    ctx.progress()
    assert json.loads(ctx.take_progress(now=0) or "") == {"fraction": 0.5, "message": "half"}


def test_the_guard_is_told_of_news_once():
    """Not of each beat, only when there was nothing to take before."""
    told: list[int] = []
    ctx = context(ingest_job(), on_progress=lambda: told.append(1))
    ctx.progress()
    assert told == []
    ctx.progress(0.1)
    ctx.progress(0.2)
    assert told == [1]
    ctx.take_progress(now=0)
    ctx.progress(0.3)
    assert told == [1, 1]


@pytest.mark.parametrize(
    ("positional", "named", "says"),
    [
        ((1.5,), {}, "a number from 0 to 1"),
        ((-0.1,), {}, "a number from 0 to 1"),
        ((float("nan"),), {}, "a number from 0 to 1"),
        ((True,), {}, "a number from 0 to 1"),
        (("half",), {}, "a number from 0 to 1"),
        (({"page": 1},), {}, "a number from 0 to 1"),
        ((0.5, b"half"), {}, "the message must be a string"),
        ((0.5, "a\x00b"), {}, "NUL"),
        ((), {"found": {1, 2}}, "set is not JSON"),
        ((), {"text": "a" * 70_000}, "larger than"),
    ],
)
def test_progress_is_checked(positional: tuple[Any, ...], named: dict[str, Any], says: str):
    """What could not be written is refused where it is reported, and is no beat."""
    ctx = context(ingest_job())
    with pytest.raises(PayloadError) as caught:
        ctx.progress(*positional, **named)
    assert says in str(caught.value)
    assert ctx.last_beat is None
    assert ctx.take_progress(now=0, final=True) is None


def test_beats_from_many_threads():
    """The last thing written is one whole report, the one that came last."""
    ctx = context(ingest_job())
    start = threading.Barrier(8)

    def beat(number: int) -> None:
        start.wait()
        for step in range(200):
            ctx.progress(step / 200, thread=number, step=step)

    threads = [threading.Thread(target=beat, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    taken = [ctx.take_progress(now=time.monotonic()) for _ in range(1000)]
    for thread in threads:
        thread.join()
    taken.append(ctx.take_progress(now=0, final=True))
    written = [json.loads(text) for text in taken if text is not None]
    assert all(report["fraction"] == report["step"] / 200 for report in written)
    assert written[-1]["step"] == 199


def test_what_a_left_behind_thread_reports_is_nobodys():
    """After the function's end no beat is counted; what it reported before is still to be written."""
    ctx = context(ingest_job(), clock=Clock())
    ctx.progress(1.0)
    ctx.close()
    beat = ctx.last_beat
    ctx.progress(0.1, "late")
    assert ctx.last_beat is beat
    assert json.loads(ctx.take_progress(now=0, final=True) or "") == {"fraction": 1.0}


def test_what_is_being_reported_as_the_function_ends_is_the_jobs_last_word():
    """A context is closed when whoever was in the midst of a report has made it: none is half made."""
    in_the_midst, go_on = threading.Event(), threading.Event()

    def clock() -> float:
        in_the_midst.set()
        assert go_on.wait(150)
        return 1.0

    ctx = context(ingest_job(), clock=clock)
    said = threading.Thread(target=ctx.progress, args=[0.5])
    said.start()
    assert in_the_midst.wait(150)
    closed = threading.Thread(target=ctx.close)
    closed.start()
    closed.join(0.1)
    assert closed.is_alive()
    go_on.set()
    closed.join(150)
    assert ctx.take_progress(now=2.0, final=True) == '{"fraction":0.5}'
    said.join(150)


def test_an_interrupt_is_called_by_a_stop_and_not_after():
    """From whatever thread stops; one that comes late is called at once."""
    ctx = context(ingest_job())
    called: list[str] = []
    with ctx.interrupted_by(lambda: called.append("first")):
        threading.Thread(target=ctx.stop, args=(Stop.RELEASE,)).run()
        assert called == ["first"]
        with ctx.interrupted_by(lambda: called.append("late")):
            assert called == ["first", "late"]
    ctx.stop(Stop.CANCEL)
    assert called == ["first", "late"]


def test_the_logger_carries_the_job(caplog: pytest.LogCaptureFixture):
    """Each record has the job's fields, beside those of the call."""
    with caplog.at_level(logging.INFO, logger="queue_workflows.job"):
        context(ingest_job()).logger.info("fetched %s", "page", extra={"page": 3})
        context(node_job()).logger.info("planned")
    first, second = caplog.records
    assert (first.getMessage(), first.page, first.job_id, first.attempt) == ("fetched page", 3, 7, 2)
    assert (first.task_name, first.queue, first.worker_id) == ("task", "fetch", "host:fetch:1")
    assert (second.node_id, second.run_id, hasattr(second, "task_name")) == ("plan", node_job().run_id, False)


def test_everything_is_injected():
    """Two contexts in one process know nothing of each other."""
    first, second = context(ingest_job()), context(ingest_job(id=8))
    first.stop(Stop.CANCEL)
    first.progress(0.5)
    assert not second.cancelled
    assert second.last_beat is None
    assert isinstance(second, JobContext)
