"""Pages that keep up with the database, and leave their reader alone while they do."""

from __future__ import annotations

import psycopg
import pytest
from support.browser.chromium import Page, Route, Tabs, expect
from support.processes.workers import until
from support.rows.every_state import WORKER, put_every_state
from support.rows.jobs import Jobs
from support.servers.browsed_page import OPERATOR, BrowsedPage

from queue_workflows.settings import load_settings
from queue_workflows.web.serving import served_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
_HIDE = """
(hidden) => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
  const state = () => hidden ? "hidden" : "visible";
  Object.defineProperty(document, "visibilityState", {configurable: true, get: state});
  document.dispatchEvent(new Event("visibilitychange"));
}
"""
# What a change moves that nobody asked to move, by Chromium's own measure.
_WATCH_SHIFTS = """
() => {
  window.shifts = [];
  const told = (list) => list.getEntries().forEach((one) => {
    window.shifts.push(...one.sources.map((part) => part.node?.textContent.slice(0, 40)));
  });
  new PerformanceObserver(told).observe({type: "layout-shift"});
}
"""
_SHIFTS = "() => new Promise((go) => requestAnimationFrame(() => setTimeout(() => go(window.shifts))))"


def live(tab: Page) -> None:
    """Wait for the stream."""
    expect(tab.locator("[data-live-mark]")).to_have_attribute("data-state", "live")


def test_a_change_is_shown_without_a_reload(page: BrowsedPage, ingest: Jobs, tabs: Tabs) -> None:
    """A row that changes while it is looked at is shown as it is then, by the document that was loaded.

    Nothing moves on the page by that.
    """
    (job,) = ingest.enqueue()
    tab = tabs.open(OPERATOR)
    tab.goto(f"{page.url}/jobs")
    live(tab)
    tab.evaluate("() => { window.loadedOnce = true; }")
    row = tab.locator("tbody tr", has=tab.get_by_role("link", name=f"ingest:{job}"))
    expect(row).to_contain_text("queued")
    tab.evaluate(_WATCH_SHIFTS)
    ingest.one("w7", lease_s=600)
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("on w7")
    assert tab.evaluate(_SHIFTS) == []
    assert tab.evaluate("() => window.loadedOnce")
    assert tabs.complaints == []


def test_scripts_that_come_late(page: BrowsedPage, ingest: Jobs, tabs: Tabs) -> None:
    """However long after the library its extension comes that knows of streams, the page is live."""
    ingest.enqueue()
    tab = tabs.open(OPERATOR)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    tab.route("**/hx-sse.min.js", hold)
    tab.goto(f"{page.url}/jobs", wait_until="commit")
    tab.wait_for_function("() => typeof htmx === 'object'")
    # Whatever the library had put off until its script was over is done before this promise is kept.
    tab.evaluate("() => new Promise((go) => setTimeout(() => setTimeout(go)))")
    held[0].continue_()
    live(tab)


def test_focus_typed_text_and_picked_rows_stay(page: BrowsedPage, ingest: Jobs, tabs: Tabs) -> None:
    """What was typed, the place of the cursor, and which rows are picked outlive a change around them."""
    first, second = ingest.enqueue(2)
    tab = tabs.open(OPERATOR)
    tab.goto(f"{page.url}/jobs")
    live(tab)
    tab.get_by_role("checkbox", name=f"Pick ingest:{first}").check()
    field = tab.get_by_role("textbox", name="Filter")
    field.click()
    tab.keyboard.type("queue:fet")
    tab.keyboard.press("Home")
    ingest.one("w7", lease_s=600)
    (third,) = ingest.enqueue()
    expect(tab.get_by_role("link", name=f"ingest:{third}")).to_be_visible()
    expect(tab.get_by_text("on w7")).to_be_visible()
    expect(field).to_be_focused()
    expect(field).to_have_value("queue:fet")
    assert tab.evaluate("() => document.activeElement.selectionStart") == 0
    expect(tab.get_by_role("checkbox", name=f"Pick ingest:{first}")).to_be_checked()
    expect(tab.get_by_role("checkbox", name=f"Pick ingest:{second}")).not_to_be_checked()
    expect(tab.get_by_role("checkbox", name=f"Pick ingest:{third}")).not_to_be_checked()


