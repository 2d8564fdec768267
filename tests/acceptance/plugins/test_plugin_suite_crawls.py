"""Many pages of a site at once by a public suite of plugins: as pages that stand alone, and as crawls."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from support.processes.workers import until
from support.stages.plugin_suite import FEW_HOOKS, LISTENERS, PluginSuite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def suite(new_suite: Callable[..., PluginSuite]) -> PluginSuite:
    """The suite and nothing else; each test has its own, for processes share them out one by one."""
    return new_suite()


@pytest.mark.nightly
def test_of_four_pages_none_loses_its_document_or_a_line(suite: PluginSuite, site: str) -> None:
    """They are asked for at once, and no more than three browsers are there at a time."""
    runs = {
        number: suite.start(f"{site}/page/{number}", LISTENERS, config=FEW_HOOKS)
        for number in range(101, 105)
    }
    most, looked = 0, threading.Event()
    while suite.over(*runs.values()) < len(runs):
        most = max(most, suite.browsers())
        looked.wait(0.3)
    assert suite.ended(*runs.values()) == ["completed"] * len(runs)
    found = {n: suite.seen(run) for n, run in runs.items()}
    assert found == {n: ([f"{site}/page/{n}"], [f"canal {n} is open"]) for n in runs}
    assert 0 < most <= 3


@pytest.mark.nightly
def test_three_pages_of_a_crawl_have_two_browsers_at_a_time(suite: PluginSuite, site: str) -> None:
    """They are named by one page, at once, and its cap alone keeps the worker from beginning all of them."""
    suite.change("--concurrency", "10", "--max-background", "1000")
    wanted = {"max_depth": 1, "url_allow": [r"/page/[0-9]+$"], "config": FEW_HOOKS}
    crawl = suite.start(f"{site}/list/301-303", (*LISTENERS, "parse_html_urls"), max_open_runs=2, **wanted)
    most, looked = 0, threading.Event()
    while not suite.over(crawl):
        most = max(most, suite.browsers())
        looked.wait(0.3)
    runs = suite.below(crawl)
    assert sorted(suite.ended(crawl, *runs.values())) == ["completed"] * 4
    found = {url: suite.seen(run) for url, run in runs.items()}
    assert found == {
        f"{site}/page/{n}": ([f"{site}/page/{n}"], [f"canal {n} is open"]) for n in range(301, 304)
    }
    # On a busy machine pages as short as these may come one after the other.
    assert suite.most_open(*runs.values()) in (1, 2)
    assert 0 < most <= 2


def test_a_crawl_that_is_set_up_has_one_browser_for_all_its_pages(suite: PluginSuite, site: str) -> None:
    """The suite's own setup begins it, each page has a tab in it, and it is gone after the last page.

    The worker would begin all three pages at once; the crawl's cap keeps it from that.
    """
    suite.change("--concurrency", "10", "--max-background", "1000")
    isolation = {"CHROME_ISOLATION": "crawl", **FEW_HOOKS}
    wanted = {"max_depth": 1, "url_allow": [r"/page/[0-9]+$"], "config": isolation}
    plugins = (*LISTENERS, "title", "parse_html_urls")
    tree = suite.start(f"{site}/list/401-403", plugins, max_open_runs=2, setup="CrawlSetup", **wanted)
    most, looked = 0, threading.Event()
    while not suite.over(tree):
        most = max(most, suite.browsers())
        looked.wait(0.3)
    (first,) = suite.below(tree).values()
    pages = suite.below(first)
    assert [suite.failures(run) for run in (tree, first, *pages.values())] == [{}] * 5
    numbers = {f"{site}/page/{n}": n for n in (401, 402, 403)}
    assert {url: suite.seen(run) for url, run in pages.items()} == {
        url: ([url], [f"canal {n} is open"]) for url, n in numbers.items()
    }
    assert {url: suite.file(run, "title/title.txt").read_text() for url, run in pages.items()} == {
        url: f"Canal {n}" for url, n in numbers.items()
    }
    # On a busy machine pages as short as these may come one after the other.
    assert suite.most_open(*pages.values()) in (1, 2)
    assert most == 1
    until(lambda: suite.browsers() == 0)
    assert not (suite.data / "profiles" / str(tree)).exists()
