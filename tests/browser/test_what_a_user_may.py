"""Rights in a browser: a viewer changes nothing, a stranger sees nothing, two operators do a thing once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.browser.chromium import Page, Tabs, expect
from support.rows.every_state import EveryState, put_every_state
from support.rows.jobs import Jobs, ending
from support.servers.browsed_page import CONFIRM, OPERATOR, VIEWER, BrowsedPage, browsed_page

from queue_workflows.testing.servers import QwfServer
from queue_workflows.web.acts.all import ACTS
from queue_workflows.web.pages.all import ADDRESSES

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROWS = "SELECT to_jsonb(t) FROM {} t ORDER BY to_jsonb(t)::text"
TABLES = ("ingest_jobs", "workflow_node_jobs", "workflow_runs", "worker_control", "schedules", "audit_log")
OFFERS = "main form[action*='/act'] button, main input[type=checkbox], main button[name=act]"
_POST = """
async ([path, fields]) => {
  const answer = await fetch(path, {method: "POST", body: new URLSearchParams(fields)});
  return [answer.status, await answer.text()];
}
"""
_GET = "async (path) => { const answer = await fetch(path); return [answer.status, await answer.text()]; }"


@pytest.fixture(scope="module")
def full(qwf_server: QwfServer) -> Iterator[tuple[BrowsedPage, EveryState, psycopg.Connection]]:
    """The page with something in every state."""
    with qwf_server.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        there = put_every_state(connection)
        with browsed_page(dsn) as page:
            yield page, there, connection


def everything(connection: psycopg.Connection) -> list[list[Any]]:
    """All rows that somebody might want to change."""
    return [connection.execute(ROWS.format(table)).fetchall() for table in TABLES]


def token_of(tab: Page) -> str:
    """The mark of a preview, which lets its user act."""
    token = tab.locator("input[name=seen]").get_attribute("value")
    assert token
    return token


def test_a_viewer_is_offered_nothing(
    full: tuple[BrowsedPage, EveryState, psycopg.Connection], tabs: Tabs
) -> None:
    """Of every page it sees everything but what would change something.

    Scripts make no offers, so they are switched off; without them too a page has its heading and its menu,
    and complains of nothing.
    """
    page, there, _connection = full
    tab = tabs.open(VIEWER, java_script_enabled=False)
    for address in ADDRESSES:
        answer = tab.goto(page.url + there.place(address.path))
        assert answer is not None
        assert answer.status == 200, address.path
        assert tab.locator(OFFERS).count() == 0, address.path
        expect(tab.locator("main h1")).to_be_visible()
        expect(tab.locator("nav.pages a[aria-current=page]:visible")).to_have_count(1)
    assert tabs.complaints == []


def test_a_viewer_can_do_nothing_by_hand(
    full: tuple[BrowsedPage, EveryState, psycopg.Connection], tabs: Tabs
) -> None:
    """No act is shown to it, none is done, not with an operator's own mark either; rows are as before."""
    page, there, connection = full
    job = there.jobs["queued"]
    operators = tabs.open(OPERATOR)
    operators.goto(f"{page.url}/act/preview?act=job.cancel&target={job}")
    stolen = token_of(operators)
    before = everything(connection)
    tab = tabs.open(VIEWER)
    tab.goto(f"{page.url}/jobs")
    for act in ACTS:
        words = {"act": act, "target": job}
        assert tab.evaluate(_GET, f"/act/preview?act={act}&target={job}")[0] in (400, 403)
        assert tab.evaluate(_POST, ["/act/preview", words])[0] in (400, 403)
        assert tab.evaluate(_POST, ["/act", words | {"seen": stolen, "reason": "x"}])[0] in (400, 403)
    status, said = tab.evaluate(_POST, ["/act", {"act": "job.cancel", "target": job, "seen": stolen}])
    assert (status, "You may not do this" in said) == (403, True)
    assert everything(connection) == before


@pytest.mark.parametrize(
    ("user", "status", "said"), [(None, 401, "You are not signed in"), ("eve", 403, "You may not see this")]
)
def test_a_stranger_sees_nothing(
    full: tuple[BrowsedPage, EveryState, psycopg.Connection],
    tabs: Tabs,
    user: str | None,
    status: int,
    said: str,
) -> None:
    """Whoever is not known, or has no right to look, gets no page, no JSON and no stream."""
    page, there, _connection = full
    tab = tabs.open(user)
    tab.goto(f"{page.url}/healthz")
    for address in ADDRESSES:
        path = there.place(address.path)
        live = [] if address.is_alone else [f"/live?page={path}"]
        for asked in (path, f"{path}.json", *live):
            got, text = tab.evaluate(_GET, asked if asked != "/.json" else "/overview.json")
            assert (got, said in text) == (status, True), asked
            assert "example.org" not in text


def test_two_operators_retry_the_same_jobs(page: BrowsedPage, ingest: Jobs, tabs: Tabs) -> None:
    """The second is told that somebody was there first, and no job is retried twice."""
    jobs = ingest.enqueue(3, max_attempts=1)
    for job in ingest.claim(limit=3):
        ingest.repository.end(ending(job, "failed", error={"kind": "exit"}, counts=True))
    first, second = tabs.open(OPERATOR), tabs.open(OPERATOR)
    for tab in (first, second):
        tab.goto(f"{page.url}/jobs?q=status:failed")
        tab.get_by_role("button", name="Retry all that match").click()
        expect(tab.get_by_role("heading", name="Retry 3 jobs")).to_be_visible()
        tab.get_by_label("Reason").fill("the site is back")
    first.locator(CONFIRM).click()
    expect(first.get_by_text("Done.")).to_be_visible()
    retried = [ingest.seen(job, "status", "generation") for job in jobs]
    second.locator(CONFIRM).click()
    expect(second.get_by_text("another operator may have been here first")).to_be_visible()
    assert [ingest.seen(job, "status", "generation") for job in jobs] == retried
    assert {status for status, _generation in retried} == {"queued"}
