"""Each run has a directory of its own, links lead to what is shared, and it goes when its history does."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.programs import Running, environment, linux_only, program
from support.processes.workers import until
from support.rows.jobs import CLEAR
from support.rows.runs import settings, start

from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.upkeep.run_files import RUNS, UNKNOWN_KEPT_S, clear_places, has_places
from queue_workflows.engine.upkeep.run_files import clear as clear_by_settings
from queue_workflows.errors import ConfigurationError
from queue_workflows.host.directories.data import last_change, opened, take_away
from queue_workflows.host.directories.workspaces import WORKSPACES, Workspace, workspace
from queue_workflows.repositories import IngestJobRepository

DAY_S = 86_400.0
ONE = {"nodes": [{"id": "one", "module": "m"}]}
pytestmark = linux_only


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    made = tmp_path / "the servers"
    made.mkdir()
    return made


def tree(path: Path) -> dict[str, str]:
    """What stands in a directory, a link by where it leads."""
    return {
        entry.name: os.readlink(entry) if entry.is_symlink() else entry.read_text()
        for entry in sorted(path.iterdir())
    }


# What a workspace is


def test_a_workspace_is_its_runs_own(tmp_path: Path, shared: Path) -> None:
    """Below the data directory, for this user alone, with nothing in it but the link that was asked for."""
    run = uuid.uuid4()
    with workspace(run, share={"servers": shared}, root=tmp_path / "data") as made:
        assert made.path == tmp_path / "data" / "workspaces" / str(run)
        assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
        assert tree(made.path) == {"servers": str(shared)}
        assert made.export() == {"QWF_WORKSPACE": str(made.path)}


def test_a_file_written_through_a_link_lands_in_what_is_shared(tmp_path: Path, shared: Path) -> None:
    """And what is written beside the link stays in the workspace."""
    with workspace("smoke-1", share={"servers": shared}, root=tmp_path) as made:
        (made.path / "servers" / "a.txt").write_text("through the link")
        (made.path / "b.txt").write_text("beside it")
    assert tree(shared) == {"a.txt": "through the link"}


def test_two_workspaces_of_one_subject_at_once_are_both_right(tmp_path: Path, shared: Path) -> None:
    """Made and used by two processes at the same time, each sees its own files and the shared ones."""
    text = """
from pathlib import Path
from queue_workflows.host.directories.workspaces import workspace
root, run, shared = map(Path, sys.argv[1:])
made = workspace(run.name, share={"servers": shared}, root=root)
say("made")
sys.stdin.readline()
(made.path / "mine").write_text(run.name)
(made.path / "servers" / run.name).write_text("met")
say(sorted(each.name for each in made.path.iterdir()), (made.path / "mine").read_text())
"""
    with (
        Running([*program(text), str(tmp_path), "film-1", str(shared)]) as one,
        Running([*program(text), str(tmp_path), "film-2", str(shared)]) as two,
    ):
        assert (one.line(), two.line()) == ("made", "made")
        for each in (one, two):
            each.tell("go on")
        assert one.line() == "['mine', 'servers'] film-1"
        assert two.line() == "['mine', 'servers'] film-2"
    assert tree(shared) == {"film-1": "met", "film-2": "met"}


def test_many_at_once_make_one_workspace(tmp_path: Path, shared: Path) -> None:
    """The jobs of one run begin together, and each finds it whole."""
    barrier, found = threading.Barrier(8), []

    def make() -> None:
        barrier.wait(150)
        with workspace("run", share={"servers": shared}, root=tmp_path) as made:
            found.append(tree(made.path))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert found == [{"servers": str(shared)}] * 8


def test_a_retry_finds_what_the_attempt_before_left(tmp_path: Path, shared: Path) -> None:
    """The directory is the run's, and a link leads where the last who shared it said."""
    with workspace("run", share={"servers": tmp_path, "kept": shared}, root=tmp_path) as first:
        (first.path / "half").write_text("done")
    with workspace("run", share={"servers": shared}, root=tmp_path) as second:
        assert tree(second.path) == {"half": "done", "kept": str(shared), "servers": str(shared)}


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../up", "a\0b", "a b", "x" * 101, "-x"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """Nothing is made for it."""
    with pytest.raises(ConfigurationError, match="cannot name a workspace"):
        workspace(name, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "x" * 256])
def test_a_share_that_leads_elsewhere_is_refused(tmp_path: Path, shared: Path, name: str) -> None:
    """A shared thing stands in the workspace itself."""
    with pytest.raises(ConfigurationError, match="cannot name what is shared"):
        workspace("run", share={name: shared}, root=tmp_path)


def test_what_is_not_there_or_in_the_way_is_said(tmp_path: Path, shared: Path) -> None:
    """A wrong path is told when it is shared, and a file of the job's own is not replaced by a link."""
    with pytest.raises(ConfigurationError, match="it is not there"):
        workspace("run", share={"servers": tmp_path / "nowhere"}, root=tmp_path)
    with workspace("run", root=tmp_path) as made:
        (made.path / "servers").write_text("mine")
    with pytest.raises(ConfigurationError, match="something else is there"):
        workspace("run", share={"servers": shared}, root=tmp_path)
    assert tree(made.path) == {"servers": "mine"}


