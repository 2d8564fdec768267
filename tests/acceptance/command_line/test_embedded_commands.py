"""Commands without a database of the user's: what is told, what is made, and how to look into it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from support.processes.embedded_users import alive, answers, processes_below, unset_environment, until
from support.suite import warm_starts

PATIENCE_S = 150


def qwf(directory: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return warm_starts.run(
        [*warm_starts.MODULE, *arguments],
        {**unset_environment(directory), **environ},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout_s=PATIENCE_S,
    )


@contextmanager
def serving(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`qwf db serve` under way, and the URL that it printed."""
    process = warm_starts.start(
        [*warm_starts.MODULE, "db", "serve"],
        unset_environment(directory),
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.slow
def test_the_embedded_server_is_told_in_one_line(directory: Path) -> None:
    """That one is made the first time, and used the next; the output itself stays clean."""
    home = f"{directory}/.qwf/postgres"
    first = qwf(directory, "db", "upgrade")
    assert first.returncode == 0, first.stderr
    assert first.stderr == f"qwf: making an embedded Postgres in {home}; QWF_DB_URL names another database\n"
    second = qwf(directory, "db", "current")
    assert (second.returncode, second.stdout.count("up to date")) == (0, 1)
    assert second.stderr == f"qwf: using the embedded Postgres in {home}; QWF_DB_URL names another database\n"
    until(lambda: processes_below(directory) == [], "all is gone")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["doctor", "db current", "db check", "db url"])
def test_looking_makes_no_database(directory: Path, command: str) -> None:
    """What only looks says that there is none yet, what makes it, and leaves nothing behind."""
    ended = qwf(directory, *command.split())
    assert ended.returncode == 78
    told = ended.stdout + ended.stderr
    assert f"no database is named, and there is no embedded one in {directory}/.qwf/postgres yet" in told
    assert "`qwf db upgrade`" in told
    assert list(directory.iterdir()) == []


def test_the_history_needs_no_database(directory: Path) -> None:
    """It is about the code."""
    ended = qwf(directory, "db", "history")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_serve_keeps_the_database_up_until_it_is_stopped(directory: Path, number: signal.Signals) -> None:
    """The URL works for other programs for as long as it runs, and leads nowhere afterwards."""
    with serving(directory) as (process, url):
        assert answers(url)
        printed = qwf(directory, "db", "url")
        assert printed.stdout.strip() == url
        assert "`qwf db serve` keeps it up" in printed.stderr
        assert answers(url)
        process.send_signal(number)
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "up until Ctrl-C; look into it with: " in told
    until(lambda: processes_below(directory) == [], "all is gone")
    with pytest.raises(psycopg.OperationalError):
        answers(url)


@pytest.mark.slow
def test_serve_brings_a_crashed_server_back(directory: Path) -> None:
    """Whoever wanted it up gets it up."""
    with serving(directory) as (process, url):
        (running,) = (directory / ".qwf").rglob("postmaster.pid")
        postmaster = int(running.read_text().splitlines()[0])
        os.kill(postmaster, signal.SIGKILL)
        until(lambda: not alive(postmaster), "the crash")

        def is_back() -> bool:
            try:
                return answers(url)
            except psycopg.OperationalError:
                return False

        until(is_back, "it is back")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_the_server_waits_for_the_next_command_until_it_is_stopped(directory: Path) -> None:
    """A second command finds the server that the first has started; `qwf db stop` leaves nothing."""
    waits = {"QWF_EMBEDDED_LINGER_S": "600"}
    assert qwf(directory, "db", "upgrade", **waits).returncode == 0
    (running,) = (directory / ".qwf").rglob("postmaster.pid")
    postmaster = int(running.read_text().splitlines()[0])
    assert qwf(directory, "db", "current", **waits).returncode == 0
    assert alive(postmaster)
    stopped = qwf(directory, "db", "stop")
    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (0, "", "stopped\n")
    until(lambda: processes_below(directory) == [], "all is gone")
    again = qwf(directory, "db", "stop")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "it did not run\n")


@pytest.mark.slow
def test_a_server_in_use_is_not_stopped(directory: Path) -> None:
    """The command says what to end first."""
    with serving(directory) as (process, url):
        ended = qwf(directory, "db", "stop")
        assert (ended.returncode, ended.stderr.count("\n")) == (69, 1)
        assert "is in use — end what uses it first, such as `qwf up`" in ended.stderr
        assert answers(url)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    until(lambda: processes_below(directory) == [], "all is gone")


@pytest.mark.parametrize("command", ["serve", "stop"])
def test_serve_is_for_the_embedded_database(directory: Path, command: str) -> None:
    """A named one is up, or not, without us."""
    ended = qwf(directory, "db", command, QWF_DB_URL="postgresql://127.0.0.1:1/none")
    assert ended.returncode == 78
    assert "a database is named (from QWF_DB_URL)" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"QWF_DATA_DIR": "/dev/null"}, "/dev/null is no directory"),
        ({"QWF_PG_BINDIR": "/nope"}, "/nope holds no Postgres server"),
    ],
)
def test_a_wrong_setting_is_one_line_and_78(directory: Path, environ: dict[str, str], says: str) -> None:
    """Nothing that a restart would mend."""
    ended = qwf(directory, "db", "upgrade", **environ)
    assert ended.returncode == 78
    line = ended.stderr.splitlines()[-1]
    assert says in line
    assert "--debug" not in line


@pytest.mark.slow
def test_a_program_s_own_connections_start_the_server(directory: Path) -> None:
    """`connect()` and `aconnect()` in a directory without any database: it is held until the program ends."""
    program = (
        "import asyncio, queue_workflows as qwf\n"
        "qwf.db.bootstrap()\n"
        "async def look():\n"
        "    async with await qwf.aconnect() as own:\n"
        "        return (await (await own.execute('SELECT count(*) FROM ingest_jobs')).fetchone())[0]\n"
        "with qwf.connect() as own:\n"
        "    qwf.enqueue_ingest_job('t', queue='fetch', conn=own)\n"
        "qwf.enqueue_ingest_job('t', queue='fetch')\n"
        "with qwf.connect(autocommit=True) as own:\n"
        "    print(own.autocommit, asyncio.run(look()), own.info.dbname)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env=unset_environment(directory),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (ended.returncode, ended.stdout) == (0, "True 2 qwf\n"), ended.stderr
    until(lambda: processes_below(directory) == [], "all is gone")
