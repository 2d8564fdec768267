"""Running revisions of a chain through its environment, one transaction each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory

from queue_workflows.db.migrations.chains import Chain, alembic_config, subject
from queue_workflows.db.migrations.failures import translated
from queue_workflows.db.migrations.session import MigrationSession, silent

Direction = Literal["upgrade", "downgrade"]

# Alembic keeps the environment that is running in module globals.
ENVIRONMENT: Final = threading.RLock()


@dataclass(frozen=True)
class Progress:
    """A revision that starts (`done` false) or has been committed."""

    chain: str
    revision: str
    subject: str
    direction: Direction
    done: bool = False


Report = Callable[[Progress], None]


Plan = Callable[[Any], list[Any]]


def plan_upgrade(script: ScriptDirectory, revision: str) -> Plan:
    """The steps from given heads up to a revision; a host chain may have several heads."""
    wanted = "heads" if revision == "head" else revision
    return lambda heads: script._upgrade_revs(wanted, heads)


def plan_downgrade(script: ScriptDirectory, revision: str) -> Plan:
    """The steps from given heads down to a revision."""
    return lambda heads: list(script._downgrade_revs(revision, heads))


def run_steps(
    session: MigrationSession,
    chain: Chain,
    script: ScriptDirectory,
    plan: Plan,
    report: Report = silent,
) -> list[Progress]:
    """Run planned steps through the environment, telling of each before it starts and once it is done."""
    applied: list[Progress] = []

    def steps(heads: Any, _context: Any) -> Iterator[Any]:
        for step in plan(heads):
            progress = Progress(
                chain.name,
                step.revision.revision,
                subject(step.revision),
                "upgrade" if step.is_upgrade else "downgrade",
            )
            session.watch.begin(f"{chain.name} revision {progress.revision} ({progress.subject})")
            report(progress)
            yield step
            # Alembic asks for the next step only after it has committed this one.
            applied.append(replace(progress, done=True))
            report(applied[-1])

    config = alembic_config(chain, connection=session.connection)
    with ENVIRONMENT, translated(session), EnvironmentContext(config, script, fn=steps):
        script.run_env()
    return applied
