"""What keeps a schema from being used or migrated, each as the error that says what helps."""

from __future__ import annotations

from queue_workflows.config import ENGINE_VERSION_TABLE
from queue_workflows.db.migrations.chain.chains import Chain
from queue_workflows.db.migrations.state import ChainState, Status
from queue_workflows.errors import MigrationRefused, SchemaAhead, SchemaBehind, SchemaDrift, SchemaError

ADOPT_ADVICE = "convert the hand-made ledger first: `qwf db adopt --dry-run`, then `qwf db adopt`"


def refuse_misfit(state: ChainState, chain: Chain, *, but: tuple[Status, ...] = ()) -> None:
    """Raise what no upgrade would mend, except the states that the caller can deal with."""
    error = misfit(state, chain)
    if error is not None and state.status not in but:
        raise error


def behind(state: ChainState, needed: str) -> SchemaBehind:
    """The error for a schema that is older than `needed`."""
    advice = ADOPT_ADVICE if state.status == "hand-made" else None
    return SchemaBehind(state.shown, needed, advice=advice, chain=state.chain)


def misfit(state: ChainState, chain: Chain) -> SchemaError | None:
    """What is wrong with a schema that an upgrade does not mend."""
    if state.status == "ahead":
        # A schema this code has never heard of is nobody's to touch.
        advice = "deploy the version of the host app that made it, or downgrade with that version"
        host = state.chain == "host"
        return SchemaAhead(state.shown or "", state.head, chain=state.chain, advice=advice if host else None)
    if state.status == "hand-made":
        # It has the name of our version table; moving on it would take its tables for absent.
        return MigrationRefused(
            f"{ENGINE_VERSION_TABLE} is the hand-made ledger of an older chain of SQL files",
            advice=ADOPT_ADVICE,
        )
    if state.status == "unrecorded":
        return MigrationRefused(
            f"the engine's tables are there, but {chain.version_table} names no revision",
            advice="`qwf db adopt` finds out which one they are at and records it; if the tables are another"
            " application's, give this one a schema of its own",
        )
    if state.status == "contradictory":
        rows = " and ".join(state.current)
        return MigrationRefused(
            f"{chain.version_table} names {rows}, one of which is on the way to the other",
            advice="delete the row that is not true, as a rule that of the older, and let `qwf db check`"
            " tell whether the other is",
        )
    if state.status == "damaged":
        lost = list(state.missing)
        return SchemaDrift(
            f"the database schema is at {state.shown}, but tables of it are gone: {', '.join(lost)}",
            [f"table {name} is missing" for name in lost],
            advice="bring them back from a backup; if all of the engine's rows may go:"
            " `qwf db downgrade base --chain engine`, then `qwf db upgrade`",
        )
    return None
