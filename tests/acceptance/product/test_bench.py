"""The benchmarks run, and say so when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from support.rows.jobs import Jobs
from support.servers import pgbouncer
from support.suite import warm_starts
from support.suite.missing import missing

from queue_workflows.engine.forecast.plays import Span
from queue_workflows.repositories import NewIngestJob, enqueue_many

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
sys.path.append(str(SCRIPTS))

from bench import peers  # noqa: E402
from bench.forecasts.measures import figures as scores  # noqa: E402
from bench.forecasts.recorded import Answer  # noqa: E402
from bench.harness.figures import Figure, table  # noqa: E402
from bench.hook_scripts.suite import _is_complete  # noqa: E402
from bench.kills.accounts import account, watch_ends  # noqa: E402


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Beside no other queue, whatever is installed here."""
    return warm_starts.run(
        [sys.executable, str(SCRIPTS / "bench" / script), *arguments],
        os.environ | {"BENCH_PEERS": os.devnull},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout_s=500,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_soak_accounts_for_every_job(qwf_dsn: str) -> None:
    """Workers are killed, stopped and cut off, and every job ends once, by an attempt that wrote it down."""
    ran = run("soak.py", "--minutes", "0.1", "--seed", "7", "--dsn", qwf_dsn)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["every job is accounted for"]), ran


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_little_poison_is_told_from_good_jobs(qwf_dsn: str) -> None:
    """Nobody but the poison is blamed, and each of it says how it ended; so few say nothing of the time."""
    ran = run("poison.py", "--good", "40", "--poison", "4", "--bound", "1000", "--dsn", qwf_dsn)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["the bound is kept"]), ran


