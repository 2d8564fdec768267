"""A public suite of plugins, as it is on PyPI, archives each kind of address on this engine."""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial

import psutil
import pytest
from support.servers.site import FEED, WORDS, paper, picture, song
from support.stages.plugin_suite import BOAT, FEW_HOOKS, PLUGINS, PluginSuite
from support.stages.printed import colours_of, text_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

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
# Of the paper, and of the words.
WHITE, BLACK = (255, 255, 255), (0, 0, 0)
HANGS = """#!/bin/sh
trap '' TERM
(exec sleep 3600) &
echo $$ $! > pids
while true; do sleep 3600; done
"""


@pytest.fixture(scope="module")
def suite(new_suite: Callable[..., PluginSuite], tmp_path_factory: pytest.TempPathFactory) -> PluginSuite:
    """The suite, beside a plugin whose hook hangs."""
    hanging = tmp_path_factory.mktemp("hanging")
    hook = hanging / "hanging" / "on_Snapshot__40_hangs.sh"
    hook.parent.mkdir()
    hook.write_text(HANGS)
    hook.chmod(0o755)
    config = {"properties": {"HANGING_TIMEOUT": {"type": "integer", "default": 2}}, "x-max-attempts": 1}
    (hook.parent / "config.json").write_text(json.dumps(config))
    return new_suite(hanging)


@pytest.fixture(scope="module")
def archived(suite: PluginSuite, site: str) -> dict[str, uuid.UUID]:
    """What each address came to, of pages that are archived at the same time."""
    with_files = ("chrome", "staticfile", "responses", "wget")
    files = ("/paper.pdf", "/song.wav", "/feed.xml")
    runs = {path: suite.start(site + path, with_files, config=FEW_HOOKS) for path in files}
    runs["/page/7"] = suite.start(f"{site}/page/7", [*PLUGINS, "hanging"])
    runs["/old"] = suite.start(f"{site}/old", ("chrome", "redirects", "headers"), config=FEW_HOOKS)
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
    (named,) = suite.said(archived["/song.wav"], "staticfile")
    assert suite.file(archived["/song.wav"], named).read_bytes() == song()
    feed = suite.lines(archived["/feed.xml"], "responses/index.jsonl")[0]
    assert suite.file(archived["/feed.xml"], f"responses/{feed['path']}").read_text() == FEED


@pytest.mark.nightly
def test_a_picture_is_kept_as_it_is(suite: PluginSuite, site: str) -> None:
    """As a song is."""
    run = suite.start(f"{site}/boat.png", ("chrome", "staticfile", "responses", "wget"), config=FEW_HOOKS)
    assert suite.ended(run) == ["completed"]
    (named,) = suite.said(run, "staticfile")
    assert suite.file(run, named).read_bytes() == picture()


def test_a_redirect_is_followed(suite: PluginSuite, site: str, archived: dict[str, uuid.UUID]) -> None:
    """From the first address to the last."""
    run = archived["/old"]
    # Its `final_url` is where the browser is two seconds later, and that is nowhere yet on a busy machine.
    assert json.loads(_read(suite, run, "headers/headers.json"))["response_url"] == f"{site}/page/1"
    hops = [(line["from_url"], line["to_url"]) for line in suite.lines(run, "redirects/redirects.jsonl")]
    assert (f"{site}/old", f"{site}/page/1") in hops


def _without_blanks(text: str) -> str:
    return "".join(text.split())
