"""Limits that adapt: what lowers them and by how much, how they grow back, and what an operator may say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.limited_jobs import LimitedJobs
from support.stages.declaring import EMPTY_LIMITS, cap, declare, rule

from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.executor import execute
from queue_workflows.engine.outcomes import Outcome, PutBack, RetryAfter
from queue_workflows.repositories import LimitRepository, RateRepository
from queue_workflows.repositories.limits.adapted import AdaptedRepository
from queue_workflows.repositories.limits.overview import LimitLineRepository
from queue_workflows.settings.declared_limits import Adaptive, Rate

FOREVER = 86_400


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit; nothing is declared or set."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(EMPTY_LIMITS)
        yield connection


@pytest.fixture
def jobs(conn: psycopg.Connection) -> Iterator[LimitedJobs]:
    made = LimitedJobs(conn)
    yield made
    made.windows.calls.close()


class Response:
    def __init__(self, status: int) -> None:
        self.status_code = status


class HTTPStatusError(Exception):
    """As HTTP clients raise it, with the response."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status}")
        self.response = Response(status)


def raising(exc: BaseException, around: Any = None) -> Work:
    """A function that is refused; `around` is a window of its ctx in which that happens."""

    def call(_job: Any, ctx: Any) -> None:
        if around is None:
            raise exc
        with ctx.limit(*around):
            raise exc

    return Work("the task", call, is_async=False)


def grown(conn: psycopg.Connection, seconds: float) -> None:
    """As if so many seconds had passed."""
    conn.execute("UPDATE adapted_limits SET lowered_at = lowered_at - make_interval(secs => %s)", [seconds])


def ended(jobs: LimitedJobs, work: Work, **job: Any) -> Outcome:
    ctx = jobs.ctx(**job)
    return execute(ctx.job, work, ctx)


@pytest.mark.parametrize("refusal", [RetryAfter(1), HTTPStatusError(429), HTTPStatusError(503)], ids=str)
def test_a_refusal_lowers_the_key_of_the_job(
    conn: psycopg.Connection, jobs: LimitedJobs, refusal: Exception
) -> None:
    """To a share of what was held of it, at once and for everybody; other keys keep their caps."""
    declare(conn, a=Adaptive(16, floor=2, down=0.5, doubles_s=FOREVER), b=4)
    hold(conn, "a", 10)
    ended(jobs, raising(refusal), limit_key="a")
    assert (cap(conn, "a"), cap(conn, "b")) == (5, 4)


def hold(conn: psycopg.Connection, key: str, count: int) -> None:
    """So many jobs have a slot, for a moment that a test is in."""
    conn.execute("DELETE FROM limit_slots WHERE limit_key = %s", [key])
    conn.execute(
        "INSERT INTO limit_slots SELECT %s, n, 'ingest', n, 1, 'w', now(), now() + interval '1 hour'"
        " FROM generate_series(0, %s - 1) AS n",
        [key, count],
    )


@pytest.mark.parametrize("other", [ValueError("429"), HTTPStatusError(500), PutBack(1)], ids=repr)
def test_what_is_no_refusal_lowers_nothing(
    conn: psycopg.Connection, jobs: LimitedJobs, other: Exception
) -> None:
    """An exception of another kind, a server's other troubles, and the engine's own waits."""
    declare(conn, a=Adaptive(16, floor=2))
    ended(jobs, raising(other), limit_key="a")
    assert cap(conn, "a") == 16


def test_a_window_that_the_refusal_leaves_is_lowered(conn: psycopg.Connection, jobs: LimitedJobs) -> None:
    """And not one that the job had before, nor its own key where that does not adapt."""
    declare(conn, a=Adaptive(9, floor=1, down=0.5, doubles_s=FOREVER), b=Adaptive(8, floor=1), own=3)
    ctx = jobs.ctx(limit_key="own")
    with ctx.limit("b"):
        pass
    execute(ctx.job, raising(HTTPStatusError(429), around=["a"]), ctx)
    assert (cap(conn, "a"), cap(conn, "b"), cap(conn, "own")) == (1, 8, 3)


def test_the_rate_that_was_taken_last_is_lowered(conn: psycopg.Connection, jobs: LimitedJobs) -> None:
    """Or the one that the job names, which is blocked as well; the burst falls with it."""
    slow = Adaptive(Rate(40, burst=20), floor=4, down=0.5, doubles_s=FOREVER)
    declare(conn, first=slow, last=slow, named=slow)
    for how in (HTTPStatusError(429), RetryAfter(0, penalize="named")):
        ctx = jobs.ctx()
        for key in ("named", "first", "last"):
            ctx.rate(key)
        execute(ctx.job, raising(how), ctx)
    rules = {key: rule(conn, key) for key in ("first", "last", "named")}
    assert rules == {
        "first": (40, 20),
        "last": (pytest.approx(20, rel=0.01), pytest.approx(10, rel=0.01)),
        "named": (pytest.approx(20, rel=0.01), pytest.approx(10, rel=0.01)),
    }


