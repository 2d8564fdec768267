"""Workers, queues, limits, rates and schedules that are changed from the page."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from support.rows.jobs import Jobs
from support.servers.web_page import OperatorsPage, audited, everything, text_of

from queue_workflows.repositories import HeartbeatRepository, ScheduleRepository
from queue_workflows.repositories.limits.caps import LimitRepository
from queue_workflows.repositories.limits.rates import RateRepository
from queue_workflows.repositories.workers.control import WorkerControlRepository


@pytest.fixture(autouse=True)
def nothing_set(conn: psycopg.Connection) -> None:
    """No limit, rate or schedule of an earlier test."""
    for table in ("concurrency_limits", "rate_limits", "schedules"):
        conn.execute(f"DELETE FROM {table}")


def wishes(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    """What is asked of workers, and whether it ends by itself."""
    return [
        (one.host_label, one.queue, one.desired, one.actor, one.expires_at is not None)
        for one in WorkerControlRepository(conn).blocking()
    ]


@pytest.mark.parametrize(
    ("act", "target", "place"),
    [
        ("workers.pause", "attic fetch", ("attic", "fetch", "pause")),
        ("workers.off", "attic *", ("attic", "*", "off")),
        ("queue.pause", "fetch", ("*", "fetch", "pause")),
    ],
)
def test_workers_are_asked_for_something(
    page: OperatorsPage,
    conn: psycopg.Connection,
    act: str,
    target: str,
    place: tuple[str, str, str],
) -> None:
    """The preview foretells it and writes nothing; then the wish is there, on the user's account."""
    before = everything(conn)
    seen = page.preview(act, target)
    assert "no workers would obey" in text_of(seen)
    assert everything(conn) == before
    assert page.confirm(seen, reason="a new disk").status_code == 200
    host, queue, desired = place
    assert wishes(conn) == [(*place, "ada", False)]
    assert audited(conn) == [("ada", f"workers.{desired}", f"{host} {queue}", "a new disk")]


def test_a_worker_is_asked_with_all_of_its_host_and_queue(
    page: OperatorsPage, conn: psycopg.Connection
) -> None:
    """There is no wish for one worker alone, and the preview says whom it would be for."""
    worker = "attic:fetch:0a"
    beats = HeartbeatRepository(conn)
    for name in (worker, "attic:fetch:0b"):
        beats.beat(name, host_label="attic", queue="fetch", pid=7, state="idle")
    shown = page.get(f"/workers/{worker}").text
    assert f'<input type="hidden" name="target" value="{worker}">' in shown
    seen = page.preview("workers.pause", worker, worker=worker)
    assert f"it is for every worker of (attic, fetch), not for {worker} alone" in text_of(seen)
    assert "2 workers would obey" in text_of(seen)
    assert page.confirm(seen, reason="a new disk").status_code == 200
    assert wishes(conn) == [("attic", "fetch", "pause", "ada", False)]
    assert page.act("workers.on", worker).status_code == 200
    assert wishes(conn) == []


