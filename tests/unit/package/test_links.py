"""What a page, a message or a comment names of the documentation is there, and the index names every page."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_workflows.cli.main import ENTRIES

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?:|mailto:)([^)#]*)(?:#([^)]*))?\)")
ADDRESS = re.compile(r"(?<![\w./-])docs/[\w./-]*\w")
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """What a link may name of a page: its headings as GitHub writes them in addresses."""
    headings = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, page: Path) -> Iterator[str]:
    """The relative links that lead to no file, or to no heading of one."""
    for target, anchor in LINK.findall(FENCED.sub("", text)):
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield f"{target}#{anchor}" if anchor else target


def broken_addresses(text: str) -> list[str]:
    """The files of docs/ that are named by their path in the checkout and are not there."""
    return sorted({address for address in ADDRESS.findall(text) if not (ROOT / address).exists()})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """A relative link names a file that exists, and a heading that this file has."""
    assert list(broken_links(page.read_text(encoding="utf-8"), page)) == []


def test_what_is_named_of_the_docs_is_there() -> None:
    """Messages, comments, scripts, tests and pages name files of docs/ as they are."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        timeout=150,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so there is no list of what belongs to it")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()]
    named = {
        name_of(file): broken_addresses(file.read_text(encoding="utf-8", errors="replace"))
        for file in files
        if file != Path(__file__)
    }
    assert {file: addresses for file, addresses in named.items() if addresses} == {}


@pytest.mark.parametrize(
    "link", ["gone.md", "../why.md#gone", "#gone", "../docs/why.md", "enqueue.md#what-a-row-may-never-hold"]
)
def test_a_link_that_leads_nowhere_is_seen(link: str) -> None:
    """The check would go red for a page that was moved, and for a heading that was renamed."""
    page = DOCS / "how-to" / "limit.md"
    fine = "[it](enqueue.md#what-a-row-may-hold), [there](../why.md) and [out](https://example.org/gone.md)"
    assert list(broken_links(f"{fine} [planted]({link})", page)) == [link]


def test_an_address_that_leads_nowhere_is_seen() -> None:
    """It is seen within a message, at the end of a sentence and in quotes; an address on the web is none."""
    text = (
        'see docs/gone.md. `docs/deploy/grants.sql` "docs/deploy/gone.sql" https://example.org/docs/other.md'
    )
    assert broken_addresses(text) == ["docs/deploy/gone.sql", "docs/gone.md"]


def test_every_page_is_on_the_map() -> None:
    """docs/index.md leads to every page."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md"))]
    assert [page for page in pages if page != "index.md" and f"({page})" not in index] == []


def test_every_command_is_on_the_map() -> None:
    """What there is by subject names each command of `qwf`."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert [command for command in ENTRIES if f"`qwf {command}" not in index] == []