def test_it_never_falls_below_its_floor_and_grows_back_to_what_is_declared(
    conn: psycopg.Connection,
) -> None:
    """Doubling with time, and nobody has to write that."""
    declare(conn, a=Adaptive(16, floor=3, down=0.5, doubles_s=60), r=Adaptive(Rate(8), floor=2, down=0.1))
    adapted = AdaptedRepository(conn)
    hold(conn, "a", 16)
    for _ in range(5):
        grown(conn, 1)
        adapted.lower(["a", "r"], age_s=0)
    conn.execute("DELETE FROM limit_slots")
    assert (cap(conn, "a"), rule(conn, "r")) == (3, (pytest.approx(2, rel=0.05), pytest.approx(2, rel=0.05)))
    grown(conn, 60)
    assert (cap(conn, "a"), rule(conn, "r")) == (6, (pytest.approx(4, rel=0.05), pytest.approx(4, rel=0.05)))
    grown(conn, 600)
    assert (cap(conn, "a"), rule(conn, "r")) == (16, (8, 8))


def test_refusals_of_one_moment_lower_once(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """What had begun before the last lowering says nothing about what was lowered, however many say it."""
    declare(conn, a=Adaptive(64, floor=1, down=0.5, doubles_s=FOREVER))
    hold(conn, "a", 64)
    barrier = threading.Barrier(4)

    def refused() -> None:
        with psycopg.connect(qwf_dsn, autocommit=True) as own:
            barrier.wait(60)
            for _ in range(10):
                AdaptedRepository(own).lower(["a"], age_s=600)

    threads = [threading.Thread(target=refused) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert LimitLineRepository(conn).of("a").max_slots == 32
    (one,) = AdaptedRepository(conn).lower(["a", "b"], age_s=0)
    assert (one.key, one.kind, one.value) == ("a", "cap", pytest.approx(16, rel=0.1))


def test_each_key_of_a_pattern_adapts_by_itself(conn: psycopg.Connection) -> None:
    """One slow host slows no other."""
    declare(conn, **{"host:*": Adaptive(8, floor=1, down=0.5, doubles_s=FOREVER)})
    hold(conn, "host:a", 8)
    AdaptedRepository(conn).lower(["host:a"], age_s=0)
    conn.execute("DELETE FROM limit_slots")
    assert (cap(conn, "host:a"), cap(conn, "host:b")) == (4, 8)


def test_an_operators_word_ends_it(conn: psycopg.Connection) -> None:
    """What has adapted is forgotten, refusals lower it no more; it adapts again once that is taken back."""
    declare(conn, a=Adaptive(16, floor=1, down=0.5, doubles_s=FOREVER), r=Adaptive(Rate(8), floor=2))
    adapted, limits, rates = AdaptedRepository(conn), LimitRepository(conn), RateRepository(conn)
    adapted.lower(["a", "r"], age_s=0)
    limits.set("a", 9, actor="ann")
    rates.set("r", 5, actor="ann")
    assert adapted.lower(["a", "r"], age_s=0) == []
    assert (cap(conn, "a"), rule(conn, "r")) == (9, (5, 5))
    limits.clear("a", actor="ann")
    rates.clear("r", actor="ann")
    assert (cap(conn, "a"), rule(conn, "r")) == (16, (8, 8))
    assert [one.kind for one in adapted.lower(["a", "r"], age_s=0)] == ["cap", "rate"]


def test_a_limit_that_is_declared_no_more_holds_nothing_down(conn: psycopg.Connection) -> None:
    """Nor one that does not adapt any more."""
    declare(conn, a=Adaptive(16, floor=1), b=Adaptive(16, floor=1))
    AdaptedRepository(conn).lower(["a", "b"], age_s=0)
    declare(conn, b=16)
    assert (cap(conn, "a"), cap(conn, "b")) == (None, 16)


def test_the_list_and_the_explanation_say_that_it_adapts(conn: psycopg.Connection) -> None:
    """From what it was lowered, and that it grows back."""
    declare(conn, a=Adaptive(16, floor=2, doubles_s=FOREVER))
    hold(conn, "a", 4)
    AdaptedRepository(conn).lower(["a"], age_s=0)
    line = LimitLineRepository(conn).of("a")
    assert (line.max_slots, line.adapts_from, line.said_of_it) == (2, 16, "adapts, from 16")
    assert line.lowered_at is not None


def test_keys_that_do_not_adapt_are_not_asked_about_each_time(
    conn: psycopg.Connection, jobs: LimitedJobs
) -> None:
    """A worker with jobs that are put back again and again asks once in some seconds."""
    declare(conn, a=4)
    for _ in range(5):
        ended(jobs, raising(RetryAfter(1)), limit_key="a")
    assert jobs.asked == 1