def test_selected_text_and_opened_details_stay(
    page: BrowsedPage, conn: psycopg.Connection, tabs: Tabs
) -> None:
    """What was unfolded stays so, what was folded too, and a selection can still be copied."""
    put_every_state(conn)
    tab = tabs.open(OPERATOR)
    tab.goto(f"{page.url}/workers/{WORKER}")
    live(tab)
    tab.locator("summary", has_text="Load").click()
    tab.evaluate("() => getSelection().selectAllChildren(document.querySelector('main h1'))")
    conn.execute(
        "UPDATE worker_heartbeats SET state_reason = 'its disk is full' WHERE worker_id = %s", [WORKER]
    )
    expect(tab.locator("main")).to_contain_text("its disk is full")
    expect(tab.locator("details", has_text="Load")).to_have_attribute("open", "")
    assert tab.evaluate("() => getSelection().toString()").strip() == WORKER


def test_a_page_that_is_closed_frees_its_stream(page: BrowsedPage, ingest: Jobs, tabs: Tabs) -> None:
    """Nothing is read for a tab that is gone."""
    tab = tabs.open(OPERATOR)
    tab.goto(f"{page.url}/jobs")
    live(tab)
    assert (page.app.hub.streams, page.app.hub.topics) == (1, 1)
    tab.close()
    until(lambda: (page.app.hub.streams, page.app.hub.topics) == (0, 0))


def test_a_hidden_tab_frees_its_stream(page: BrowsedPage, ingest: Jobs, tabs: Tabs) -> None:
    """It says that it is paused; seen again it is live, and knows what happened meanwhile."""
    tab = tabs.open(OPERATOR)
    tab.goto(f"{page.url}/jobs")
    live(tab)
    tab.evaluate(_HIDE, True)
    until(lambda: page.app.hub.streams == 0)
    expect(tab.locator("[data-live-mark]")).to_have_attribute("data-state", "paused")
    (job,) = ingest.enqueue()
    tab.evaluate(_HIDE, False)
    live(tab)
    expect(tab.get_by_role("link", name=f"ingest:{job}")).to_be_visible()
    assert page.app.hub.streams == 1


def test_tabs_of_one_view_are_read_for_once(page: BrowsedPage, ingest: Jobs, tabs: Tabs) -> None:
    """Two readers of a page are one topic, and both see the change."""
    ingest.enqueue()
    both = [tabs.open(OPERATOR), tabs.open(OPERATOR)]
    for tab in both:
        tab.goto(f"{page.url}/jobs")
        live(tab)
    assert (page.app.hub.streams, page.app.hub.topics) == (2, 1)
    ingest.one("w7", lease_s=600)
    for tab in both:
        expect(tab.get_by_text("on w7")).to_be_visible()


def test_a_restart_of_the_server_heals_by_itself(qwf_dsn: str, ingest: Jobs, tabs: Tabs, tmp_path) -> None:
    """The page says that it is not live, comes back without a reload, and its user is still signed in."""
    (job,) = ingest.enqueue()
    settings = load_settings(arguments={"data_dir": tmp_path})
    tab = tabs.open()
    with served_page(qwf_dsn, user="ada", settings=settings, port=0) as served:
        port = int(served.url.rpartition(":")[2])
        tab.goto(served.first_url)
        tab.goto(f"{served.url}/jobs")
        live(tab)
        tab.evaluate("() => { window.loadedOnce = true; }")
    expect(tab.locator("[data-live-mark]")).to_have_attribute("data-state", "lost")
    ingest.one("w7", lease_s=600)
    with served_page(qwf_dsn, user="ada", settings=settings, port=port):
        live(tab)
        expect(tab.get_by_text("on w7")).to_be_visible()
        assert tab.evaluate("() => window.loadedOnce")
        answer = tab.reload()
        assert answer is not None
        assert answer.status == 200
        expect(tab.get_by_role("link", name=f"ingest:{job}")).to_be_visible()
