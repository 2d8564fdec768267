"""Machines that run hooks, by the label of their host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.table import Filters, Repository, Table

if TYPE_CHECKING:
    from queue_workflows.models import Machine

_TABLE: Final[Table[Machine]] = Table("machines")

# What is said of a machine is added to what is known of it.
SEEN: Final = """
INSERT INTO machines (host_label, facts) VALUES (%(host_label)s::text, %(facts)s::jsonb)
ON CONFLICT (host_label) DO UPDATE SET
    last_seen = statement_timestamp(), facts = machines.facts || excluded.facts
RETURNING id
"""


class MachineRepository(Repository["Machine"]):
    """Machines on the caller's connection."""

    _table = _TABLE

    def seen(self, host_label: str, facts: dict[str, Any] | None = None) -> int:
        """Note that a machine is there, and what is known of it; its id."""
        params = {
            "host_label": check.text("host_label", host_label),
            "facts": self._limits.json_object("facts", facts),
        }
        return int(self._sql.rows(SEEN, params)[0][0])

    # Last, because its name hides the builtin from the annotations below it.
    def list(self, *, limit: int = 1_000, after: int | None = None) -> list[Machine]:
        """All machines, in the order in which they were first seen."""
        return self._page(Filters(), by="id", after=after, limit=limit, newest_first=False)

    # Awaited, on an asynchronous connection.
    alist = awaitable(list)
