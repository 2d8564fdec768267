"""`qwf run check` and `qwf run schema`: documents are judged without a database."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.commands import qwf_here

from queue_workflows.config import reset_config
from queue_workflows.errors import ExitCode

ROOT = Path(__file__).resolve().parents[3]
GOOD = "nodes:\n- {id: plan, module: planner}\n- {id: draw, module: draw, depends_on: [plan]}\n"
BAD = GOOD.replace("id: plan, module", "id: plan, modul").replace("depends_on: [plan]", "queue: gpuu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, and no database that could be asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QWF_DB_URL", "postgresql://nobody@127.0.0.1:9/none")
    return tmp_path


def test_every_problem_of_every_file_has_a_line(here: Path):
    """As compilers say it, so that editors lead there; the exit status says that something is wrong."""
    (here / "film.yaml").write_text(GOOD)
    (here / "bad.yaml").write_text(BAD)
    said = qwf_here("run", "check", "film.yaml", "bad.yaml", "nowhere.yaml", status=ExitCode.CONFIGURATION)
    assert said.stdout.splitlines() == [
        "film.yaml: film, 2 nodes",
        "bad.yaml:2: node 'plan', field modul: there is no such field; did you mean 'module'?",
        "bad.yaml:3: node 'draw', field queue: must be cpu, gpu or hooks, not 'gpuu'",
        "nowhere.yaml: cannot be read: No such file or directory",
    ]
    assert said.stderr == "3 problems in 2 documents of 3\n"
    said = qwf_here("run", "check", "film.yaml", "nowhere.yaml", status=ExitCode.USAGE)
    assert said.stdout.splitlines()[-1] == "nowhere.yaml: cannot be read: No such file or directory"


def test_machines_read_json(here: Path):
    """The same problems as data; an empty list for sound documents."""
    (here / "film.yaml").write_text(GOOD)
    (here / "bad.yaml").write_text(BAD)
    assert qwf_here("run", "check", "--json", "film.yaml").stdout == "[]\n"
    said = qwf_here("run", "check", "--json", "bad.yaml", status=ExitCode.CONFIGURATION)
    assert json.loads(said.stdout)[1] == {
        "file": "bad.yaml",
        "line": 3,
        "node": "draw",
        "field": "queue",
        "said": "must be cpu, gpu or hooks, not 'gpuu'",
    }


@pytest.mark.usefixtures("here")
def test_a_document_from_standard_input():
    """What another program writes is checked without a file."""
    ended = subprocess.run(
        [sys.executable, "-m", "queue_workflows", "run", "check", "-"],
        input=BAD,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ended.returncode == ExitCode.CONFIGURATION
    assert ended.stdout.splitlines()[0].startswith("-:2: node 'plan', field modul: ")


def test_the_workflows_that_a_document_starts_are_looked_for(here: Path, monkeypatch: pytest.MonkeyPatch):
    """Where the host app says who has them."""
    (here / "film.yaml").write_text(GOOD + "- {id: cut, type: workflow, workflow: fimlcut}\n")
    (here / "filmcut.yaml").write_text(GOOD)
    (here / "studio_wiring.py").write_text("import queue_workflows as q\nq.set_workflow_dir('.')\n")
    monkeypatch.setattr("sys.path", sys.path[:])
    assert qwf_here("run", "check", "film.yaml").stdout == "film.yaml: film, 3 nodes\n"
    try:
        said = qwf_here("--app", "studio_wiring", "run", "check", "film.yaml", status=ExitCode.CONFIGURATION)
    finally:
        reset_config()
    assert said.stdout == (
        "film.yaml: node 'cut', field workflow: there is no workflow 'fimlcut' — did you mean 'filmcut'?\n"
    )


def test_the_schema_is_that_of_the_docs(here: Path):
    """What is printed is what docs/reference has, for who wants a file to point an editor at."""
    printed = qwf_here("run", "schema").stdout
    assert printed == (ROOT / "docs/reference/workflow.schema.json").read_text(encoding="utf-8")