def test_who_is_refused_or_has_closed_it_keeps_nothing(tmp_path: Path, shared: Path) -> None:
    """It can be removed then; closing again closes nobody else's, and there is nothing to hand on."""
    made = workspace("run", root=tmp_path)
    (made.path / "servers").write_text("mine")
    made.close()
    with pytest.raises(ConfigurationError):
        workspace("run", share={"servers": shared}, root=tmp_path)
    made.close()
    with pytest.raises(RuntimeError, match="was closed"):
        made.fileno()
    with opened(tmp_path, WORKSPACES) as above:
        assert take_away(above, "run")


def test_another_users_workspace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not kept from its removal."""
    workspace("run", root=tmp_path).close()
    with monkeypatch.context() as as_another:
        as_another.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(ConfigurationError, match="belongs to another user"):
            workspace("run", root=tmp_path)
    with opened(tmp_path, WORKSPACES) as above:
        assert take_away(above, "run")


@pytest.mark.parametrize("planted", ["workspaces", "workspaces/run"])
def test_a_link_on_the_way_is_not_followed(tmp_path: Path, shared: Path, planted: str) -> None:
    """Whoever plants one gets nobody's files."""
    data = tmp_path / "data"
    (data / planted).parent.mkdir(parents=True)
    (data / planted).symlink_to(shared)
    with pytest.raises(ConfigurationError, match="cannot be used: no directory"):
        workspace("run", root=data)
    assert tree(shared) == {}


def test_a_job_has_the_workspace_of_its_run(connection, tmp_path: Path, shared: Path, monkeypatch) -> None:
    """An ingest job has one of its own; both are held until the function has ended."""
    monkeypatch.setenv("QWF_DATA_DIR", str(tmp_path))
    jobs = IngestJobRepository(connection)
    jobs.enqueue("t", queue="fetch")
    job = jobs.claim("fetch", worker_id="w", lease_s=60, limit=1)[0]
    ctx = JobContext(job, family="ingest job", make_durable=lambda: True)
    made = ctx.workspace(share={"servers": shared})
    assert made.path.parent == tmp_path / "workspaces"
    assert made.path.name.startswith(f"ingest-{job.id}-")
    jobs.complete(job, None)
    assert clear_places(connection, tmp_path, kept_s=0, files_kept_s=0, ttl_s=0).removed == []
    ctx.close()
    assert clear_places(connection, tmp_path, kept_s=0, files_kept_s=0, ttl_s=0).removed == [made.path]
    assert tree(shared) == {}
    assert shared.exists()


STUB = """#!/bin/sh
printf '%s|%s|%s|%s\n' "$*" "$QWF_WORKSPACE" "$(pwd)" "$(readlink "$QWF_WORKSPACE/servers")" >> "$RECORD"
"""