def test_a_wish_ends_by_itself_if_that_was_said(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """A span is taken as commands take it; one that is none stands at its field."""
    wrong = page.preview("queue.pause", "fetch", **{"for": "soon"})
    assert "is no length of time" in text_of(wrong)
    assert 'name="seen"' not in wrong.text
    assert page.act("queue.pause", "fetch", **{"for": "2h"}).status_code == 200
    assert wishes(conn) == [("*", "fetch", "pause", "ada", True)]


def test_a_wish_is_taken_back(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """What still blocks is said; a second time says that nothing was asked."""
    page.act("queue.pause", "fetch")
    page.act("workers.off", "attic fetch")
    told = text_of(page.act("queue.resume", "fetch"))
    assert "(*, fetch) is on" in told
    assert "(attic, fetch) still blocks: off by ada" in told
    assert "nothing was asked of it" in text_of(page.act("queue.resume", "fetch"))
    assert "(attic, fetch) is on" in text_of(page.act("workers.on", "attic fetch"))
    assert wishes(conn) == []


@pytest.mark.parametrize("target", ["attic", "attic fetch gpu", "at'tic fetch", "attic fe tch", ""])
def test_no_place_is_refused(page: OperatorsPage, target: str) -> None:
    """A wish is of a host and a queue."""
    assert page.preview("workers.pause", target).status_code == 400


def test_a_cap_is_set_and_taken_back(page: OperatorsPage, conn: psycopg.Connection, ingest: Jobs) -> None:
    """What it would do is said first; nothing is set without a number."""
    ingest.enqueue(3, limit_key="host:example.org")
    before = everything(conn)
    empty = page.preview("limits.set", "host:example.org")
    assert 'name="seen"' not in empty.text
    seen = page.preview("limits.set", "host:example.org", cap="2")
    assert "Set the cap of host:example.org to 2" in text_of(seen)
    assert "3 wait, 2 would find room" in text_of(seen)
    assert everything(conn) == before
    assert "at most 2 at once, was no limit of its own" in text_of(page.confirm(seen, cap="2"))
    limit = LimitRepository(conn).fetch("host:example.org")
    assert limit is not None
    assert (limit.max_slots, limit.updated_by) == (2, "ada")
    assert "no limit" in text_of(page.act("limits.clear", "host:example.org"))
    assert LimitRepository(conn).fetch("host:example.org") is None
    assert [actor for actor, *_ in audited(conn)] == ["ada", "ada"]


@pytest.mark.parametrize("cap", ["-1", "many", "1.5", "99999999999", "\N{SUPERSCRIPT TWO}"])
def test_what_is_no_cap_stands_at_its_field(page: OperatorsPage, cap: str) -> None:
    """And is kept as it was typed."""
    seen = page.preview("limits.set", "host:example.org", cap=cap)
    assert (seen.status_code, 'aria-invalid="true"' in seen.text, f'value="{cap}"' in seen.text) == (
        200,
        True,
        True,
    )


def test_a_rate_is_set_and_taken_back(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """As commands write rates."""
    assert "is no rate" in text_of(page.preview("rates.set", "host:example.org", rate="fast"))
    told = text_of(page.act("rates.set", "host:example.org", rate="5/s", burst="10"))
    assert "5/s, 10 at once, was no rate of its own" in told
    rate = RateRepository(conn).fetch("host:example.org")
    assert rate is not None
    assert (rate.tokens_per_s, rate.burst, rate.updated_by) == (5.0, 10.0, "ada")
    assert page.act("rates.clear", "host:example.org").status_code == 200
    assert RateRepository(conn).fetch("host:example.org") is None


class TestSchedules:
    @pytest.fixture(autouse=True)
    def nightly(self, conn: psycopg.Connection) -> None:
        """A schedule."""
        ScheduleRepository(conn).upsert("nightly", cron="0 3 * * *", task_name="tidy", queue="fetch")

    def test_one_is_triggered(self, page: OperatorsPage, conn: psycopg.Connection) -> None:
        """Its job is enqueued now, once."""
        before = everything(conn)
        seen = page.preview("schedule.trigger", "nightly")
        assert everything(conn) == before
        assert "tidy on fetch" in text_of(seen)
        page.confirm(seen)
        page.confirm(seen)
        assert conn.execute("SELECT task_name, queue, schedule_name FROM ingest_jobs").fetchall() == [
            ("tidy", "fetch", "nightly")
        ]
        assert [row[:3] for row in audited(conn)] == [("ada", "schedule.trigger", "nightly")]

    def test_one_is_switched(self, page: OperatorsPage, conn: psycopg.Connection) -> None:
        """Off and on; of two operators the second is told that it was so already."""
        bobs = page.as_user("bob")
        hers, his = page.preview("schedule.pause", "nightly"), bobs.preview("schedule.pause", "nightly")
        assert "is paused" in text_of(page.confirm(hers))
        assert "There is nothing to do" in text_of(bobs.confirm(his))
        assert "is on" in text_of(bobs.act("schedule.resume", "nightly"))
        assert [row[:2] for row in audited(conn)] == [("ada", "schedule.pause"), ("bob", "schedule.resume")]

    def test_picked_ones_are_switched(self, page: OperatorsPage, conn: psycopg.Connection) -> None:
        """Rows have buttons of their own, so their boxes belong to the form below them."""
        ScheduleRepository(conn).upsert("hourly", cron="0 * * * *", task_name="tidy", queue="fetch")
        shown = page.get("/schedules").text
        boxes = re.findall(r'name="target" value="(\w+)" form="picked"', shown)
        assert boxes == ["hourly", "nightly"]
        assert '<form id="picked" action="/act/preview" method="get">' in shown
        seen = page.preview("schedule.pause", *boxes)
        assert "2 schedules" in text_of(seen)
        page.confirm(seen, reason="the disk is full")
        assert [row[1:] for row in audited(conn)] == [
            ("schedule.pause", name, "the disk is full") for name in boxes
        ]

    def test_one_that_is_not_there(self, page: OperatorsPage) -> None:
        """Says so."""
        assert page.preview("schedule.trigger", "weekly").status_code == 404
