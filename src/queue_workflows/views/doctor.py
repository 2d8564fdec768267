"""What is the matter with the database and this machine's set-up: what `qwf doctor` shows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from queue_workflows.config import effective_settings
from queue_workflows.db.doctor import examine
from queue_workflows.db.doctor.findings import Check, Report, Status
from queue_workflows.errors import QwfError
from queue_workflows.host.janitor.doctor_checks import check_locks
from queue_workflows.host.janitor.resources import registered_kinds
from queue_workflows.host.locks.flock import expected_directory


def read_report(db_url: str | None) -> Report:
    """All checks; the database's own are made on a connection of their own, as it may be out of reach."""
    return Report((*examine(db_url).checks, *_checks_of_this_machine()))


def _checks_of_this_machine() -> list[Check]:
    """What needs no database; a configuration that cannot be read has been found already."""
    try:
        settings = effective_settings()
    except QwfError:
        return []
    return check_locks(expected_directory(settings.lock_dir), registered_kinds())


def json_of(report: Report) -> dict[str, Any]:
    """What `qwf doctor --json` prints."""
    checks = [{**asdict(check), "code": int(check.code)} for check in report.checks]
    for check in checks:
        if check["status"] != Status.FAIL:
            del check["code"]
    return {"exit_code": int(report.exit_code), "checks": checks}


def command_of() -> str:
    """The command that makes these checks."""
    return "qwf doctor"