def test_a_command_has_its_workspace_from_the_first_on(tmp_path: Path, shared: Path) -> None:
    """A stub in place of its program records what it is given: at its first call it is all there.

    And as long as it runs no janitor could remove it.
    """
    stub = tmp_path / "bin" / "deploy"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(0o755)
    record = tmp_path / "record"
    environ = {
        **environment(),
        "PATH": f"{stub.parent}:{os.environ['PATH']}",
        "RECORD": str(record),
        "QWF_DATA_DIR": str(tmp_path / "data"),
    }
    words = ["--workspace", "film-1", "--share", f"servers={shared}", "--in-workspace"]
    command = [
        sys.executable,
        "-m",
        "queue_workflows",
        "run-job",
        *words,
        "--",
        "sh",
        "-c",
        "deploy a; deploy b; flock --nonblock . echo removable",
    ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")  # 1 is that of `flock`
    made = tmp_path / "data" / "workspaces" / "film-1"
    assert record.read_text() == f"a|{made}|{made}|{shared}\nb|{made}|{made}|{shared}\n"


# How long it is kept


def over(connection: psycopg.Connection[Any], run: uuid.UUID, days: float) -> None:
    """A run that ended so long ago."""
    connection.execute(
        "UPDATE workflow_runs SET status = 'completed', finished_at = now() - make_interval(secs => %s)"
        " WHERE id = %s",
        [days * DAY_S, run],
    )


def places(data: Path, run: uuid.UUID) -> list[Path]:
    """The two that a run may have, with something in each."""
    made = [data / RUNS / str(run), data / WORKSPACES / str(run)]
    for path in made:
        (path / "deeper").mkdir(parents=True)
        (path / "deeper" / "file").write_text("x")
    return made


def clear(
    connection: psycopg.Connection[Any], data: Path, *, days_later: float = 0.0, **more: Any
) -> list[str]:
    """Sweep some days later, when files of hooks go with their rows; what went, by kind and name."""
    now = time.time() + days_later * DAY_S
    times = {"kept_s": 30 * DAY_S, "files_kept_s": 30 * DAY_S, "ttl_s": 7 * DAY_S}
    cleared = clear_places(connection, data, now=now, **(times | more))
    assert cleared.left == []
    return sorted(str(path.relative_to(data)) for path in cleared.removed)


def test_places_go_when_their_run_would(connection, tmp_path: Path) -> None:
    """Old runs' places go; those of young, keyed and unended ones stay; a rehearsal removes nothing."""
    old, young, keyed, going = (start(connection, ONE, **more) for more in ({}, {}, {"dedupe_key": "k"}, {}))
    over(connection, old, 31)
    over(connection, young, 29)
    over(connection, keyed, 36)
    made = {run: places(tmp_path, run) for run in (old, young, keyed, going)}
    expected = sorted([f"runs/{old}", f"workspaces/{old}"])
    assert clear(connection, tmp_path, days_later=300, dry_run=True) == expected
    assert all(path.exists() for paths in made.values() for path in paths)
    assert clear(connection, tmp_path, days_later=300) == expected
    assert clear(connection, tmp_path, days_later=300) == []
    assert {run for run, paths in made.items() if all(path.exists() for path in paths)} == {
        young,
        keyed,
        going,
    }
    assert [list((tmp_path / kind / ".removed").iterdir()) for kind in (RUNS, WORKSPACES)] == [[], []]


def test_an_unknown_run_is_kept_until_it_is_clearly_older(connection, tmp_path: Path) -> None:
    """Another database's, or one that this database forgot: by its last change, anywhere in its tree."""
    run = uuid.uuid4()
    places(tmp_path, run)
    workspace("smoke-1", root=tmp_path).close()
    margin = UNKNOWN_KEPT_S / DAY_S
    assert clear(connection, tmp_path, days_later=30 + margin - 0.5) == []
    assert clear(connection, tmp_path, days_later=30 + margin + 0.5) == sorted(
        [f"runs/{run}", f"workspaces/{run}", "workspaces/smoke-1"]
    )


def test_a_directory_that_is_used_again_is_as_young_as_a_new_one(tmp_path: Path) -> None:
    """Also by who changes nothing in it."""
    made = workspace("smoke-1", root=tmp_path)
    made.close()
    before = made.path.stat().st_ctime_ns

    def is_younger() -> bool:
        workspace("smoke-1", root=tmp_path).close()
        return made.path.stat().st_ctime_ns > before

    until(is_younger, within_s=150)


def test_the_last_change_of_a_tree_is_that_of_any_part_of_it(tmp_path: Path) -> None:
    """Wherever in it that is looked at, and whatever is looked at after it."""
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "file").write_text("x")
    latest = tmp_path / "latest"
    latest.write_text("x")
    before = max(path.stat().st_ctime_ns for path in (tmp_path, *tmp_path.rglob("*")))

    def is_last() -> bool:
        latest.chmod(0o600)
        return latest.stat().st_ctime_ns > before

    until(is_last, within_s=150)
    assert last_change(tmp_path, since=time.time() + DAY_S) == latest.stat().st_ctime


