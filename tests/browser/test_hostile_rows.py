"""Rows that want to be more than text: on every page they are text, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb
from support.browser.chromium import Tabs, expect
from support.rows.every_state import WORKER, EveryState, put_every_state
from support.servers.browsed_page import BrowsedPage, browsed_page

from queue_workflows.testing.servers import QwfServer
from queue_workflows.web.pages.all import ADDRESSES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

MARKUP = (
    "</script></textarea></title><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>{{7*7}}"
)
TURNED = "\u202etxt.exe\u202c \u2066hidden\u2069 \u200bzero"
STEERING = [chr(code) for code in (0x202A, 0x202B, 0x202D, 0x202E, 0x2066, 0x2067, 0x2068, 0x200B)]
EVIL = f"{MARKUP} {TURNED}"
LONG = "W" * 100_000
# As long as the tables let a reason be.
REASON = (EVIL + LONG)[:65_000]
DEEP = "[" * 4_000 + "]" * 4_000
MOST_BYTES = 2_000_000
MORE = [
    "/runs/{run}?view=nodes",
    "/runs/{run}?view=timeline",
    "/runs/{run}?view=records",
    "/jobs?q=status:failed",
]


@pytest.fixture(scope="module")
def hostile(qwf_server: QwfServer) -> Iterator[tuple[BrowsedPage, EveryState]]:
    """The page over rows in which every free text is an attack, one field is 10 MB, and one nests deeply."""
    with qwf_server.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        there = put_every_state(connection)
        spoil(connection, there.runs["running"])
        with browsed_page(dsn) as page:
            yield page, there


def spoil(connection: psycopg.Connection, run: UUID) -> None:
    """Write them past every check of ours; what the tables themselves allow is what may come."""
    error = {"kind": "exception", "type": EVIL, "message": f"{EVIL} {LONG}", "traceback": EVIL, "attempt": 1}
    args = {EVIL: EVIL, "long": "x" * 10_000_000, "deep": "d"}
    connection.execute(
        "UPDATE ingest_jobs SET task_name = left(%s, 200), args = %s,"
        " errors = CASE WHEN status = 'failed' THEN %s ELSE errors END",
        [EVIL, Jsonb(args), Jsonb([error])],
    )
    connection.execute(
        "UPDATE workflow_node_jobs SET context_delta = %s WHERE status = 'completed'", [Jsonb({EVIL: LONG})]
    )
    connection.execute(
        "UPDATE workflow_runs SET labels = %s WHERE id = %s", [Jsonb({EVIL[:60]: EVIL[:60]}), run]
    )
    connection.execute(
        "UPDATE worker_heartbeats SET state_reason = %s, versions = %s, load = %s WHERE worker_id = %s",
        [EVIL + LONG, Jsonb({EVIL: EVIL}), Jsonb({EVIL: EVIL}), WORKER],
    )
    connection.execute("UPDATE worker_control SET reason = %s, actor = left(%s, 200)", [REASON, EVIL])
    connection.execute("UPDATE concurrency_limits SET reason = %s", [REASON])
    connection.execute("UPDATE hook_records SET payload = %s", [Jsonb({EVIL: LONG})])
    connection.execute("UPDATE audit_log SET reason = %s, actor = left(%s, 200)", [REASON, EVIL])
    connection.execute(
        "UPDATE durable_steps SET name = left(%s, 200) || position, waits_for = %s,"
        " result = CASE WHEN kind = 'step' AND status = 'done' THEN %s ELSE result END,"
        " error = CASE WHEN status = 'failed' THEN %s ELSE error END",
        [EVIL, EVIL, Jsonb({EVIL: LONG}), Jsonb(error)],
    )
    nested = "('{\"deep\": ' || %s || '}')::jsonb"
    connection.execute(
        f"UPDATE ingest_jobs SET args = {nested} WHERE status = 'scheduled' AND attempt = 0", [DEEP]
    )


def check(reader: Tabs, url: str) -> None:
    """Nothing ran, nothing is turned around, and the page is of a size that a browser can carry."""
    tab = reader.only
    answer = tab.goto(url)
    assert answer is not None
    assert (answer.status, len(answer.body()) < MOST_BYTES) == (200, True), url
    assert tab.evaluate("() => window.hit") is None, url
    text = tab.locator("body").inner_text()
    assert [char for char in STEERING if char in text] == [], url
    assert (
        tab.evaluate("() => document.querySelectorAll('main script, main img, main iframe').length") == 0
    ), url
    assert reader.complaints == [], url


@pytest.mark.parametrize("path", [*(address.path for address in ADDRESSES), *MORE])
def test_on_every_page(reader: Tabs, hostile: tuple[BrowsedPage, EveryState], path: str) -> None:
    """Markup is shown as it is written, and what steers the direction of writing by a mark."""
    page, there = hostile
    check(reader, page.url + there.place(path))


@pytest.mark.parametrize("status", ["queued", "running", "failed", "event"])
def test_on_the_page_of_a_job(reader: Tabs, hostile: tuple[BrowsedPage, EveryState], status: str) -> None:
    """The markup can be read there, so nothing was lost but its power."""
    page, there = hostile
    check(reader, page.url + there.place("/jobs/{job}", job=status))
    assert "<script>window.hit = 1</script>" in reader.only.locator("main").inner_text()


def test_a_value_that_nests_too_deeply(reader: Tabs, hostile: tuple[BrowsedPage, EveryState]) -> None:
    """The job's page says what is so; the list that it stands in is as before."""
    page, there = hostile
    tab = reader.only
    answer = tab.goto(page.url + there.place("/jobs/{job}", job="scheduled"))
    assert answer is not None
    assert answer.status == 422
    expect(tab.locator("main")).to_contain_text("nested too deeply to be read")
    check(reader, f"{page.url}/jobs?q=status:scheduled")


def test_in_a_filter_and_in_the_search(reader: Tabs, hostile: tuple[BrowsedPage, EveryState]) -> None:
    """What somebody else put into a link is text on the page that it leads to."""
    page, _there = hostile
    tab = reader.only
    for path in ("/jobs", "/runs", "/go", "/failures"):
        name = "queue" if path == "/failures" else "q"
        tab.goto(f"{page.url}{path}?{name}=error:%22{'%3Cscript%3Ewindow.hit%3D1%3C/script%3E'}%22")
        assert tab.evaluate("() => window.hit") is None
        assert tab.evaluate("() => document.querySelectorAll('main script').length") == 0
