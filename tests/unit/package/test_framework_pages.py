"""The pages of frameworks show what the example apps have, and how much of that is there because of us."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.processes.snippets import Snippet, find_snippets

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = DOCS / "how-to" / "frameworks"
APPS = DOCS / "examples" / "apps"
GLUE = re.compile(r"\*\*Glue: (\d+) lines")
PART = re.compile(r"part of (\S+), which tests run")
MARK = "# qwf"
COUNTED = ("fastapi", "django", "flask")


def snippets() -> list[Snippet]:
    """All that stand on these pages."""
    return [one for page in sorted(PAGES.glob("*.md")) for one in find_snippets(page.read_text(), page.name)]


SHOWN = [one for one in snippets() if one.not_run is not None and PART.fullmatch(one.not_run)]


def marked(directory: Path) -> list[str]:
    """The lines of an app that it would not have without us."""
    files = sorted([*directory.rglob("*.py"), *directory.rglob("*.toml")])
    return [line for file in files for line in file.read_text().splitlines() if line.endswith(MARK)]


@pytest.mark.parametrize("framework", COUNTED)
def test_the_page_says_how_much_glue_there_is(framework: str) -> None:
    """The figure is that of the marked lines of the example, and its parts add up to it."""
    text = (PAGES / f"{framework}.md").read_text()
    (figure,) = GLUE.findall(text)
    told = text.partition("because of this package:")[2].partition(". They are marked")[0]
    assert int(figure) == len(marked(APPS / f"{framework}_app"))
    assert int(figure) == sum(map(int, re.findall(r"(?<!\w)(\d+)(?= )", told)))


def test_what_alembic_needs_is_two_lines() -> None:
    """In each app that has an `env.py` of its own."""
    (figure,) = GLUE.findall((PAGES / "alembic.md").read_text())
    environments = sorted(APPS.rglob("migrations/env.py"))
    assert [len(marked(one.parent)) for one in environments] == [int(figure)] * len(environments)
    assert len(environments) == 2


@pytest.mark.parametrize("framework", COUNTED)
def test_every_line_about_us_is_marked(framework: str) -> None:
    """An import of ours and a setter is glue; a name that is only used is what the app wanted to do."""
    files = [
        file
        for file in (APPS / f"{framework}_app").rglob("*.py")
        if "test" not in str(file.relative_to(APPS))
    ]
    ours = [line for file in files for line in file.read_text().splitlines() if "queue_workflows" in line]
    assert [line for line in ours if not line.endswith(MARK)] == []
    assert ours != []


@pytest.mark.parametrize("snippet", SHOWN, ids=lambda one: one.name)
def test_a_snippet_is_part_of_the_example(snippet: Snippet) -> None:
    """Line for line, as it stands there."""
    match = PART.fullmatch(snippet.not_run or "")
    assert match is not None
    assert snippet.body.rstrip("\n") in (APPS / match[1]).read_text()


def test_each_page_shows_its_own_example() -> None:
    """And there are such snippets on each."""
    apps = {one.page: {PART.fullmatch(one.not_run or "")[1].partition("/")[0]} for one in SHOWN}  # type: ignore[index]
    assert apps == {
        "fastapi.md": {"fastapi_app"},
        "django.md": {"django_app"},
        "flask.md": {"flask_app"},
        "alembic.md": {"fastapi_app"},
    }
