"""The unit file and the compose file of the docs do what they say."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from queue_workflows.cli.roles.supervisor import supervisor
from queue_workflows.roles.supervisor.supervisor import LONGEST_STOP_S
from queue_workflows.settings import Settings

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
UNIT = EXAMPLES / "qwf-supervisor.service"


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    return unit["Service"]


def workers_of(command: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    """What a command line asks for, as the supervisor reads it."""
    program, name, *arguments = command
    assert (Path(program).name, name) == ("qwf", "supervisor")
    context = supervisor.make_context("supervisor", arguments)
    assert context.params["orchestrator"]
    assert context.params["scheduler"]
    return [(spec.queue, spec.options) for spec in context.params["workers"].specs]


ASKED_FOR = [("cpu", ())] * 2 + [("fetch", ("--recycle-mb", "500"))] * 4


def test_the_unit_runs_what_the_supervisor_understands():
    """Its command line is a good one."""
    assert workers_of(shlex.split(service()["ExecStart"])) == ASKED_FOR


def test_the_unit_waits_for_a_graceful_stop():
    """Longer than the supervisor may take under its defaults, and the stop is left to it."""
    assert int(service()["TimeoutStopSec"]) > Settings().grace_s + LONGEST_STOP_S
    assert service()["KillMode"] == "mixed"


def test_systemd_has_no_complaint(tmp_path: Path):
    """About the unit as it stands, but for the places that are this machine's."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("this machine has no systemd-analyze")
    text = UNIT.read_text(encoding="utf-8")
    for there, here in (
        ("/srv/shop/.venv/bin/qwf", sys.executable),
        ("WorkingDirectory=/srv/shop", f"WorkingDirectory={tmp_path}"),
        ("User=shop", "User=root"),
    ):
        assert there in text
        text = text.replace(there, here)
    (tmp_path / UNIT.name).write_text(text, encoding="utf-8")
    ran = subprocess.run(
        [analyze, "verify", "--recursive-errors=no", tmp_path / UNIT.name],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert [line for line in ran.stderr.splitlines() if UNIT.name in line] == []


def test_the_compose_file_runs_what_the_supervisor_understands():
    """Likewise, with the same patience."""
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((EXAMPLES / "compose.yaml").read_text(encoding="utf-8"))["services"]
    workers = services["workers"]
    assert workers_of(workers["command"]) == ASKED_FOR
    patience = re.fullmatch(r"(\d+)s", workers["stop_grace_period"])
    assert patience is not None
    assert int(patience[1]) > Settings().grace_s + LONGEST_STOP_S
    assert services["migrate"]["environment"] == workers["environment"]
