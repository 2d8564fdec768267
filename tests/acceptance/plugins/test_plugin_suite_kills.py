"""Pages that a public suite of plugins archives are complete after a worker was killed at any step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.processes.workers import until
from support.stages.plugin_suite import BOAT, FEW_HOOKS, LISTENERS, PluginSuite
from support.stages.printed import colours_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# A worker is killed as the page is opened, when a browser and its listeners are there already and begin anew;
# by night as the browser starts, as listeners do, and as others look at the page.
MOMENTS = ("30_chrome_navigate", "09_chrome_launch", "24_responses", "51_screenshot")
LOOKING = (*LISTENERS, "screenshot", "title")


@pytest.fixture
def suite(new_suite: Callable[..., PluginSuite]) -> PluginSuite:
    """The suite and nothing else; each test has its own, for processes share them out one by one."""
    return new_suite()


@pytest.mark.parametrize(
    "moment", [*MOMENTS[:1], *(pytest.param(moment, marks=pytest.mark.nightly) for moment in MOMENTS[1:])]
)
def test_a_page_is_complete_after_a_killed_worker(suite: PluginSuite, site: str, moment: str) -> None:
    """Whenever it was killed, and no browser is left behind."""
    number = 201 + MOMENTS.index(moment)
    run = suite.start(f"{site}/page/{number}", LOOKING, config=FEW_HOOKS)
    suite.until_begun(run, moment)
    suite.kill()
    assert suite.ended(run) == ["completed"]
    # With the worker its browser was lost, or what had begun of it: the kill came in time.
    assert suite.attempts(run, "09_chrome_launch") >= 2
    assert suite.seen(run) == ([f"{site}/page/{number}"], [f"canal {number} is open"])
    assert suite.file(run, "title/title.txt").read_text() == f"Canal {number}"
    colours = colours_of(suite.file(run, "screenshot/screenshot.png").read_bytes())
    assert colours[BOAT] == 16 * 16
    until(lambda: suite.browsers() == 0)
