"""Every page, with everything on it and with nothing: usable by everybody, and true to its own policy."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest
from support.browser.axe import violations
from support.browser.chromium import Tabs, expect
from support.rows.every_state import EveryState, put_every_state
from support.servers.browsed_page import BrowsedPage, browsed_page

from queue_workflows.testing.servers import QwfServer
from queue_workflows.web.pages.all import ADDRESSES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PATHS = [address.path for address in ADDRESSES]
# Of a run's page each view, and of a job's each state, has a layout of its own.
MORE = [
    "/runs/{run}?view=timeline",
    "/runs/{run}?view=nodes",
    "/runs/{run}?view=records",
    "/jobs?q=status:failed",
]
WIDTHS = (320, 1280, 1920)
SCHEMES = ("light", "dark")
# What a page says to assistive programs is asked at the narrowest and the widest, once in each scheme, and by
# night the other way round. A page that is narrow in the light one when it is full is narrow in the dark one
# when nothing is there. How wide a page is does not depend on its colours.
ENDS = (WIDTHS[0], WIDTHS[-1])
_BY_NIGHT = pytest.mark.nightly
LIGHT_IS_NARROW = pytest.mark.parametrize(
    "narrow", [SCHEMES[0], pytest.param(SCHEMES[1], marks=_BY_NIGHT)], ids="{} is narrow".format
)
DARK_IS_NARROW = pytest.mark.parametrize(
    "narrow", [SCHEMES[1], pytest.param(SCHEMES[0], marks=_BY_NIGHT)], ids="{} is narrow".format
)
# Of what is missing one page is as good as another; by night each is looked at.
ALIKE = [path for path in PATHS if "{" in path and path not in ("/runs/{run}", "/queues/{queue}")]
NOBODY = EveryState({"failed": "ingest:404"}, {"running": UUID(int=404)})
_WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def full(qwf_dsn: str) -> Iterator[tuple[BrowsedPage, EveryState]]:
    """The page over a database with something in every state."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        there = put_every_state(connection)
    with browsed_page(qwf_dsn) as page:
        yield page, there


@pytest.fixture(scope="module")
def empty(qwf_server: QwfServer) -> Iterator[BrowsedPage]:
    """The page over a database in which nothing ever happened."""
    with qwf_server.database() as dsn, browsed_page(dsn) as page:
        yield page


def flaws(reader: Tabs, url: str, *statuses: int, narrow: str = SCHEMES[0]) -> list[str]:
    """What is wrong with a page in both themes and at each width; which theme it is in where it is narrow."""
    asked = dict(zip(ENDS, sorted(SCHEMES, key=lambda scheme: scheme != narrow), strict=True))
    tab = reader.only
    tab.emulate_media(color_scheme=SCHEMES[0])
    tab.set_viewport_size({"width": WIDTHS[-1], "height": 900})
    answer = tab.goto(url)
    assert answer is not None
    found = [] if answer.status in statuses else [f"status {answer.status} instead of {statuses}"]
    expect(tab.locator("h1")).to_have_count(1)
    for width in WIDTHS:
        scheme = asked.get(width, asked[WIDTHS[-1]])
        tab.emulate_media(color_scheme=scheme)
        tab.set_viewport_size({"width": width, "height": 900})
        here = f"{scheme}, {width} px"
        if width in asked:
            found += [f"{here}: {one}" for one in violations(tab)]
        if (more := tab.evaluate(_WIDER)) > 0:
            found.append(f"{here}: {more} px wider than the window")
    return found + reader.complaints


@LIGHT_IS_NARROW
@pytest.mark.parametrize("path", PATHS + MORE)
def test_with_something_in_every_state(
    reader: Tabs, full: tuple[BrowsedPage, EveryState], path: str, narrow: str
) -> None:
    """No rule of accessibility is broken, nothing is complained of, and nothing is cut at 320 pixels."""
    page, there = full
    assert flaws(reader, page.url + there.place(path), 200, narrow=narrow) == []


@LIGHT_IS_NARROW
@pytest.mark.parametrize(
    "status",
    ["completed", "running", "held", "cancelled", "queued", "scheduled", "asleep", "event", "children"],
)
def test_a_job_in_each_status(
    reader: Tabs, full: tuple[BrowsedPage, EveryState], status: str, narrow: str
) -> None:
    """Its page is as good as that of a failed one."""
    page, there = full
    assert flaws(reader, page.url + there.place("/jobs/{job}", job=status), 200, narrow=narrow) == []


@LIGHT_IS_NARROW
@pytest.mark.parametrize("status", ["completed", "failed", "at_work"])
def test_a_run_in_each_status(
    reader: Tabs, full: tuple[BrowsedPage, EveryState], status: str, narrow: str
) -> None:
    """Its graph is as good as that of one that waits for an answer."""
    page, there = full
    assert flaws(reader, page.url + there.place("/runs/{run}", run=status), 200, narrow=narrow) == []


@DARK_IS_NARROW
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=_BY_NIGHT if path in ALIKE else ()) for path in PATHS]
)
def test_with_nothing_there(reader: Tabs, empty: BrowsedPage, path: str, narrow: str) -> None:
    """A list says that it is empty, a thing that is not there is said to be missing."""
    statuses = (200, 404) if "{" in path else (200,)
    assert flaws(reader, empty.url + NOBODY.place(path), *statuses, narrow=narrow) == []


@LIGHT_IS_NARROW
@pytest.mark.parametrize("act", ["job.cancel", "job.retry"])
def test_the_preview_of_an_act(
    reader: Tabs, full: tuple[BrowsedPage, EveryState], act: str, narrow: str
) -> None:
    """What stands between a button and its act is a page like the others."""
    page, there = full
    job = there.jobs["queued" if act == "job.cancel" else "failed"]
    assert flaws(reader, f"{page.url}/act/preview?act={act}&target={job}", 200, narrow=narrow) == []
    assert flaws(reader, f"{page.url}/act/preview?act={act}&where=queue:fetch", 200, narrow=narrow) == []