@pytest.mark.parametrize(
    "wrong",
    ["nothing", "given up", "fewer crashes", "missing", "not ended", "ended twice", "not in the ledger"],
)
def test_an_account_that_is_wrong_is_called_so(qwf_new_database, tmp_path: Path, wrong: str) -> None:
    """Each way in which a job can be lost or doubled shows in a line of its own."""
    dsn, ledger = qwf_new_database(), tmp_path / "ledger"
    watch_ends(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        jobs = Jobs("ingest", connection)
        made = enqueue_many([NewIngestJob(task_name="t", queue="fetch")] * 3, conn=connection)
        enqueued = {one.id for one in made}
        held = jobs.claim(limit=2 if wrong == "not ended" else 3)
        crashes = {"given up": 3, "fewer crashes": 2}.get(wrong, 0)
        for job in held[1:] if crashes else held:
            jobs.repository.complete(job)
        if crashes:
            connection.execute("UPDATE ingest_jobs SET crash_count = %s WHERE id = %s", [crashes, held[0].id])
            jobs.repository.mark_failed(held[0].id, "its worker died")
        ran = [(job.id, job.attempt) for job in held]
        if wrong == "missing":
            connection.execute("DELETE FROM ingest_jobs WHERE id = %s", [held[0].id])
        elif wrong == "ended twice":
            connection.execute("UPDATE ingest_jobs SET finished_at = now() WHERE id = %s", [held[0].id])
        elif wrong == "not in the ledger":
            ran[0] = (held[0].id, 2)
    ledger.write_text("".join(f"{job} {attempt}\n" for job, attempt in ran))
    found = account(dsn, ledger, enqueued)
    assert found.is_right == (wrong in ("nothing", "given up"))
    counted = {name: number for name, number in found.lines.items() if wrong in name}
    assert list(counted.values()) == ([] if wrong == "nothing" else [1])


@pytest.mark.parametrize(
    ("ratio", "at_most", "met"),
    [(1.0, False, True), (0.9, False, False), (0.9, True, True), (1.1, True, False)],
)
def test_a_missed_target_stands_in_the_table(ratio: float, at_most: bool, met: bool) -> None:
    """A target is a bound from below or from above."""
    figure = Figure("worker", "one", 1200, "jobs/s", "pgbench", 1000, ratio, 1.0, at_most)
    assert figure.met is met
    assert ("MISSED" in table([figure])) is not met


def test_where_no_other_queue_is_installed_none_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bench needs nothing but the engine and Postgres."""
    monkeypatch.setattr(peers, "PLACE", tmp_path)
    assert peers.installed() == {}
    found, missing_ones = peers.contenders()
    assert (found, sorted(missing_ones)) == (
        {},
        ["absurd", "chancy", "dbos", "graphile", "oban", "pgqueuer", "procrastinate"],
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cores", "0", "nine"], "--cores: 'nine' is no list of cores, such as 0-3,6"),
        (["--cores", "0", "9999"], "--cores: 9999 is not all among the cores that there are"),
        (["--dsn", "postgresql://localhost:1/x"], "the server cannot be used: connection failed"),
        (["--without", "nobody"], "--without: there is no 'nobody' among the queues that are measured"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(arguments: list[str], said: str) -> None:
    """Before anything is measured."""
    ran = run("beside.py", *arguments)
    assert (ran.returncode, said in ran.stderr.splitlines()[-1]) == (1, True), ran


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("dag.py", ("chain", "dispatch")),
        ("queue.py", ("worker", "wakes")),
        ("ingest.py", ("drain", "enqueue")),
        ("beside.py", ("drain", "enqueue")),
        ("web.py", ("pages", "tabs")),
        ("hooks.py", ("process",)),
        ("affinity.py", ("flat",)),
        pytest.param("dag.py", ("fan-out", "for-each", "diamonds"), marks=pytest.mark.nightly),
        pytest.param("queue.py", ("producers", "memory", "restart"), marks=pytest.mark.nightly),
        pytest.param("queue.py", ("latency",), marks=pytest.mark.nightly),
        pytest.param("queue.py", ("pooled", "idle"), marks=pytest.mark.nightly),
        pytest.param("ingest.py", ("head", "processes", "bulk"), marks=pytest.mark.nightly),
        pytest.param("ingest.py", ("start", "fairness", "asleep"), marks=pytest.mark.nightly),
        pytest.param("beside.py", ("long-drain", "start", "at-once", "steps"), marks=pytest.mark.nightly),
        pytest.param("web.py", ("filters", "large-runs", "first-load"), marks=pytest.mark.nightly),
        pytest.param("hooks.py", ("at-once", "shipped"), marks=pytest.mark.nightly),
        pytest.param("affinity.py", ("affinity",), marks=pytest.mark.nightly),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_a_quick_look(qwf_dsn: str, script: str, names: tuple[str, ...]) -> None:
    """Each measure comes to a figure; what it is worth depends on the machine, so nothing is asked of it.

    Only that there is something to it; but where all is fair nobody has waited. Measures share a process, for
    to import everything and to fill a database takes it longer than most of them. Some of each script are run
    on each change, the others by night.
    """
    if "pooled" in names and pgbouncer.PROGRAM is None:
        missing("pgbouncer is not installed")
    only = [word for name in names for word in ("--only", name)]
    ran = run(script, "--quick", "--json", *only, "--dsn", qwf_dsn)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)["figures"]
    assert {figure["measure"] for figure in figures} == set(names)
    assert all(figure["value"] > 0 or figure["measure"] == "fairness" for figure in figures)


def test_a_range_that_missed_counts_against_it() -> None:
    """What was not foretold does not, but how much that was is said."""
    held, missed = Span(1.0, 2.0, 3.0), Span(4.0, 6.0, 8.0)
    answers = [Answer("drain", held, 2.5), Answer("start", missed, 3.0), Answer("end", None, 1.0)]
    found = [(one.what, one.value, one.met) for one in scores("burst", answers)]
    assert found == [
        ("ranges that held it, 2 of 3 answers", 50.0, False),
        ("median error of the drain", pytest.approx(20.0), True),
        ("median error of the start", pytest.approx(100.0), None),
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_forecasts_are_scored_by_what_happened(qwf_dsn: str) -> None:
    """Real workers work a load off; how right it was depends on the machine, so nothing is asked of it."""
    ran = run("forecast.py", "--quick", "--json", "--only", "burst", "--dsn", qwf_dsn)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)["figures"]
    assert [one["what"].partition(",")[0] for one in figures][:2] == [
        "ranges that held it",
        "median error of the drain",
    ]
    assert 0 <= figures[0]["value"] <= 100


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_job_costs_is_counted(tmp_path: Path) -> None:
    """By statement and by record, and what is measured twice stands on one page."""
    file = tmp_path / "cost.json"
    ran = run("cost.py", "--quick", "--only", "enqueue-single", "--json", str(file))
    assert ran.returncode == 0, ran.stderr
    (cost,) = json.loads(file.read_text())["costs"]
    inserted = [one["count"] for one in cost["server"]["wal"] if one["relation"] == "pk_ingest_jobs"]
    assert sum(inserted) >= cost["jobs"]
    assert any("INSERT INTO ingest_jobs" in one["query"] for one in cost["server"]["statements"])
    page = run("cost.py", "--page", str(file), str(file))
    assert (page.returncode, page.stdout.count("\n## ")) == (0, 1), page


@pytest.mark.parametrize(
    ("file", "instead"),
    [
        (None, ""),
        ("responses/index.jsonl", '{"resourceType": "image"}\n'),
        ("responses/index.jsonl", "no json"),
        ("consolelog/console.jsonl", '{"text": "page 4 is here"}\n'),
        ("title/title.txt", "Page 4"),
        ("htmltotext/htmltotext.txt", "nothing"),
        ("screenshot/screenshot.png", "GIF8"),
    ],
)
def test_a_page_of_a_suite_counts_only_if_it_is_whole(tmp_path: Path, file: str | None, instead: str) -> None:
    """A runner that loses a part of a page is not quicker for it."""
    files = {
        "responses/index.jsonl": '{"resourceType": "document"}\n',
        "consolelog/console.jsonl": '{"text": "page 3 is here"}\n',
        "title/title.txt": "Page 3",
        "htmltotext/htmltotext.txt": "Words of page 3.",
        "screenshot/screenshot.png": "\x89PNG",
    }
    for name, content in (files | ({file: instead} if file else {})).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="latin-1")
    assert _is_complete(tmp_path, 3) is (file is None)
    (tmp_path / "title" / "title.txt").unlink()
    assert not _is_complete(tmp_path, 3)
