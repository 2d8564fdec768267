"""The page as a user of the database that may only read: previews work, and no act gets through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.rows.jobs import Jobs
from support.rows.roles import Roles
from support.rows.runs import start
from support.servers.web_page import OperatorsPage, everything, served_page, text_of
from test_acts_on_runs import ASKING, FILM

from queue_workflows.repositories import ScheduleRepository


@pytest.fixture
def hands(roles: Roles) -> Iterator[psycopg.Connection[Any]]:
    """A connection that may write."""
    with psycopg.connect(roles.dsn("migrator"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def page(roles: Roles, hands: psycopg.Connection[Any]) -> Iterator[OperatorsPage]:
    """The page, which reads and acts as `qwf_reader`."""
    with served_page(roles.dsn("reader")) as page:
        yield page


def test_a_reader_sees_what_an_act_would_be_and_does_none(
    page: OperatorsPage, hands: psycopg.Connection[Any]
) -> None:
    """Each preview can be read with the rights of a dashboard; each act is refused by the server itself."""
    (job,) = Jobs("ingest", hands).enqueue()
    run, asks = start(hands, FILM), start(hands, ASKING)
    ScheduleRepository(hands).upsert("nightly", cron="0 3 * * *", task_name="tidy", queue="fetch")
    hands.execute(
        "INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload, poisoned_at)"
        " VALUES (%s, 0, 0, 'cancel', '{}', now())",
        [run],
    )
    words = {"answer.ok": "yes", "answer.shots": "3", "answer.note": "x", "answer.mood": "calm"}
    before = everything(hands)
    answers = [
        page.act("job.cancel", f"ingest:{job}"),
        page.act("job.cancel", where="queue:fetch"),
        page.act("run.cancel", str(run)),
        page.act("run.cancel", where="workflow:test"),
        page.act("run.unpoison", str(run)),
        page.act("run.answer", f"{asks} approve", **words),
        page.act("workers.off", "attic fetch"),
        page.act("workers.on", "attic fetch"),
        page.act("queue.pause", "fetch", **{"for": "2h"}),
        page.act("limits.set", "host:example.org", cap="2"),
        page.act("rates.set", "host:example.org", rate="5/s"),
        page.act("schedule.trigger", "nightly"),
        page.act("schedule.pause", "nightly"),
    ]
    assert [answer.status_code for answer in answers] == [500] * len(answers)
    assert ["permission denied for table" in text_of(answer) for answer in answers] == [True] * len(answers)
    assert everything(hands) == before


def test_a_user_that_may_be_a_reader_reads_as_one(
    roles: Roles, hands: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else it may do: what a page reads it reads with a dashboard's rights, in each look anew."""
    monkeypatch.setattr("queue_workflows.web.database.readers.READER_ROLE", roles.name("reader"))
    with served_page(roles.admin_dsn) as page:
        assert page.get("/jobs").status_code == 200
        for _ in range(2):
            found = page.app.readers._look(lambda reader: reader.execute("SELECT current_user").fetchone())
            assert found == (roles.name("reader"),)
