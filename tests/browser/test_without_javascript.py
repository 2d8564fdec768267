"""The page with scripts switched off: what there is to do can be done.

That every page can be read without them is seen where a viewer looks at each.
"""

from __future__ import annotations

import psycopg
import pytest
from support.browser.chromium import Page, Tabs, expect
from support.rows.jobs import Jobs, ending
from support.servers.browsed_page import CONFIRM, OPERATOR, BrowsedPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def tab(tabs: Tabs) -> Page:
    """The operator's tab, in which no script runs."""
    return tabs.open(OPERATOR, java_script_enabled=False)


def test_a_job_is_cancelled_in_two_steps(
    page: BrowsedPage, ingest: Jobs, conn: psycopg.Connection, tab: Page
) -> None:
    """A button shows what it would be, the next one does it, on the account of the user that pressed it."""
    (job,) = ingest.enqueue()
    tab.goto(f"{page.url}/jobs/ingest:{job}")
    tab.get_by_role("button", name="Cancel", exact=True).click()
    expect(tab.get_by_role("heading", name=f"Cancel ingest:{job}")).to_be_visible()
    assert ingest.seen(job, "status") == ("queued",)
    tab.get_by_label("Reason").fill("not wanted any more")
    tab.locator(CONFIRM).click()
    expect(tab.get_by_text("Done.")).to_be_visible()
    assert ingest.seen(job, "status") == ("cancelled",)
    assert conn.execute("SELECT actor, action, subject_id, reason FROM audit_log").fetchall() == [
        (OPERATOR, "job.cancel", str(job), "not wanted any more")
    ]
    tab.get_by_role("link", name="Back").click()
    expect(tab.locator("main .lead")).to_contain_text("cancelled")


def test_a_queue_is_paused_and_a_cap_is_set(page: BrowsedPage, ingest: Jobs, tab: Page) -> None:
    """What may be left out is left empty, or says for how long: what was looked at is what is done."""
    ingest.enqueue()
    tab.goto(f"{page.url}/queues")
    tab.get_by_role("button", name="Pause", exact=True).click()
    tab.get_by_label("Reason").fill("a new disk")
    tab.locator(CONFIRM).click()
    expect(tab.get_by_text("Done.")).to_be_visible()
    tab.goto(f"{page.url}/workers")
    tab.get_by_role("button", name="Pause all").click()
    tab.get_by_label("For how long").fill("2h")
    tab.locator(CONFIRM).click()
    expect(tab.get_by_text("Done.")).to_be_visible()
    tab.goto(f"{page.url}/limits")
    tab.get_by_placeholder("host:example.org").fill("host:a.example")
    tab.get_by_role("button", name="Set a cap").click()
    tab.get_by_label("At most so many at once").fill("2")
    tab.get_by_role("button", name="Show what it would be").click()
    tab.locator(CONFIRM).click()
    expect(tab.get_by_role("cell", name="host:a.example", exact=True)).to_be_visible()
    tab.goto(f"{page.url}/limits/host:a.example")
    expect(tab.get_by_text("0 of 2 slots taken")).to_be_visible()


def test_picked_rows_are_retried_for_a_reason(page: BrowsedPage, ingest: Jobs, tab: Page) -> None:
    """Of the rows of a list those that were picked are acted on, and the others stay as they are.

    Until all that match are meant, whether they were looked at or not.
    """
    jobs = ingest.enqueue(3, max_attempts=1)
    for job in ingest.claim(limit=3):
        ingest.repository.end(ending(job, "failed", error={"kind": "exit"}, counts=True))
    tab.goto(f"{page.url}/jobs?q=status:failed")
    for job in jobs[:2]:
        tab.get_by_role("checkbox", name=f"Pick ingest:{job}").check()
    tab.locator(".bulk").get_by_role("button", name="Retry").click()
    expect(tab.get_by_role("heading", name="Retry 2 jobs")).to_be_visible()
    tab.get_by_label("Reason").fill("the site is back")
    tab.locator(CONFIRM).click()
    expect(tab.get_by_text("Done.")).to_be_visible()
    assert [ingest.seen(job, "status") for job in jobs] == [("queued",), ("queued",), ("failed",)]
    tab.goto(f"{page.url}/jobs?q=task:task&limit=1")
    tab.get_by_role("button", name="Cancel all that match").click()
    expect(tab.get_by_role("heading", name="Cancel 2 jobs")).to_be_visible()
    tab.get_by_label("Reason").fill("not wanted any more")
    tab.locator(CONFIRM).click()
    expect(tab.get_by_text("Done.")).to_be_visible()
    assert [ingest.seen(job, "status") for job in jobs] == [("cancelled",), ("cancelled",), ("failed",)]
