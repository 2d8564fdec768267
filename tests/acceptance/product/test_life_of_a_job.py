"""The page that names the files on a job's way is compared with what real workers execute."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import worker_command, worker_environment
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, settle, start

from queue_workflows.repositories import IngestJobRepository, NewIngestJob

PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "life-of-a-job.md"
SOURCE: Final = Path(__file__).parents[3] / "src" / "queue_workflows"
MANY: Final = "An ingest job, many at once"
# How many files a reader opens to follow one job.
MOST: Final = {"A node job": 20, "An ingest job, one at a time": 22, MANY: 22}
ASKED: Final = "What is asked on the way"
NODES: Final = {"name": "row", "nodes": [{"id": f"n{number}", "module": "node"} for number in range(20)]}


def named_in(section: str) -> list[str]:
    """The files that a section of the page lists, in its order."""
    _, text = PAGE.read_text().split(f"\n## {section}\n")
    lines = [line for line in text.split("\n## ")[0].splitlines() if re.match(r"(\d+\.|-) `", line)]
    return [path for line in lines for path in re.findall(r"`([\w/]+\.py)`", line)]


def followed(dsn: str, out: Path, *options: str, jobs: int, looks: int = 3) -> set[str]:
    """What a worker executes each time that it comes round to so many jobs."""
    environment = worker_environment(
        dsn,
        {"QWF_APP": "support.tasks.followed_tasks", "FOLLOW": f"{jobs} {looks}", "FOLLOWED": str(out)},
    )
    done = subprocess.run(
        worker_command(*options, "--drain"), env=environment, capture_output=True, text=True, timeout=150
    )
    assert (done.returncode, done.stderr) == (0, done.stderr), done.stderr[-2000:]
    return set(json.loads(out.read_text()))


@pytest.fixture
def ready(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def queue_jobs(connection: psycopg.Connection, section: str) -> tuple[list[str], int]:
    """Enough jobs for a worker of that section; its options, and how many jobs to look at at a time."""
    if section == "A node job":
        run = start(connection, NODES)
        settle(dispatcher(connection, NODES))
        assert run
        return ["--queue", "cpu"], 4
    many = section == MANY
    rows = [NewIngestJob(task_name="follow", queue="fetch") for _ in range(3200 if many else 20)]
    IngestJobRepository(connection).enqueue_many(rows)
    return ["--concurrency", "4" if many else "1"], 400 if many else 4


@pytest.mark.slow
@pytest.mark.parametrize("section", MOST)
def test_the_page_names_what_a_job_goes_through(
    qwf_dsn: str, ready: psycopg.Connection, tmp_path: Path, section: str
) -> None:
    """No file more than it says, each of its steps, and no more steps than a reader is promised."""
    way, asked = named_in(section), named_in(ASKED)
    options, jobs = queue_jobs(ready, section)
    # Many at once go on while the worker does other things, which a look may show.
    looks = 6 if section == MANY else 3
    executed = followed(qwf_dsn, tmp_path / "files.json", *options, jobs=jobs, looks=looks)
    assert executed - set(way) - set(asked) == set()
    assert set(way) - executed == set()
    assert len(way) == len(set(way)) <= MOST[section]


def test_all_that_is_named_is_there() -> None:
    """Also what an ordinary job goes past, each once."""
    asked = named_in(ASKED)
    assert [path for path in asked if not (SOURCE / path).is_file()] == []
    assert len(asked) == len(set(asked))
    assert not {path for section in MOST for path in named_in(section)} & set(asked)
