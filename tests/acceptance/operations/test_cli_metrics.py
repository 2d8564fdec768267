"""`qwf metrics serve`, scraped as Prometheus does."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.processes.commands import qwf_here
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.schemas import qwf, start_qwf

from queue_workflows.repositories import IngestJobRepository, NewIngestJob
from queue_workflows.telemetry.names import FIGURES

parser = pytest.importorskip("prometheus_client.parser")


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the URL that it prints."""
    process = start_qwf("--db", options[0], "metrics", "serve", "--port", "0", *options[1:])
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def scraped(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """What Prometheus' own parser reads: values by their labels' values, for each metric."""
    with urllib.request.urlopen(url, timeout=150) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = answer.read().decode()
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in parser.text_string_to_metric_families(text)
    }


@pytest.mark.slow
def test_it_is_scraped_until_it_is_told_to_stop(qwf_dsn):
    """Every figure of the table, in a form that a real parser takes; a second copy is refused in one line."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        jobs = IngestJobRepository(connection)
        jobs.enqueue_many([NewIngestJob(task_name="a", queue="fetch") for _ in range(3)])
        jobs.enqueue('b "quoted"', queue="load", delay=60)
    with serving(qwf_dsn) as (process, url):
        found = scraped(url)
        assert set(found) <= {metric.prometheus for metric in FIGURES}
        assert found["qwf_database_up"] == {(): 1.0}
        assert found["qwf_queue_jobs"]["ingest", "fetch", "queued"] == 3
        assert found["qwf_queue_jobs"]["ingest", "load", "scheduled"] == 1
        assert found["qwf_outbox_events"] == {("pending",): 0, ("poisoned",): 0}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.removesuffix("metrics"), timeout=150)
        head = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(head, timeout=150) as answer:
            assert (answer.status, answer.read()) == (200, b"")
        port = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/metrics", url)
        assert port is not None
        second = qwf("--db", qwf_dsn, "metrics", "serve", "--port", port[1])
        assert (second.returncode, second.stdout) == (78, "")
        (line,) = second.stderr.splitlines()
        assert line.startswith(f"qwf: the metrics server cannot listen on 127.0.0.1:{port[1]}: ")
        process.send_signal(signal.SIGINT)
        assert process.wait(150) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_a_database_that_is_away_is_a_figure(tmp_path):
    """The endpoint answers all the same, with that and nothing else."""
    with serving(f"postgresql://nobody@/nowhere?host={tmp_path}") as (process, url):
        assert scraped(url) == {"qwf_database_up": {(): 0.0}}
        process.terminate()
        assert process.wait(150) == 0
        assert process.stderr is not None
        assert "no figures: " in process.stderr.read()


@pytest.mark.parametrize(
    "options",
    [["--port", "70000"], ["--port", "http"], ["--host", ""], ["--host", "[::1"], ["--every", "-1"]],
)
def test_nonsense_is_a_usage_error(options: list[str]):
    assert "see `qwf metrics serve --help`" in qwf_here("metrics", "serve", *options, status=2).stderr


def test_an_address_of_ipv6_may_stand_in_brackets(qwf_dsn):
    """And the URL has it in brackets either way."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as exc:
        pytest.skip(f"no IPv6 here: {exc}")
    with serving(qwf_dsn, "--host", "[::1]") as (_, url):
        assert url.startswith("http://[::1]:")
        assert scraped(url)["qwf_database_up"] == {(): 1.0}


def test_a_host_that_nobody_knows_is_one_line(qwf_dsn):
    told = qwf_here("--db", qwf_dsn, "metrics", "serve", "--host", "no such.invalid", status=2)
    assert "is no address" in told.stderr
    told: Any = qwf_here("--db", qwf_dsn, "metrics", "serve", "--host", "nowhere.invalid", status=78)
    assert told.stderr.startswith("qwf: the metrics server cannot listen on nowhere.invalid:9464: ")
