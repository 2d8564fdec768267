"""Whether a deploy is safe: the schema, and what the code would meet of open work."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from psycopg import errors

from queue_workflows.config import current_config, effective_settings
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.db.migrations.chain.chains import host_chain, select_chains
from queue_workflows.db.migrations.refusals import behind, misfit
from queue_workflows.db.migrations.state import ChainState, read_state
from queue_workflows.engine.deploy.check import check_deploy
from queue_workflows.engine.deploy.findings import DeployReport, Finding, Level, LookedAt
from queue_workflows.engine.registry.tasks import current_tasks
from queue_workflows.errors import SchemaBehind

# A database without the engine's tables has nothing that a deploy could meet.
_NOTHING: Final = DeployReport((), LookedAt())


@dataclass(frozen=True, slots=True)
class DeployCheck:
    """The findings about the schema, then those about open work."""

    schema: Sequence[Finding]
    report: DeployReport

    @property
    def findings(self) -> list[Finding]:
        """All of them, the worst first."""
        found = [*self.schema, *self.report.findings]
        return [one for level in Level for one in found if one.level is level]

    def at(self, level: Level) -> list[Finding]:
        """The findings of one level."""
        return [one for one in self.findings if one.level is level]


def read_deploy_check(
    dsn: str | None, *, app: str | None, queues: Collection[str] = (), not_ours: Collection[str] = ()
) -> DeployCheck:
    """Compare the code that this process has imported with the database; nothing is changed."""
    with Database.open(dsn, role="cli", creates=False) as database:
        with database.engine.connect() as connection:
            connection.detach()
            states = [(chain, read_state(connection, chain)) for chain in select_chains("all", host_chain())]
            schema = [_of_schema(state, misfit(state, chain)) for chain, state in states]
        if states[0][1].status == "empty":
            return DeployCheck([one for one in schema if one], _NOTHING)
        found = [one for one in schema if one]
        try:
            with database.connect(autocommit=True) as asking, at_one_moment(asking):
                report = check_deploy(
                    asking,
                    current_config(),
                    effective_settings(),
                    current_tasks(),
                    app=app,
                    queues=queues,
                    not_ours=not_ours,
                )
        except (errors.UndefinedTable, errors.UndefinedColumn, SchemaBehind):
            if not found:
                raise
            too_old = "the schema is too far behind for a look at what is open: `qwf db upgrade` first"
            return DeployCheck(
                [*found, Finding(Level.UNSEEN, "schema", "engine", too_old, of="schema")], _NOTHING
            )
    return DeployCheck(found, report)


def json_of(check: DeployCheck) -> dict[str, Any]:
    """For programs: whether anything breaks, how much there is of each level, and each finding."""
    return {
        "breaks": len(check.at(Level.BREAKS)),
        "changes": len(check.at(Level.CHANGES)),
        "unseen": len(check.at(Level.UNSEEN)),
        "findings": [asdict(one) for one in check.findings],
        "looked_at": asdict(check.report.looked_at),
    }


def _of_schema(state: ChainState, wrong: Exception | None) -> Finding | None:
    if wrong is not None:
        return Finding(Level.BREAKS, "schema", state.chain, str(wrong), of="schema")
    if state.status == "current":
        return None
    needed = behind(state, state.head)
    return Finding(
        Level.CHANGES, "schema", state.chain, f"{needed.message}: {needed.advice}, first", of="schema"
    )
