"""For the `env.py` of an app that runs Alembic itself, in the database that has our tables too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queue_workflows.config import ENGINE_VERSION_TABLE
from queue_workflows.db.migrations.chain.chains import LEGACY_LEDGER
from queue_workflows.db.migrations.chain.tables import engine_tables, is_month_of_history

# Now, as the revisions are asked: in the midst of a migration of somebody's, Alembic can run no others.
_OURS: Final = engine_tables() | {ENGINE_VERSION_TABLE, LEGACY_LEDGER}


def include_name(name: str | None, type_: str, parent_names: Mapping[str, Any]) -> bool:
    """Alembic's filter of that name: what the engine has made, autogenerate and `check` do not look at.

    Where there is a filter already, it is asked within that one.
    """
    if type_ != "table" or parent_names.get("schema_name") is not None:
        return True
    return name not in _OURS and not is_month_of_history(name)
