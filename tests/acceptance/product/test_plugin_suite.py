"""A public suite of plugins, as it is on PyPI, archives a site on this engine."""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import psutil
import pytest
from support.processes.workers import until
from support.servers.site import FEED, WORDS, paper, picture, serving_site, song
from support.stages.plugin_suite import LISTENERS, PLUGINS, PluginSuite, install, plugin_suite
from support.stages.printed import colours_of, text_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Of the hooks of one page, by plugin and number, what each says that it came to.
RESULTS = {
    **dict.fromkeys(("wget.06", "chrome.09", "chrome.10", "chrome.11", "favicon.11"), "succeeded"),
    **dict.fromkeys(("consolelog.21", "dns.22", "responses.24", "redirects.25", "headers.27"), "succeeded"),
    **dict.fromkeys(("chrome.30", "seo.38", "accessibility.39", "screenshot.51", "pdf.52"), "succeeded"),
    **dict.fromkeys(("dom.53", "title.54", "readability.56", "htmltotext.58"), "succeeded"),
    **dict.fromkeys(("parse_html_urls.70", "parse_dom_outlinks.75"), "succeeded"),
    **dict.fromkeys(("search_backend_sqlite.90", "hashes.93"), "succeeded"),
    "staticfile.26": "noresults",
}
# A worker is killed as the browser starts, as listeners do, as the page is opened, and as others look at it.
MOMENTS = ("09_chrome_launch", "24_responses", "30_chrome_navigate", "51_screenshot", "54_title")
LOOKING = (*LISTENERS, "screenshot", "title")
# Of the picture on each page, of the paper, and of the words.
BOAT, WHITE, BLACK = (0x20, 0x60, 0xA0), (255, 255, 255), (0, 0, 0)
HANGS = """#!/bin/sh
trap '' TERM
(exec sleep 3600) &
echo $$ $! > pids
while true; do sleep 3600; done
"""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The site that is archived."""
    with serving_site() as address:
        yield address


@pytest.fixture(scope="module")
def suite(qwf_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluginSuite]:
    """The suite, installed once, on a worker that has no more than three browsers at a time."""
    plugins, hanging = install(tmp_path_factory.mktemp("suite")), tmp_path_factory.mktemp("hanging")
    hook = hanging / "hanging" / "on_Snapshot__40_hangs.sh"
    hook.parent.mkdir()
    hook.write_text(HANGS)
    hook.chmod(0o755)
    config = {"properties": {"HANGING_TIMEOUT": {"type": "integer", "default": 2}}, "x-max-attempts": 1}
    (hook.parent / "config.json").write_text(json.dumps(config))
    with plugin_suite(qwf_dsn, [plugins, hanging], tmp_path_factory.mktemp("data")) as made:
        made.work("--concurrency", "4", "--max-background", "3")
        yield made


@pytest.fixture(scope="module")
def archived(suite: PluginSuite, site: str) -> dict[str, uuid.UUID]:
    """What each address came to, of pages that are archived at the same time."""
    with_files = ("chrome", "staticfile", "responses", "wget")
    files = ("/paper.pdf", "/song.wav", "/feed.xml", "/boat.png")
    runs = {path: suite.start(site + path, with_files) for path in files}
    runs["/page/7"] = suite.start(f"{site}/page/7", [*PLUGINS, "hanging"])
    runs["/old"] = suite.start(f"{site}/old", ("chrome", "redirects", "headers"))
    suite.ended(*runs.values())
    failed = {path: suite.failures(run) for path, run in runs.items()}
    hangs = failed["/page/7"].pop("on_Snapshot__40_hangs.sh")
    assert failed == {path: {} for path in runs}
    assert "it took longer than it may" in hangs
    return runs


def test_every_hook_of_a_page_leaves_what_it_is_for(
    suite: PluginSuite, site: str, archived: dict[str, uuid.UUID]
) -> None:
    """All but one that hangs, which holds up nothing, are done, and their files hold the page."""
    run, url = archived["/page/7"], f"{site}/page/7"
    assert suite.results(run) == RESULTS
    jobs = suite.statuses(run)
    assert {name: status for name, status in jobs.items() if status != "completed"} == {
        "on_Snapshot__40_hangs.sh": "failed"
    }
    read = partial(_read, suite, run)
    hanging = list(map(int, read("hanging/pids").split()))
    assert (len(hanging), [pid for pid in hanging if psutil.pid_exists(pid)]) == (2, [])
    words = WORDS.format(n=7)
    host = url.removeprefix("http://").partition("/")[0].replace(":", "+")
    assert words in read(f"wget/{host}/page/7.html")
    (warc,) = suite.file(run, "wget/warc").iterdir()
    assert f"WARC-Target-URI: <{url}>" in gzip.decompress(warc.read_bytes()).decode(errors="replace")
    assert suite.file(run, "favicon/favicon.ico").read_bytes() == picture()
    assert [line["text"] for line in suite.lines(run, "consolelog/console.jsonl")] == ["canal 7 is open"]
    assert {(line["hostname"], line["ip"]) for line in suite.lines(run, "dns/dns.jsonl")} == {
        ("localhost", "127.0.0.1")
    }
    seen = {(line["url"], line["status"]) for line in suite.lines(run, "responses/index.jsonl")}
    assert {(url, 200), (f"{site}/boat.png", 200)} <= seen
    assert json.loads(read("headers/headers.json"))["response_headers"]["Content-Type"].startswith(
        "text/html"
    )
    assert json.loads(read("seo/seo.json"))["description"] == "All about canal 7"
    assert "# Canal 7" in json.loads(read("accessibility/accessibility.json"))["headings"]
    colours = colours_of(suite.file(run, "screenshot/screenshot.png").read_bytes())
    assert colours[BOAT] == 16 * 16
    assert max(colours, key=colours.__getitem__) == WHITE
    assert colours[BLACK] > 100
    printed = suite.file(run, "pdf/output.pdf").read_bytes()
    # Where a line breaks, and whether within a word for the reader of the file, is the font's affair.
    assert _without_blanks(text_of(printed)).startswith(_without_blanks("Canal 7" + 3 * words))
    assert f"/URI ({site}/page/8)".encode() in printed
    assert words in read("dom/output.html")
    assert read("title/title.txt") == "Canal 7"
    assert words in read("readability/content.txt")
    assert words in read("htmltotext/htmltotext.txt")
    assert f"{site}/page/8" in {line["url"] for line in suite.lines(run, "parse_html_urls/urls.jsonl")}
    assert f"{site}/page/8" in {line["url"] for line in suite.lines(run, "parse_dom_outlinks/urls.jsonl")}
    hashed = {file["path"]: file for file in json.loads(read("hashes/hashes.json"))["files"]}
    assert hashlib.sha256(b"Canal 7").hexdigest() in hashed["title/title.txt"].values()
    with closing(sqlite3.connect(suite.data / "search.sqlite3")) as index:
        found = index.execute(
            "SELECT url, title FROM search_index WHERE content MATCH 'keeper' AND snapshot_id = ?", [str(run)]
        )
        assert found.fetchall() == [(url, "Canal 7")]


def _read(suite: PluginSuite, run: uuid.UUID, name: str) -> str:
    return suite.file(run, name).read_text()


def test_files_that_are_no_pages_are_kept_as_they_are(
    suite: PluginSuite, archived: dict[str, uuid.UUID]
) -> None:
    """A paper by wget, as a browser puts it into a page; the others where the plugin for files says."""
    (paper_kept,) = suite.file(archived["/paper.pdf"], "wget").glob("localhost*/paper.pdf")
    assert paper_kept.read_bytes() == paper()
    assert suite.results(archived["/paper.pdf"])["staticfile.26"] == "succeeded"
    for path, content in {"/song.wav": song(), "/boat.png": picture()}.items():
        (named,) = suite.said(archived[path], "staticfile")
        assert suite.file(archived[path], named).read_bytes() == content
    feed = suite.lines(archived["/feed.xml"], "responses/index.jsonl")[0]
    assert suite.file(archived["/feed.xml"], f"responses/{feed['path']}").read_text() == FEED


def test_a_redirect_is_followed(suite: PluginSuite, site: str, archived: dict[str, uuid.UUID]) -> None:
    """From the first address to the last."""
    run = archived["/old"]
    # Its `final_url` is where the browser is two seconds later, and that is nowhere yet on a busy machine.
    assert json.loads(_read(suite, run, "headers/headers.json"))["response_url"] == f"{site}/page/1"
    hops = [(line["from_url"], line["to_url"]) for line in suite.lines(run, "redirects/redirects.jsonl")]
    assert (f"{site}/old", f"{site}/page/1") in hops


def test_of_seven_pages_none_loses_its_document_or_a_line(suite: PluginSuite, site: str) -> None:
    """They are asked for at once, and no more than three browsers are there at a time."""
    runs = {number: suite.start(f"{site}/page/{number}", LISTENERS) for number in range(101, 108)}
    most, looked = 0, threading.Event()
    while suite.over(*runs.values()) < len(runs):
        most = max(most, suite.browsers())
        looked.wait(0.3)
    assert suite.ended(*runs.values()) == ["completed"] * len(runs)
    found = {number: suite.seen(run) for number, run in runs.items()}
    assert found == {n: ([f"{site}/page/{n}"], [f"canal {n} is open"]) for n in runs}
    assert 0 < most <= 3


def test_six_pages_of_a_crawl_have_three_browsers_at_a_time(suite: PluginSuite, site: str) -> None:
    """They are named by one page, at once, and its cap alone keeps the worker from beginning all of them."""
    suite.change("--concurrency", "10", "--max-background", "1000")
    wanted = {"max_depth": 1, "url_allow": [r"/page/[0-9]+$"]}
    crawl = suite.start(f"{site}/list/301-306", (*LISTENERS, "parse_html_urls"), max_open_runs=3, **wanted)
    most, looked = 0, threading.Event()
    while not suite.over(crawl):
        most = max(most, suite.browsers())
        looked.wait(0.3)
    runs = suite.below(crawl)
    assert sorted(suite.ended(crawl, *runs.values())) == ["completed"] * 7
    found = {url: suite.seen(run) for url, run in runs.items()}
    assert found == {
        f"{site}/page/{n}": ([f"{site}/page/{n}"], [f"canal {n} is open"]) for n in range(301, 307)
    }
    assert 1 < suite.most_open(*runs.values()) <= 3
    assert 0 < most <= 3


def test_a_crawl_that_is_set_up_has_one_browser_for_all_its_pages(suite: PluginSuite, site: str) -> None:
    """The suite's own setup begins it, each page has a tab in it, and it is gone after the last page."""
    isolation = {"CHROME_ISOLATION": "crawl"}
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
    assert {url: _read(suite, run, "title/title.txt") for url, run in pages.items()} == {
        url: f"Canal {n}" for url, n in numbers.items()
    }
    assert most == 1
    until(lambda: suite.browsers() == 0)
    assert not (suite.data / "profiles" / str(tree)).exists()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_page_is_complete_after_a_killed_worker(suite: PluginSuite, site: str, moment: str) -> None:
    """Whenever it was killed, and no browser is left behind."""
    number = 201 + MOMENTS.index(moment)
    run = suite.start(f"{site}/page/{number}", LOOKING)
    suite.until_begun(run, moment)
    suite.kill()
    assert suite.ended(run) == ["completed"]
    # With the worker its browser was lost, or what had begun of it: the kill came in time.
    assert suite.attempts(run, "09_chrome_launch") >= 2
    assert suite.seen(run) == ([f"{site}/page/{number}"], [f"canal {number} is open"])
    assert _read(suite, run, "title/title.txt") == f"Canal {number}"
    colours = colours_of(suite.file(run, "screenshot/screenshot.png").read_bytes())
    assert colours[BOAT] == 16 * 16
    until(lambda: suite.browsers() == 0)


def _without_blanks(text: str) -> str:
    return "".join(text.split())