@pytest.mark.parametrize(("number", "is_usable"), [(errno.ENOLCK, True), (errno.EIO, False)])
def test_where_there_are_no_locks_people_work_and_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_usable: bool
) -> None:
    """As on some file systems of a network; what is broken is told."""

    def refuse(_directory: int, _how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with nullcontext() if is_usable else pytest.raises(OSError, match=os.strerror(number)):
        workspace("run", root=tmp_path).close()
    with opened(tmp_path, WORKSPACES) as above:
        assert not take_away(above, "run")


def test_what_was_put_in_the_place_of_a_directory_is_not_removed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sweeper was first, and a user has come for it since, who holds the new one."""
    workspace("run", root=tmp_path).close()
    held: list[Workspace] = []

    def late(directory: int, how: int) -> None:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(fcntl, "flock", flock)
            (tmp_path / WORKSPACES / "run").rename(tmp_path / "taken")
            held.append(workspace("run", root=tmp_path))
            flock(directory, how)

    flock = fcntl.flock
    with opened(tmp_path, WORKSPACES) as above, monkeypatch.context() as between:
        between.setattr(fcntl, "flock", late)
        assert not take_away(above, "run")
    assert held[0].path.exists()
    held[0].close()


def test_what_is_not_ours_stays(connection, tmp_path: Path, shared: Path) -> None:
    """A directory that is no run's, a file, a link: somebody put them there."""
    (tmp_path / RUNS / "notes").mkdir(parents=True)
    (tmp_path / RUNS / str(uuid.uuid4())).symlink_to(shared)
    (tmp_path / WORKSPACES).mkdir()
    (tmp_path / WORKSPACES / "linked").symlink_to(shared)
    (tmp_path / WORKSPACES / "file").write_text("x")
    (shared / "precious").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    assert clear(connection, tmp_path, days_later=1000) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_a_held_workspace_is_never_removed(connection, tmp_path: Path) -> None:
    """Held by a live process it stays however old its run is; when that is killed it goes."""
    run = start(connection, ONE)
    over(connection, run, 31)
    text = """
from pathlib import Path
from queue_workflows.host.directories.workspaces import workspace
workspace(sys.argv[2], root=Path(sys.argv[1])).path
say("held")
time.sleep(600)
"""
    with Running([*program(text), str(tmp_path), str(run)]) as holder:
        assert holder.line() == "held"
        assert clear(connection, tmp_path) == []
        holder.process.kill()
        holder.status()
        assert clear(connection, tmp_path) == [f"workspaces/{run}"]


def test_nothing_outside_is_deleted(connection, tmp_path: Path, shared: Path, monkeypatch) -> None:
    """Links to elsewhere, directories without rights, very deep ones: all go, and what they led to stays."""
    run = start(connection, ONE)
    over(connection, run, 31)
    (shared / "precious").write_text("x")
    root = workspace(run, share={"servers": shared}, root=tmp_path)
    root.close()
    (root.path / "locked").mkdir()
    (root.path / "locked" / "in").symlink_to(shared)
    (root.path / "locked").chmod(0o500)
    with monkeypatch.context() as inside:
        inside.chdir(root.path)
        for _ in range(850):
            os.mkdir("deep")
            os.chdir("deep")
    root.path.chmod(0o500)
    assert clear(connection, tmp_path) == [f"workspaces/{run}"]
    assert list((tmp_path / WORKSPACES / ".removed").iterdir()) == []
    assert tree(shared) == {"precious": "x"}


def test_who_comes_while_it_is_removed_gets_a_new_one(connection, tmp_path: Path) -> None:
    """Sweeper and user race for one directory: whoever holds a workspace has it at its path, whole."""
    run = start(connection, ONE)
    over(connection, run, 31)
    wrong: list[str] = []
    over_now = threading.Event()

    def sweep() -> None:
        with psycopg.connect(connection.info.dsn, password=connection.info.password, autocommit=True) as own:
            while not over_now.is_set():
                clear_places(own, tmp_path, kept_s=30 * DAY_S, files_kept_s=None, ttl_s=0)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for turn in range(300):
            with workspace(run, root=tmp_path) as made:
                (made.path / "file").write_text(str(turn))
                if (made.path / "file").read_text() != str(turn):
                    wrong.append(f"turn {turn}")
    finally:
        over_now.set()
        sweeper.join(150)
    assert wrong == []


def test_the_settings_say_how_long(connection, tmp_path: Path) -> None:
    """What the roles call: a time for scratch and one for files, and nothing to do where nothing ever was."""
    given = settings(data_dir=tmp_path, retention_days=1, run_files_days=1)
    assert (has_places(given), clear_by_settings(connection, given)) == (False, 0)
    old, young = start(connection, ONE), start(connection, ONE)
    over(connection, old, 1.5)
    over(connection, young, 0.5)
    kept = [places(tmp_path, run) for run in (old, young)][1]
    assert (has_places(given), clear_by_settings(connection, given)) == (True, 2)
    assert sorted(path for kind in (RUNS, WORKSPACES) for path in (tmp_path / kind).glob("[!.]*")) == kept


def test_what_hooks_wrote_is_the_product_and_stays(connection, tmp_path: Path) -> None:
    """However old, and whether its row is there or was pruned, unless a setting of its own says so."""
    kept = settings(data_dir=tmp_path, retention_days=1)
    (tmp_path / RUNS).mkdir(parents=True)
    assert not has_places(kept)
    old, pruned = start(connection, ONE), start(connection, ONE)
    for run in (old, pruned):
        over(connection, run, 400)
        places(tmp_path, run)
    connection.execute("DELETE FROM workflow_runs WHERE id = %s", [pruned])
    long_ago = clear(connection, tmp_path, days_later=1_000, files_kept_s=None)
    assert long_ago == sorted(f"workspaces/{run}" for run in (old, pruned))
    assert clear_by_settings(connection, kept) == 0
    assert {path.name for path in (tmp_path / RUNS).iterdir()} == {str(old), str(pruned)}
    assert (tmp_path / RUNS / str(pruned) / "deeper" / "file").read_text() == "x"


def test_files_of_hooks_may_outlive_their_rows_or_the_other_way_round(connection, tmp_path: Path) -> None:
    """Their own time counts, whether their row is there still or no more."""
    early, late = start(connection, ONE), start(connection, ONE)
    over(connection, early, 3)
    over(connection, late, 1.5)
    for run in (early, late):
        places(tmp_path, run)
    assert clear(connection, tmp_path, files_kept_s=2 * DAY_S) == [f"runs/{early}"]
    connection.execute("DELETE FROM workflow_runs WHERE id = %s", [late])
    margin = UNKNOWN_KEPT_S / DAY_S
    assert clear(connection, tmp_path, days_later=99, files_kept_s=100 * DAY_S) == [f"workspaces/{late}"]
    assert clear(connection, tmp_path, days_later=100 + margin + 0.5, files_kept_s=100 * DAY_S) == [
        f"runs/{late}"
    ]


@pytest.mark.slow
def test_what_is_mounted_in_it_is_left_alone(connection, tmp_path: Path) -> None:
    """Somebody else's file system may have been bound there; the directory waits until it is not."""
    run = start(connection, ONE)
    over(connection, run, 31)
    made = workspace(run, root=tmp_path)
    made.close()
    (made.path / "bound").mkdir()
    (made.path / "mine").write_text("x")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "precious").write_text("x")
    (tmp_path / "theirs").chmod(0o555)
    (made.path / "yours" / "deeper").mkdir(parents=True)
    text = """
from pathlib import Path
from queue_workflows.host.directories.data import empty, opened, take_away
data, run = Path(sys.argv[1]), sys.argv[2]
bound = data / "workspaces" / run / "bound"
subprocess.run(["mount", "--bind", data / "theirs", bound], check=True)
with opened(data, "workspaces") as above:
    taken = take_away(above, run)
    with opened(data, "workspaces", ".removed") as removed:
        say(taken, len(empty(removed)))
"""
    command = ["unshare", "--mount", *program(text), str(tmp_path), str(run)]
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("may not mount here")
    with Running(command) as running:
        assert running.line() == "True 1"
    assert tree(tmp_path / "theirs") == {"precious": "x"}
    assert stat.S_IMODE((tmp_path / "theirs").stat().st_mode) == 0o555
    (left,) = (tmp_path / WORKSPACES / ".removed").iterdir()
    assert [one.name for one in left.iterdir()] == ["bound"]
    assert clear(connection, tmp_path) == []
    assert list((tmp_path / WORKSPACES / ".removed").iterdir()) == []
