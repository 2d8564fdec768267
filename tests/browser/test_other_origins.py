"""Pages of others in the same browser: they cannot act, cannot look, and cannot frame the page.

The browser is told that two foreign names lead to this machine, as anybody's own name server could.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.browser.chromium import Browser, Page, Route, Tabs, chromium, expect
from support.rows.jobs import Jobs
from support.servers.browsed_page import CONFIRM, BrowsedPage, browsed_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
EVIL = "evil.test"
OURS = "ops.test"
_FORM = """
<form id="f" method="post" action="{action}">{fields}</form>
<script>document.getElementById("f").submit()</script>
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser to which both names lead here, and which leaves it to the page to defend itself."""
    names = f"--host-resolver-rules=MAP {EVIL} 127.0.0.1, MAP {OURS} 127.0.0.1"
    with chromium(names, "--disable-features=LocalNetworkAccessChecks") as browser:
        yield browser


@pytest.fixture
def page(qwf_dsn: str, conn: psycopg.Connection) -> Iterator[BrowsedPage]:
    """The page, which answers to its address and to one name."""
    with browsed_page(qwf_dsn, hosts={"127.0.0.1", OURS}) as page:
        yield page


@pytest.fixture
def tab(reader: Tabs) -> Page:
    """The operator's tab: whatever is asked from it, the operator asks."""
    return reader.only


def at(page: BrowsedPage, host: str) -> str:
    """The page under another name."""
    return page.url.replace("127.0.0.1", host)


def attack(tab: Page, page: BrowsedPage, target: str, fields: dict[str, str]) -> None:
    """Open a page of somebody else's that sends a form at once."""
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    body = _FORM.format(action=target, fields=inputs)

    def answer(route: Route) -> None:
        route.fulfill(body=body, content_type="text/html")

    tab.route(f"{at(page, EVIL)}/attack", answer)
    tab.goto(f"{at(page, EVIL)}/attack")


def test_a_name_that_is_not_ours_is_refused(page: BrowsedPage, ingest: Jobs, tab: Page) -> None:
    """A foreign name that leads here, as by DNS rebinding, sees no row."""
    ingest.enqueue()
    answer = tab.goto(f"{at(page, EVIL)}/jobs")
    assert answer is not None
    assert answer.status == 421
    expect(tab.locator("body")).to_contain_text("This page does not answer to that name")
    expect(tab.locator("body")).not_to_contain_text("ingest:")


@pytest.mark.parametrize("host", ["127.0.0.1", OURS])
def test_a_form_of_another_page_is_refused(page: BrowsedPage, ingest: Jobs, tab: Page, host: str) -> None:
    """With the operator's session and a mark of the operator's, it changes nothing.

    At the address the browser says itself where a form came from; at a name over plain HTTP only by Origin.
    """
    (job,) = ingest.enqueue()
    tab.goto(f"{at(page, host)}/act/preview?act=job.cancel&target=ingest:{job}")
    seen = tab.locator("input[name=seen]").get_attribute("value")
    assert seen
    fields = {"act": "job.cancel", "target": f"ingest:{job}", "seen": seen, "reason": "x"}
    with tab.expect_response(f"{at(page, host)}/act") as sent:
        attack(tab, page, f"{at(page, host)}/act", fields)
    assert sent.value.status == 403
    expect(tab.locator("body")).to_contain_text("This did not come from this page")
    assert ingest.seen(job, "status") == ("queued",)


@pytest.mark.parametrize("host", ["127.0.0.1", OURS])
def test_our_own_form_is_heard(page: BrowsedPage, ingest: Jobs, tab: Page, host: str) -> None:
    """Under both names the page's own button does what it says."""
    (job,) = ingest.enqueue()
    tab.goto(f"{at(page, host)}/jobs/ingest:{job}")
    tab.get_by_role("button", name="Cancel", exact=True).click()
    tab.locator(CONFIRM).click()
    expect(tab.get_by_text("Done.")).to_be_visible()
    assert ingest.seen(job, "status") == ("cancelled",)


def test_nobody_frames_the_page(page: BrowsedPage, ingest: Jobs, tab: Page) -> None:
    """A foreign page that puts ours into a frame, to have a button pressed unseen, shows nothing of it."""
    ingest.enqueue()

    def answer(route: Route) -> None:
        route.fulfill(body=f'<iframe src="{page.url}/jobs"></iframe>', content_type="text/html")

    tab.route(f"{at(page, EVIL)}/frame", answer)
    with tab.expect_event("requestfailed", lambda request: request.url == f"{page.url}/jobs") as refused:
        tab.goto(f"{at(page, EVIL)}/frame")
    assert "ERR_BLOCKED_BY_RESPONSE" in str(refused.value.failure)
    expect(tab.frame_locator("iframe").locator("main")).to_have_count(0)


def test_another_page_reads_nothing(page: BrowsedPage, ingest: Jobs, tab: Page) -> None:
    """Its scripts get no answer of ours, whatever they ask."""
    ingest.enqueue()
    tab.route(
        f"{at(page, EVIL)}/read", lambda route: route.fulfill(body="<p>evil</p>", content_type="text/html")
    )
    tab.goto(f"{at(page, EVIL)}/read")
    read = "(url) => fetch(url, {mode: 'no-cors'}).then(() => 'read', () => 'refused')"
    assert tab.evaluate(read, f"{page.url}/jobs.json") == "refused"
    assert tab.evaluate(read, f"{page.url}/live?page=/jobs") == "refused"
