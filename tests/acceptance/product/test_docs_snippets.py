"""What the README and the docs show is what happens: every snippet runs, a page at a time.

`support.processes.snippets` says how; a unit test proves that it goes red for what is broken.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL
from support.processes import snippets
from support.processes.environments import environment_without
from support.suite.warm_command import warm_qwf

from queue_workflows.db.connections.dsn import parse_dsn

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# On a machine that is busy with other tests each command takes ten seconds; some pages have forty.
PAGE_TIMEOUT_S = 1200


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def snippets_of(page: Path) -> list[snippets.Snippet]:
    return snippets.find_snippets(page.read_text(encoding="utf-8"), name_of(page))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a `qwf` that need not import everything each time."""
    with warm_qwf(tmp_path_factory.mktemp("commands")) as command:
        yield command.parent


def has_roles(page: Path) -> bool:
    """Whether something runs on beside the commands of a page."""
    return any(one.background for one in snippets_of(page))


def with_slow_watchers(commands: Path, home: Path) -> Path:
    """A directory with a `qwf` that takes its time for `watch`.

    Forked, it would be quicker than the start of a worker in the place of one that was killed, and say so.
    """
    place = home / "commands"
    place.mkdir()
    real, quick = Path(sys.executable).with_name("qwf"), commands / "qwf"
    watches = f'case " $* " in *" watch "*) exec "{real}" "$@" ;; esac'
    (place / "qwf").write_text(f'#!/bin/sh\n{watches}\nexec "{quick}" "$@"\n')
    (place / "qwf").chmod(0o755)
    return place


def environment(home: Path, dsn: str, commands: list[Path]) -> dict[str, str]:
    """A reader's: the database set, the commands on the path, nothing of this checkout or of pytest."""
    hidden = ("QWF_", "AI_LEADS_", "PG", "PYTEST_", "PYTHON")
    return {
        **environment_without(*hidden, locks=home / "locks"),
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "PATH": os.pathsep.join([*map(str, commands), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "QWF_DB_URL": dsn,
        "QWF_TEST_DB_URL": dsn,
        "SHOP_DB_URL": URL.create("postgresql+psycopg", query=parse_dsn(dsn)).render_as_string(False),
        "SNIPPETS_EXPORTED": str(home / "exported"),
    }


# Pages that start servers and workers, and wait for what these do.
LONG = (
    "README.md",
    "docs/deploy/migrations.md",
    "docs/deploy/rolling-deploys.md",
    "docs/how-to/crawl.md",
    "docs/how-to/enqueue.md",
    "docs/how-to/limit.md",
    "docs/how-to/lock.md",
    "docs/how-to/operate-runs.md",
    "docs/how-to/operate.md",
    "docs/how-to/run-gpu-workers.md",
    "docs/how-to/run-hooks.md",
    "docs/how-to/run-workers.md",
    "docs/how-to/run-workflows.md",
    "docs/how-to/schedule.md",
    "docs/how-to/test.md",
    "docs/how-to/use-models.md",
    "docs/reference/hook-records.md",
    "docs/reference/mcp.md",
    "docs/tutorial.md",
)


@pytest.mark.timeout(PAGE_TIMEOUT_S + 60)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if name_of(page) in LONG else [])
        for page in PAGES
        if snippets_of(page)
    ],
    ids=name_of,
)
def test_every_snippet_of_the_page_runs(page, tmp_path, qwf_new_database, commands):
    """The page's snippets do what the page says, in an empty directory, on a migrated, empty database."""
    dsn = qwf_new_database()
    reader = tmp_path / "reader"
    reader.mkdir()
    quick = with_slow_watchers(commands, tmp_path) if has_roles(page) else commands
    done = subprocess.run(
        [sys.executable, snippets.__file__, str(page), name_of(page)],
        cwd=reader,
        env=environment(tmp_path, dsn, [quick]),
        capture_output=True,
        text=True,
        timeout=PAGE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    declared = [one for one in snippets_of(page) if one.not_run is not None]
    assert len(done.stdout.splitlines()) == len(declared)


EXEMPT = [one for page in PAGES for one in snippets_of(page) if one.not_run is not None]
# A page that newly hides a snippet from the tests is named here, so that somebody has looked at it.
EXEMPT_PAGES = [
    "README.md",
    "docs/benchmarks.md",
    "docs/cost-of-a-job.md",
    "docs/deploy/containers.md",
    "docs/deploy/from-the-sql-chain.md",
    "docs/deploy/high-availability.md",
    "docs/deploy/least-privilege.md",
    "docs/deploy/migrations.md",
    "docs/deploy/poolers.md",
    "docs/deploy/rolling-deploys.md",
    "docs/how-to/crawl.md",
    "docs/how-to/dashboard.md",
    "docs/how-to/durable/functions.md",
    "docs/how-to/frameworks/alembic.md",
    "docs/how-to/frameworks/django.md",
    "docs/how-to/frameworks/fastapi.md",
    "docs/how-to/frameworks/flask.md",
    "docs/how-to/operating/forecasts.md",
    "docs/how-to/run-chaos.md",
    "docs/how-to/run-gpu-workers.md",
    "docs/how-to/run-hooks.md",
    "docs/how-to/run-workers.md",
    "docs/how-to/run-workflows.md",
    "docs/how-to/test.md",
    "docs/reference/mcp.md",
    "docs/tutorial.md",
]


def test_only_known_pages_have_snippets_that_are_not_run():
    """Exempt snippets are few, and each says why."""
    assert all(len(one.not_run or "") > 10 for one in EXEMPT)
    assert sorted({one.page for one in EXEMPT}) == EXEMPT_PAGES


@pytest.mark.parametrize("snippet", EXEMPT, ids=lambda one: one.name)
def test_a_snippet_that_is_not_run(snippet):
    """Reported as skipped, by name and with its reason, so that no snippet is passed over in silence."""
    pytest.skip(f"{snippet.name} ({snippet.language}) is not run: {snippet.not_run}")
