"""Running revisions of a chain through its environment, one transaction each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from alembic.runtime.environment import EnvironmentContext
from alembic.script import Script, ScriptDirectory
from alembic.util import CommandError

from queue_workflows.db.migrations.chain.chains import ENVIRONMENT, Chain, alembic_config
from queue_workflows.db.migrations.chain.revisions import fault_in, subject
from queue_workflows.db.migrations.failures import translated
from queue_workflows.db.migrations.session import MigrationSession, silent
from queue_workflows.errors import ConfigurationError, RevisionOutOfReach

Direction = Literal["upgrade", "downgrade"]


@dataclass(frozen=True)
class Progress:
    """A revision that starts, or has been committed (`done`), or was not: `fate` says what it came to."""

    chain: str
    revision: str
    subject: str
    direction: Direction
    done: bool = False
    fate: str = ""


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Plan:
    """The way to a revision from whatever heads the chain stands at."""

    script: ScriptDirectory
    direction: Direction
    wanted: str

    def steps(self, heads: Any) -> list[Any]:
        """Alembic's steps; a place that this direction does not lead to is the user's mistake."""
        script, heads = self.script, tuple(heads) if isinstance(heads, (list, tuple)) else heads
        if (self.direction, self.wanted) in (
            ("upgrade", "base"),
            ("downgrade", "head"),
            ("downgrade", "heads"),
        ):
            raise self._out_of_reach(heads)
        try:
            if self.direction == "upgrade":
                return list(script._upgrade_revs("heads" if self.wanted == "head" else self.wanted, heads))
            return list(script._downgrade_revs(self.wanted, heads))
        except CommandError as error:
            raise self._out_of_reach(heads) from error
        except AttributeError as error:
            raise ConfigurationError(
                f"a revision on the way has no {self.direction}(): {error}",
                advice="write it, or stop before it",
            ) from error

    def _out_of_reach(self, heads: Any) -> RevisionOutOfReach:
        at = ", ".join(heads) if isinstance(heads, tuple) else heads
        return RevisionOutOfReach(self.wanted, self.direction, at or "base")


def run_steps(session: MigrationSession, chain: Chain, plan: Plan, report: Report = silent) -> list[Progress]:
    """Run planned steps through the environment, telling of each before it starts and once it is done."""
    applied: list[Progress] = []
    under_way: list[tuple[Script, Progress]] = []

    def steps(heads: Any, _context: Any) -> Iterator[Any]:
        for step in plan.steps(heads):
            progress = Progress(chain.name, step.revision.revision, subject(step.revision), plan.direction)
            session.watch.begin(f"{chain.name} revision {progress.revision} ({progress.subject})")
            under_way[:] = [(step.revision, progress)]
            report(progress)
            yield step
            # Alembic asks for the next step only after it has committed this one.
            applied.append(replace(progress, done=True))
            under_way.clear()
            report(applied[-1])

    config = alembic_config(chain, connection=session.connection)
    try:
        with (
            ENVIRONMENT,
            translated(session),
            session.watch.following(session.connection),
            EnvironmentContext(config, plan.script, fn=steps),
        ):
            plan.script.run_env()
    except BaseException as error:
        if under_way:
            report(replace(under_way[0][1], fate=session.watch.fate))
        fault = fault_in(Path(under_way[0][0].path), error) if under_way else None
        if fault is None or not isinstance(error, Exception):
            raise
        raise ConfigurationError(
            f"{session.watch.doing} failed and was {session.watch.fate}: {fault}",
            advice="mend the file; the revisions before it stand",
        ) from error
    return applied
