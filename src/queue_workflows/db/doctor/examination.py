"""`qwf doctor` as plain data: where the database is said to be, and what a look at it finds.

A check that cannot be made says so. What depends on a connection is skipped, by name, when there is none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from queue_workflows.config import current_config, effective_settings, resolve_dsn
from queue_workflows.db.connections.dsn import foreign_driver, redact_dsn
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.doctor.checkup import CHECKS, Target, made
from queue_workflows.db.doctor.findings import Check, Report, Status, failed
from queue_workflows.errors import DatabaseError, QwfError
from queue_workflows.settings import Settings, unknown_variables


def examine(dsn: str | None = None, *, clock: Callable[[], float] = time.time) -> Report:
    """Look at everything; never raises for what is wrong with the database or the configuration."""
    try:
        settings = effective_settings()
        database = Database.open(dsn, role="doctor", settings=settings, creates=False)
        where = _check_where(dsn, settings, database)
    except QwfError as exc:
        name = "database" if isinstance(exc, DatabaseError) else "configuration"
        return Report((failed(name, exc), *_skipped()))
    with database:
        try:
            connection = database.connect(autocommit=True)
        except QwfError as exc:
            return Report((*where, failed("connection", exc), *_skipped()))
        with connection:
            patient = Target(database, connection, clock)
            return Report((*where, *(made(name, check, patient) for name, check in CHECKS.items())))


def _skipped() -> list[Check]:
    return [Check(name, Status.SKIP, "needs a connection") for name in CHECKS]


def _check_where(dsn: str | None, settings: Settings, database: Database) -> list[Check]:
    """Where we go and which source said so: known before anything is connected."""
    choice = resolve_dsn(dsn)
    shown = redact_dsn(choice.dsn) if choice.dsn is not None else f"in {database.data_dir}"
    found = f"{shown} (from {choice.source})" if choice.dsn is not None else f"{choice.source} {shown}"
    driver = foreign_driver(choice.dsn or "")
    advice = f"the URL names {driver}; this connects with psycopg all the same" if driver else ""
    checks = [
        Check(
            "database",
            Status.WARN if driver else Status.OK,
            found,
            advice,
            data={"dsn": shown, "source": choice.source},
        )
    ]
    if choice.direct_dsn:
        checks.append(Check("direct", Status.OK, redact_dsn(choice.direct_dsn)))
    elif settings.direct_db_url:
        checks.append(
            Check(
                "direct",
                Status.WARN,
                f"the direct DSN ({settings.source_of('direct_db_url')}) is not used",
                f"it does not go with the DSN from {choice.source}; set both in the same place",
            )
        )
    strangers = unknown_variables(os.environ, current_config().db_url_env)
    if strangers:
        near = [f"{name} (did you mean {like}?)" if like else name for name, like in strangers.items()]
        checks.append(
            Check("environment", Status.WARN, f"no setting reads {', '.join(near)}", "correct or unset it")
        )
    return checks
