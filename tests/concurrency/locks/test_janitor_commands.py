"""`qwf janitor` and the janitor of a supervisor, as shipped: real processes, what they say and end with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import psycopg
import pytest
from support.apps.leftovers import HANG, PLACE, Leftovers
from support.processes.commands import qwf_here
from support.processes.programs import UNSHARE, Running, environment, gone, pid_namespace
from support.processes.supervised import Supervised
from support.processes.workers import patiently, until
from support.rows.runs import start
from support.suite import warm_starts

from queue_workflows.host.locks.lock import HostLock, lock_file_name

TESTS = Path(__file__).parents[2]
QWF = [sys.executable, "-m", "queue_workflows"]
APP = [*QWF, "--app", "support.apps.leftovers"]


class Machine:
    """One with things of a host app, and a directory for their locks."""

    def __init__(self, place: Path) -> None:
        self.leftovers = Leftovers(place)
        self.leftovers.make()
        self.locks = place / "locks"
        self.locks.mkdir()
        self.env = {
            PLACE: str(place),
            "QWF_LOCK_DIR": str(self.locks),
            "QWF_DATA_DIR": str(place / "data"),
            "PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(TESTS)]),
        }

    def owner(self, name: str, *prefix: str) -> Running:
        return Running([*prefix, *self.leftovers.owner(name, self.locks)])

    def said(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return warm_starts.run(command, environment({**self.env, **(env or {})}), **pipes)

    def supervisor(self, dsn: str, *options: str, prefix: tuple[str, ...] = ()) -> Supervised:
        command = [*prefix, *APP, "supervisor", "--worker", "fetch", "--no-spare", *options]
        return Supervised(command, dsn, env=self.env)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_command_reaps_what_a_killed_owner_left(machine: Machine) -> None:
    """What lives stays; without a database, and `--json` says it all."""
    machine.leftovers.make("lost-1")
    with machine.owner("live-1") as owner:
        assert owner.line() == "has it"
        done = machine.said(
            *APP, "janitor", "--once", "--json", env={"QWF_DB_URL": "postgresql://x@127.0.0.1:1/x"}
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["status"], said["failures"], said["directories"]) == (0, [], [])
        verdicts = sorted((one["kind"], one["name"], one["deed"], one["pid"]) for one in said["verdicts"])
        assert verdicts == [("thing", "live-1", "leave", owner.pid), ("thing", "lost-1", "reaped", None)]
        assert machine.leftovers.left() == ["live-1"]
        assert {file.name for file in machine.locks.glob("*.hostlock")} == {lock_file_name("live-1")}


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--once", "--json"], ["--once"], ["--dry-run", "--json"]])
def test_what_a_host_app_prints_is_no_part_of_the_answer(machine: Machine, options: list[str]) -> None:
    """Its discovery, its teardown and their commands print on stderr; the answer alone is on stdout."""
    machine.leftovers.make("chatty-1")
    done = machine.said(*APP, "janitor", *options)
    assert (done.returncode, "from" in done.stdout, "from the discovery" in done.stderr) == (0, False, True)
    if "--once" in options:
        assert "from the teardown" in done.stderr
        assert "from its command" in done.stderr
    if "--json" in options:
        (verdict,) = json.loads(done.stdout)["verdicts"]
        assert verdict["name"] == "chatty-1"


def test_nothing_is_ended_while_the_directory_of_the_locks_is_missing(machine: Machine) -> None:
    """An owner lives whose lock was removed with it; the command says so, and does not make the directory."""
    machine.leftovers.make("lost-1")
    with machine.owner("live-1") as owner:
        assert owner.line() == "has it"
        shutil.rmtree(machine.locks)
        done = machine.said(*APP, "janitor", "--once", "--json")
    deeds = {one["name"]: one["deed"] for one in json.loads(done.stdout)["verdicts"]}
    assert (done.returncode, deeds) == (1, {"live-1": "skip", "lost-1": "skip"})
    assert "the directory of the locks, is not there: nothing is ended until it is" in done.stderr
    assert (machine.leftovers.torn_down(), machine.locks.exists()) == ([], False)


@pytest.mark.slow
def test_what_cannot_be_reaped_is_the_status(machine: Machine) -> None:
    """And a dry run changes nothing."""
    machine.leftovers.make("raising-1")
    dry = machine.said(*APP, "janitor", "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "1 reap\n")
    assert dry.stdout.splitlines()[1].split() == ["thing", "raising-1", "reap", "it", "has", "no", "lock"]
    assert machine.leftovers.torn_down() == []
    done = machine.said(*APP, "janitor", "--once")
    assert done.returncode == 1
    assert "raising-1  failed  RuntimeError: raising-1 does not want to end" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--every", "0"], "--every"),
        (["--onec"], "No such option '--onec'"),
        (["--json"], "--json goes with --once or --dry-run"),
        (["now"], "unexpected extra argument"),
    ],
)
def test_a_wrong_command_line_is_said_in_one_line(options: list[str], words: str) -> None:
    """With status 2."""
    said = qwf_here("janitor", *options, status=2).stderr
    assert (said.count("\n"), words in said) == (1, True), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "env", "words"),
    [
        ([*QWF, "janitor", "--once"], {}, "no resource kind is registered"),
        ([*APP, "janitor", "--reap", "no", "x", "0", "1"], {}, "there is no resource kind 'no'"),
        ([*APP, "janitor", "--reap", "thing", "x", "99", "98"], {}, "there is no lock to hold"),
        ([*APP, "janitor", "--once"], {"QWF_LOCK_DIR": "/dev/null"}, "/dev/null"),
    ],
)
def test_a_wrong_set_up_is_said_in_one_line(
    machine: Machine, command: list[str], env: dict[str, str], words: str
) -> None:
    """With what to do about it, and status 78."""
    done = machine.said(*command, env=env)
    assert (done.returncode, done.stderr.count("\n"), words in done.stderr) == (78, 1, True), done.stderr


@pytest.mark.slow
def test_two_of_them_run_on_until_they_are_stopped(machine: Machine) -> None:
    """They share the work; a signal ends each with 0, and what it is at is finished."""
    command = [*APP, "janitor", "--every", "0.2"]
    with Running(command, env=machine.env) as one, Running(command, env=machine.env) as other:
        machine.leftovers.make("lost-1", "lost-2", "lost-3")
        patiently(lambda: machine.leftovers.left() == [])
        patiently(lambda: {one.pid, other.pid} <= machine.leftovers.discoverers())
        machine.leftovers.gate.touch()
        machine.leftovers.make("gated-1")
        patiently(lambda: "gated-1" in machine.leftovers.torn_down())
        one.process.send_signal(signal.SIGINT)
        other.process.send_signal(signal.SIGTERM)
        machine.leftovers.gate.unlink()
        assert (one.status(), other.status()) == (0, 0)
    assert machine.leftovers.left() == []
    assert sorted(machine.leftovers.torn_down()) == ["gated-1", "lost-1", "lost-2", "lost-3"]


@pytest.mark.slow
def test_a_killed_janitor_leaves_no_reaper(machine: Machine) -> None:
    """Its reaper ends with it, and before that what the teardown had started; then the lock is free."""
    machine.leftovers.make("spawning-1")
    with Running([*APP, "janitor"], env=machine.env) as janitor:
        family = patiently(
            lambda: len(found := psutil.Process(janitor.pid).children(recursive=True)) > 1 and found
        )
        assert machine.leftovers.torn_down() == ["spawning-1"]
        claim = json.loads((machine.locks / lock_file_name("spawning-1")).read_text())
        assert (claim["pid"], claim["note"]) == (janitor.pid, "a janitor, reaping")
        janitor.process.kill()
        janitor.status()
        lock = HostLock("spawning-1", directory=machine.locks)
        lock.acquire(timeout_s=60)
        reaper, *others = family
        assert [one.name() for one in others if not gone(one.pid)] == []
        until(lambda: gone(reaper.pid))  # a process that ends lets go of its files first
        lock.release()
    assert machine.leftovers.left() == ["spawning-1"]


@pytest.mark.slow
def test_the_supervisor_has_a_janitor_that_reaps(machine: Machine, qwf_dsn: str) -> None:
    """By itself, because the app has things; it comes back when it is killed, and ends with the rest."""
    machine.leftovers.make("lost-1")
    with machine.owner("live-1") as owner, machine.supervisor(qwf_dsn) as supervisor:
        assert owner.line() == "has it"
        janitor = int(supervisor.until(r"janitor/1: started, pid (\d+)")[1])
        supervisor.until("thing lost-1: reaped")
        owner.process.kill()
        owner.status()
        os.kill(janitor, signal.SIGKILL)
        supervisor.until(r"janitor/1: pid \d+ killed by SIGKILL")
        supervisor.until("thing live-1: reaped")
        assert supervisor.stop() == 0
        assert all(gone(pid) for pid in supervisor.pids)
    assert machine.leftovers.left() == []


@pytest.mark.slow
def test_a_janitor_that_hangs_is_replaced(machine: Machine, qwf_dsn: str, tmp_path: Path) -> None:
    """A discovery that does not come back silences it; the supervisor kills it, and the next one works."""
    hang = tmp_path / "hang"
    hang.touch()
    machine.env |= {HANG: str(hang), "QWF_STALE_HEARTBEAT_S": "5"}
    with Supervised([*APP, "supervisor", "--janitor"], qwf_dsn, env=machine.env) as supervisor:
        first = int(supervisor.until(r"janitor/1: started, pid (\d+)")[1])
        supervisor.until("hung: its discovery takes longer than 0.2 s")
        supervisor.until(rf"janitor/1: .*{first}.* no sign of life for \d+ s")
        hang.unlink()
        assert int(supervisor.until(r"janitor/1: started, pid (\d+)", 120)[1]) != first
        machine.leftovers.make("lost-1")
        supervisor.until("thing lost-1: reaped")
        assert supervisor.stop() == 0
        assert all(gone(pid) for pid in supervisor.pids)


@pytest.mark.slow
def test_up_has_a_janitor_where_there_is_something_to_look_after(machine: Machine, qwf_dsn: str) -> None:
    """By itself, below the same log as the others; it ends with them."""
    machine.leftovers.make("lost-1")
    with Supervised([*APP, "up", "--worker", "fetch"], qwf_dsn, env=machine.env) as up:
        up.until("^running orchestrator/1, scheduler/1, fetch/1, janitor/1; ")
        up.until("^janitor/1 +\\| .*thing lost-1: reaped")
        assert up.stop() == 0
        assert all(gone(pid) for pid in up.pids)
    assert machine.leftovers.left() == []


@pytest.mark.slow
@pid_namespace
def test_in_a_pid_namespace_too(machine: Machine, qwf_dsn: str) -> None:
    """The supervisor is PID 1 there; an owner outside is live to it."""
    machine.leftovers.make("lost-1")
    with machine.owner("live-1") as owner, machine.supervisor(qwf_dsn, prefix=UNSHARE) as supervisor:
        assert owner.line() == "has it"
        supervisor.until("thing lost-1: reaped")
        until(lambda: (machine.leftovers.left()) == ["live-1"])


@pytest.mark.slow
def test_a_supervisor_does_not_stay_for_its_janitor(machine: Machine, qwf_dsn: str) -> None:
    """When its workers are through, so is it; a janitor alone can be asked for, or none at all."""
    drained = [*APP, "supervisor", "--worker", "fetch --drain"]
    with Supervised(drained, qwf_dsn, env=machine.env) as supervisor:
        supervisor.until("supervising fetch/1, janitor/1$")
        assert supervisor.status() == 0
    machine.leftovers.make("lost-1")
    with Supervised([*drained, "--no-janitor"], qwf_dsn, env=machine.env) as supervisor:
        supervisor.until("supervising fetch/1$")
        assert supervisor.status() == 0
    with Supervised([*APP, "supervisor", "--janitor"], qwf_dsn, env=machine.env) as supervisor:
        supervisor.until("supervising janitor/1$")
        supervisor.until("thing lost-1: reaped")
        assert supervisor.stop() == 0


@pytest.mark.slow
def test_directories_of_runs_that_are_over_go_where_there_is_a_database(
    machine: Machine, qwf_dsn: str
) -> None:
    """Without it they stay, which is said, and things are reaped all the same."""
    machine.leftovers.make("lost-1")
    with psycopg.connect(qwf_dsn, autocommit=True) as conn:
        run = start(conn, {"nodes": [{"id": "one", "module": "m"}]})
        over = "UPDATE workflow_runs SET status = 'cancelled', finished_at = now() - interval '40 days'"
        conn.execute(f"{over} WHERE id = %s", [run])
    old = Path(machine.env["QWF_DATA_DIR"]) / "workspaces" / str(run)
    old.mkdir(parents=True)
    away = machine.said(*APP, "--db", "postgresql://x@127.0.0.1:1/x", "janitor", "--once", "--json")
    said = json.loads(away.stdout)
    assert (away.returncode, [one["deed"] for one in said["verdicts"]]) == (69, ["reaped"])
    assert "directories of runs: " in said["failures"][0]
    none = machine.said(*QWF, "janitor", "--once", "--json")
    assert (none.returncode, "no database is named" in json.loads(none.stdout)["failures"][0]) == (0, True)
    assert old.exists()
    done = machine.said(*QWF, "--db", qwf_dsn, "janitor", "--once", "--json")
    assert (done.returncode, json.loads(done.stdout)["directories"]) == (0, [str(old)])
    assert not old.exists()
