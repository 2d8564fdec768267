"""`qwf binaries`, and what `qwf explain` says of a hook that waits for a program."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import Said, qwf_here
from support.rows.jobs import CLEAR

from queue_workflows.repositories import NewNodeJob, NodeJobRepository, RunRepository
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.hooks.binaries import BinaryRepository
from queue_workflows.states import JobStatus

Qwf = Callable[..., Said]


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR + "; TRUNCATE machines, binaries CASCADE")
        yield connection


@pytest.fixture
def qwf(qwf_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Qwf:
    """The command, on a machine called `here`."""
    monkeypatch.setenv("QWF_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("QWF_HOST_LABEL", "here")
    return lambda *words, **more: qwf_here("--db", qwf_dsn, *words, **more)


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A plugin that needs a shell, and one that needs what nobody has."""
    for plugin, name in (("text", "sh"), ("media", "no-such-tool")):
        place = tmp_path / "plugins" / plugin
        place.mkdir(parents=True)
        (place / "binaries.jsonl").write_text(json.dumps({"name": name, "bin_providers": "env"}))
    return tmp_path / "plugins"


def test_what_plugins_need_is_there_or_said_to_be_missing(
    conn: psycopg.Connection, qwf: Qwf, plugins: Path
) -> None:
    """All are tried, the status tells that one is missing, and the list shows where and why."""
    assert "no plugin has asked" in qwf("binaries", "list").stderr
    done = qwf("binaries", "ensure", "--dir", str(plugins), status=1)
    assert "missing: no-such-tool" in done.stderr
    assert qwf("binaries", "ensure", "sh").stdout.splitlines()[1].split()[:4] == [
        *("here", "sh", "installed", "env")
    ]
    missing, found = json.loads(qwf("binaries", "list", "--json").stdout)
    assert (found["binary"], found["host_label"], found["abspath"][0]) == ("sh", "here", "/")
    assert (missing["binary"], missing["status"]) == ("no-such-tool", "failed")
    assert "no-such-tool is not on PATH" in missing["error"]
    assert json.loads(qwf("binaries", "list", "--host-label", "elsewhere", "--json").stdout) == []
    assert "'../sh' is no name" in qwf("binaries", "ensure", "../sh", status=2).stderr


def test_what_a_hook_has_asked_for_is_had_as_well(conn: psycopg.Connection, qwf: Qwf, plugins: Path) -> None:
    """By the providers that its record names; on this machine alone."""
    (here,) = conn.execute("INSERT INTO machines (host_label) VALUES ('here') RETURNING id").fetchone() or ()
    (other,) = (
        conn.execute("INSERT INTO machines (host_label) VALUES ('other') RETURNING id").fetchone() or ()
    )
    for machine, name, providers in (
        (here, "ls", "env"),
        (here, "no-such-page", "env"),
        (other, "cat", "env"),
    ):
        BinaryRepository(conn).want(machine, name, bin_providers=providers, overrides=None)
    for name, providers in (("../x", "env"), ("x", "No One")):
        BinaryRepository(conn).want(here, name, bin_providers=providers, overrides=None)
    said = qwf("binaries", "ensure", "--dir", str(plugins), "--json", status=1)
    assert {row["binary"]: (row["status"], row["provider"]) for row in json.loads(said.stdout)} == {
        "sh": ("installed", "env"),
        "ls": ("installed", "env"),
        "no-such-tool": ("failed", None),
        "no-such-page": ("failed", None),
    }
    assert conn.execute("SELECT status FROM binaries WHERE name = 'cat'").fetchone() == ("queued",)


# What the provider is to ask of Homebrew, and nothing else: it writes down how it was called.
BREW = """#!/bin/sh
echo "$*" >> {called}
case $1 in
install)
    test "$3" = refused && exit 3
    shift 2
    for package in "$@"; do printf '#!/bin/sh\n' > {bin}/$package; chmod +x {bin}/$package; done ;;
list) echo "$3 9.0 9.1" ;;
esac
"""


@pytest.mark.parametrize(
    ("overrides", "asked", "error"),
    [
        ({}, ["install --quiet qwf-brewed", "list --versions qwf-brewed"], None),
        (
            {"packages": ["keg", "qwf-brewed"]},
            ["install --quiet keg qwf-brewed", "list --versions keg"],
            None,
        ),
        (
            {"install_args": ["keg", "qwf-brewed"]},
            ["install --quiet keg qwf-brewed", "list --versions keg"],
            None,
        ),
        (
            {"packages": ["refused"]},
            ["install --quiet refused"],
            "refused brought no qwf-brewed: brew ended with 3",
        ),
        ({"packages": ["keg"]}, ["install --quiet keg"], "keg brought no qwf-brewed: brew ended with 0"),
    ],
)
def test_what_brew_installs_is_a_row(  # noqa: PLR0917
    conn: psycopg.Connection,
    qwf: Qwf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overrides: dict[str, list[str]],
    asked: list[str],
    error: str | None,
) -> None:
    """It is asked for the program or for what `overrides` name; what it brought, or did not, is its row."""
    bin_, called, plugin = tmp_path / "bin", tmp_path / "called", tmp_path / "plugins" / "drinks"
    bin_.mkdir()
    plugin.mkdir(parents=True)
    (bin_ / "brew").write_text(BREW.format(bin=bin_, called=called))
    (bin_ / "brew").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    need = {"name": "qwf-brewed", "bin_providers": "brew"}
    (plugin / "binaries.jsonl").write_text(json.dumps(need | {"overrides": {"brew": overrides}}))
    said = qwf("binaries", "ensure", "--dir", str(plugin.parent), "--json", status=1 if error else 0)
    assert called.read_text().splitlines() == asked
    (row,) = json.loads(said.stdout)
    if error:
        assert (row["status"], row["abspath"], row["version"]) == ("failed", None, None)
        assert f"brew: {error} (exit 1)" in row["error"]
    else:
        found = (row["status"], row["provider"], row["abspath"], row["version"])
        assert found == ("installed", "brew", str(bin_ / "qwf-brewed"), "9.1")


def test_explain_says_what_a_hook_waits_for(conn: psycopg.Connection, qwf: Qwf, plugins: Path) -> None:
    """The program, the machine, why it is not there, and what to do."""
    run = RunRepository(conn).insert("Snapshot", spec={}, spec_hash="h").id
    jobs = NodeJobRepository(conn)
    jobs.insert_many([NewNodeJob(run_id=run, node_id="n", node_module="m", plugin="media", queue="hooks")])
    (job,) = jobs.claim("hooks", worker_id="w", lease_s=30, limit=1)
    hold = {"hold_reason": "binary_missing", "hold_key": "here/no-such-tool"}
    jobs.end_many([Ending(job.fence, JobStatus.SCHEDULED, delay_s=3600.0, **hold)])
    said = qwf("explain", f"node:{job.id}").stdout
    assert "needs no-such-tool, which is missing on here: nobody has installed it yet" in said
    qwf("binaries", "ensure", "no-such-tool", "--providers", "env", status=1)
    said = qwf("explain", f"node:{job.id}").stdout
    assert "no-such-tool is not on PATH" in said
    assert "`qwf binaries ensure no-such-tool` on here" in said
