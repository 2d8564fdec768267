"""`--here` where it does not go well: Ctrl-C at any moment, two at once, accounts with few rights.

Of `qwf hooks run` as of `qwf run start`: one line says what became of the run, no process is left behind.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.connections.kept import own_connection
from support.processes.embedded_users import alive, processes_below, unset_environment, until
from support.processes.workers import worker_environment
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.suite import warm_starts

PATIENCE_S = 240
INTERRUPTED = 130
HOOKS = ["hooks", "run", "Page", "--dir", "plugins", "--here"]
RUN = ["run", "start", "wait.yaml", "--here"]
# Says that it is there, and hears no SIGTERM.
DEAF = ("trap '' TERM", "echo $$ > pid.part", "mv pid.part pid", "while :; do sleep 0.1; done")
BEGUN_BY = {"hooks": "data/runs/*/a/pid", "run": "a.begun"}


def put(place: Path, hook: str, *lines: str) -> None:
    path = place / "plugins" / hook
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)


def waits(place: Path, *, module: str = "deaf") -> None:
    """A workflow of one job that runs until it is ended."""
    (place / "wait.yaml").write_text(
        "name: wait\n"
        f"nodes: [{{id: wait, module: {module}, inputs: {{directory: {{$value: '{place}'}}, name: a}}}}]\n",
        encoding="utf-8",
    )


@pytest.fixture
def place(directory: Path, qwf_dsn: str) -> Iterator[Path]:
    """A directory with a hook and a workflow that go on for ever; at its end nothing may run there."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
    put(directory, "a/on_Page__10_a.sh", *DEAF)
    waits(directory)
    yield directory
    while Command.left:
        # Its children go with it.
        Command.left.pop().process.kill()


