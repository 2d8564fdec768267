"""What the machines were at over the last hours: a reading of each half minute, in places that go round.

The place of a reading is its half minute modulo `SLOTS`, so a machine has no more rows than that however long
it is looked at, and writing one is an update of a row that stays where it is: nothing has to be deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import ASYNCHRONOUSLY

STEP_S: Final = 30
SLOTS: Final = 240
# Beyond it no reading is shown: its place was to be written again.
KEPT_S: Final = STEP_S * SLOTS
_OF_DEVICES: Final = (
    "id",
    "vendor",
    "number",
    "name",
    "utilisation_percent",
    "memory_used_mb",
    "memory_total_mb",
)

KEEP: Final = f"""
INSERT INTO host_hardware_history AS last
    (host_label, slot, sampled_at, cpu_percent, memory_used_mb, memory_total_mb, devices)
SELECT %(host_label)s::text,
    mod(floor(extract(epoch FROM statement_timestamp()) / {STEP_S})::bigint, {SLOTS})::integer,
    statement_timestamp(), %(cpu_percent)s::float8, %(memory_used_mb)s::integer,
    %(memory_total_mb)s::integer, %(devices)s::jsonb
WHERE {ASYNCHRONOUSLY}
ON CONFLICT (host_label, slot) DO UPDATE SET
    sampled_at = EXCLUDED.sampled_at, cpu_percent = EXCLUDED.cpu_percent,
    memory_used_mb = EXCLUDED.memory_used_mb, memory_total_mb = EXCLUDED.memory_total_mb,
    devices = EXCLUDED.devices
RETURNING slot
"""  # noqa: S608 - fragments of our own
READ: Final = """
SELECT host_label, sampled_at, extract(epoch FROM statement_timestamp() - sampled_at)::float8,
    cpu_percent, memory_used_mb, memory_total_mb, devices::text
FROM host_hardware_history
WHERE (%(host_label)s::text = '*' OR host_label = %(host_label)s::text)
    AND sampled_at > statement_timestamp() - make_interval(secs => %(within_s)s::float8)
ORDER BY host_label, sampled_at
"""
FORGET: Final = """
DELETE FROM host_hardware_history
WHERE sampled_at < statement_timestamp() - make_interval(secs => %(older_than_s)s::float8)
RETURNING slot
"""


@dataclass(frozen=True, slots=True)
class PastReading:
    """A machine as it was `age_s` ago; each device has its `id`, and of its other figures those it told."""

    host_label: str
    sampled_at: datetime
    age_s: float
    cpu_percent: float | None
    memory_used_mb: int
    memory_total_mb: int
    devices: list[dict[str, Any]]


class HardwareHistoryRepository:
    """Readings of the last hours on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "host_hardware_history")

    def keep(self, host_label: str, reading: Mapping[str, Any]) -> None:
        """Store what of a reading is drawn over time, as that of this half minute."""
        machine = reading["machine"]
        devices = [{name: one[name] for name in _OF_DEVICES if name in one} for one in reading["devices"]]
        params = {
            "host_label": check.text("host_label", host_label),
            "cpu_percent": machine["cpu_percent"],
            "memory_used_mb": machine["memory_used_mb"],
            "memory_total_mb": machine["memory_total_mb"],
            "devices": json.dumps(devices),
            "relaxed": self._sql.commits_each,
        }
        self._sql.rows(KEEP, params)

    def readings(self, host_label: str = "*", *, within_s: float = KEPT_S) -> list[PastReading]:
        """The readings of a machine, `*` for any, that are no older; the oldest first."""
        params = {
            "host_label": check.text("host_label", host_label),
            "within_s": check.seconds("within_s", within_s),
        }
        return [
            PastReading(host, at, age_s, cpu, used, total, json.loads(devices))
            for host, at, age_s, cpu, used, total, devices in self._sql.rows(READ, params)
        ]

    def forget(self, *, older_than_s: float) -> int:
        """Delete what is older, of machines that nobody looks at any more; how many."""
        return len(self._sql.rows(FORGET, {"older_than_s": check.seconds("older_than_s", older_than_s)}))
