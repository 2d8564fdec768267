"""`qwf binaries`, and what `qwf explain` says of a hook that waits for a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from support.commands import Said, qwf_here
from support.jobs import CLEAR

from queue_workflows.repositories import NewNodeJob, NodeJobRepository, RunRepository
from queue_workflows.repositories.ending import Ending
from queue_workflows.states import JobStatus

Qwf = Callable[..., Said]


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Empty tables."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
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
    assert (found["name"], found["host_label"], found["abspath"][0]) == ("sh", "here", "/")
    assert (missing["name"], missing["status"]) == ("no-such-tool", "failed")
    assert "no-such-tool is not on PATH" in missing["error"]
    assert json.loads(qwf("binaries", "list", "--host-label", "elsewhere", "--json").stdout) == []
    assert "'../sh' is no name" in qwf("binaries", "ensure", "../sh", status=2).stderr


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