class Command:
    """A command of a terminal of its own; what a test leaves of it is ended."""

    left: ClassVar[list[Command]] = []

    def __init__(self, words: list[str], place: Path, environment: dict[str, str]) -> None:
        self.process = warm_starts.start(
            [*warm_starts.MODULE, *words],
            environment,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.left.append(self)

    def interrupt(self) -> None:
        """Ctrl-C goes to all that run in the foreground, children included."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self) -> tuple[int, list[str], list[str]]:
        """Its status, its output, and what it said beside that."""
        try:
            out, said = self.process.communicate(timeout=PATIENCE_S)
        finally:
            self.process.kill()
        return self.process.returncode, out.splitlines(), said.splitlines()


def on_database(dsn: str, place: Path, **settings: str) -> dict[str, str]:
    return {**worker_environment(dsn), "QWF_DATA_DIR": str(place / "data"), "QWF_GRACE_S": "1", **settings}


def on_embedded(place: Path, **settings: str) -> dict[str, str]:
    """Of a user who has no database."""
    environment = worker_environment("") | unset_environment(place)
    environment["PYTHONPATH"] += f":{Path(__file__).parents[2]}"
    del environment["QWF_DB_URL"]
    return {
        **environment,
        "QWF_APP": "support.tasks.worker_tasks",
        "QWF_DATA_DIR": str(place / "data"),
        "QWF_GRACE_S": "1",
        **settings,
    }


def open_run(said: list[str]) -> bool:
    """Whether the one remark is that the run is open, whatever had to be killed on a busy machine."""
    remarks = [line for line in said if not line.startswith(("qwf: making", "qwf: using"))]
    remarks = [line for line in remarks if not line.endswith("did not stop in time")]
    return len(remarks) == 1 and "is not over: it goes on where" in remarks[0]


# Both end by the code of one command, whose processes take seconds to start.
each_command = pytest.mark.parametrize(
    "words", [pytest.param(HOOKS, marks=pytest.mark.slow), RUN], ids=["hooks", "run"]
)


@each_command
def test_ctrl_c_of_a_terminal(qwf_dsn: str, place: Path, words: list[str]) -> None:
    """It reaches the children as well, and is said once; the job is given back."""
    waits(place, module="polite")
    put(place, "a/on_Page__10_a.sh", *DEAF[1:])
    command = Command(words, place, on_database(qwf_dsn, place))
    until(lambda: list(place.glob(BEGUN_BY[words[0]])), "the job runs")
    command.interrupt()
    status, _, said = command.ended()
    assert status == INTERRUPTED
    assert open_run(said), said
    with psycopg.connect(qwf_dsn) as connection:
        (job,) = connection.execute(
            "SELECT status, failures FROM workflow_node_jobs WHERE kind = 'task' AND started_at IS NOT NULL"
        ).fetchall()
    assert job == ("queued", 0)


@pytest.mark.slow
@each_command
def test_a_second_ctrl_c_waits_for_nothing(qwf_dsn: str, place: Path, words: list[str]) -> None:
    """Neither for a job that hears nothing nor for a grace of an hour; the hook is gone too."""
    command = Command(words, place, on_database(qwf_dsn, place, QWF_GRACE_S="3600"))
    until(lambda: list(place.glob(BEGUN_BY[words[0]])), "the job runs")
    pids = [int(path.read_text()) for path in place.glob(BEGUN_BY["hooks"])]
    command.interrupt()
    until(lambda: heard(command.process.pid), "the first is heard")
    command.interrupt()
    status, _, said = command.ended()
    assert status == INTERRUPTED
    assert open_run(said), said
    assert not any(alive(pid) for pid in pids)


def heard(pid: int) -> bool:
    """Whether a process has taken the signal that was sent to it."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    pending = [line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return not any(int(mask, 16) & 1 << (signal.SIGINT - 1) for mask in pending)


def hears(pid: int) -> bool:
    """Whether a command handles its signals: what comes before that ends Python itself as it starts."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(mask, 16) & 1 << (signal.SIGTERM - 1))


@each_command
@pytest.mark.parametrize("moment", ["at once", "roles"])
def test_ctrl_c_before_anything_runs(qwf_dsn: str, place: Path, words: list[str], moment: str) -> None:
    """While it starts, or while its roles do."""
    command = Command(words, place, on_database(qwf_dsn, place))
    if moment == "at once":
        until(lambda: hears(command.process.pid), "it hears")
    else:
        until(lambda: begun(qwf_dsn), "there is a run")
    command.interrupt()
    status, _, said = command.ended()
    assert status == INTERRUPTED, said
    assert len(said) == 1, said
    assert said[0] == "qwf: interrupted" or open_run(said)


def begun(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        return bool(connection.execute("SELECT FROM workflow_runs").rowcount)


# Of what follows each case is tried with one of the commands: which it is, is nothing to it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "moment"),
    # By night, for test_cli_hooks_here.py stops one at work on each change.
    [(RUN, "starts"), pytest.param(HOOKS, "works", marks=pytest.mark.nightly)],
    ids=["starts", "works"],
)
def test_ctrl_c_on_the_embedded_server(place: Path, words: list[str], moment: str) -> None:
    """While the server is made, and twice while a job runs: it goes too."""
    command = Command(words, place, on_embedded(place, QWF_GRACE_S="3600"))
    if moment == "starts":
        until((place / "data").exists, "it begins to make one")
        command.interrupt()
    else:
        until(lambda: list(place.glob(BEGUN_BY[words[0]])), "the job runs")
        command.interrupt()
        until(lambda: heard(command.process.pid), "the first is heard")
        command.interrupt()
    status, _, said = command.ended()
    assert status == INTERRUPTED, said
    told = [line for line in said if not line.startswith(("qwf: making", "qwf: using"))]
    assert len(told) == 1, said
    assert told[0] == "qwf: interrupted" or open_run(said)
    until(lambda: processes_below(place) == [], "all is gone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "where"),
    [(RUN, "database"), pytest.param(HOOKS, "embedded", marks=pytest.mark.nightly)],
    ids=["database", "embedded"],
)
def test_of_two_at_once_one_may_be_stopped(qwf_dsn: str, place: Path, words: list[str], where: str) -> None:
    """The other goes on to its end, on one database as on one embedded server."""
    environment = on_database(qwf_dsn, place) if where == "database" else on_embedded(place)
    ends = (f"echo x >> {place}/begun", f"while [ ! -e {place}/go ]; do sleep 0.1; done")
    put(place, "a/on_Page__10_a.sh", *ends)
    (place / "wait.yaml").write_text(
        "name: wait\nnodes: [{id: a, type: wait, seconds: 3}, {id: b, module: echo, depends_on: [a]}]\n",
        encoding="utf-8",
    )
    first = Command(words, place, environment)
    second = Command(words, place, environment)
    for command in (first, second):
        assert command.process.stdout
        assert command.process.stdout.readline()
    first.interrupt()
    status, _, said = first.ended()
    assert (status, open_run(said)) == (INTERRUPTED, True), said
    (place / "go").touch()
    status, told, said = second.ended()
    assert status == 0, said
    assert told[-1].endswith("run completed")


@pytest.mark.slow
def test_two_at_once_both_end(qwf_dsn: str, place: Path) -> None:
    """On one embedded server that both begin to make; it is gone with the last."""
    put(place, "a/on_Page__10_a.sh", "true")
    (place / "wait.yaml").write_text("name: wait\nnodes: [{id: b, module: echo}]\n", encoding="utf-8")
    both = [Command(words, place, on_embedded(place)) for words in (RUN, HOOKS)]
    for command in both:
        status, told, said = command.ended()
        assert status == 0, said
        assert told[-1].endswith("run completed")
        assert [line for line in said if "embedded Postgres" not in line] == []
    until(lambda: processes_below(place) == [], "all is gone")


@contextmanager
def account(dsn: str, *, owns: bool) -> Iterator[str]:
    """A user who may make neither roles nor databases, and may have this database as its own."""
    user, word = sql.Identifier(f"plain_{secrets.token_hex(3)}"), secrets.token_hex(8)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB PASSWORD {}").format(user, word)
        )
        try:
            if owns:
                admin.execute(
                    sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(admin.info.dbname), user)
                )
            yield make_conninfo(dsn, user=user.as_string(admin).strip('"'), password=word)
        finally:
            admin.execute(
                sql.SQL("ALTER DATABASE {} OWNER TO CURRENT_USER").format(sql.Identifier(admin.info.dbname))
            )
            admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(user))
            admin.execute(sql.SQL("DROP ROLE {}").format(user))


@pytest.mark.slow
def test_an_account_that_may_make_no_roles(qwf_new_database, place: Path) -> None:
    """Its own database is all that is needed."""
    put(place, "a/on_Page__10_a.sh", "true")
    (place / "wait.yaml").write_text("name: wait\nnodes: [{id: b, module: echo}]\n", encoding="utf-8")
    with account(qwf_new_database(template=False), owns=True) as dsn:
        status, told, said = Command(HOOKS, place, on_database(dsn, place)).ended()
    assert (status, said) == (0, [])
    assert told[-1].endswith("run completed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "is_migrated", "lacks"),
    [(RUN, True, "may not read"), (HOOKS, False, "lacks the CREATE right")],
    ids=["migrated", "empty"],
)
def test_an_account_without_rights(
    qwf_new_database, place: Path, words: list[str], *, is_migrated: bool, lacks: str
) -> None:
    """One line that says what it may not, and nothing runs."""
    with account(qwf_new_database(template=is_migrated), owns=False) as dsn:
        status, told, said = Command(words, place, on_database(dsn, place)).ended()
    assert (status, told, len(said)) == (78, [], 1), said
    assert lacks in said[0]
