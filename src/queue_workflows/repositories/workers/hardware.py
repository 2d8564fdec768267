"""What the machines are at: the last reading of each, told to listeners as well.

Those of the last hours are in `hardware_history`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import ASYNCHRONOUSLY

CHANNEL: Final = "hw_metrics"
LOOKS_MISSED: Final = 3

# What a supervisor has to say of its machine: of devices that it gives to workers, then of those it sees.
_SAYS: Final = (
    "({0}.reading #>> '{{supervisor,devices}}')::integer, jsonb_array_length({0}.reading -> 'devices')"
)
# reported: the one row of this machine, unless a supervisor that has more to say of it told its own not long
# ago. Every part is a message of its own, as one has an upper limit.
REPORT: Final = f"""
WITH reported AS (
    INSERT INTO host_hardware AS last (host_label, reading, every_s, sampled_at)
    VALUES (%(host_label)s::text, %(reading)s::jsonb, %(every_s)s::float8, statement_timestamp())
    ON CONFLICT (host_label) DO UPDATE SET
        reading = EXCLUDED.reading, every_s = EXCLUDED.every_s, sampled_at = EXCLUDED.sampled_at
    WHERE {ASYNCHRONOUSLY} AND (
        last.reading #>> '{{supervisor,id}}' = EXCLUDED.reading #>> '{{supervisor,id}}'
        OR (last.reading -> 'supervisor') IS NULL
        OR ({_SAYS.format("last")}) <= ({_SAYS.format("EXCLUDED")})
        OR last.sampled_at < statement_timestamp() - make_interval(secs => {LOOKS_MISSED} * last.every_s)
    )
    RETURNING host_label
)
SELECT pg_notify('{CHANNEL}', part.text) FROM reported CROSS JOIN unnest(%(parts)s::text[]) AS part (text)
"""  # noqa: S608 - fragments of our own
READ: Final = """
SELECT host_label, reading::text, every_s, sampled_at,
    extract(epoch FROM statement_timestamp() - sampled_at)::float8
FROM host_hardware
WHERE %(host_label)s::text = '*' OR host_label = %(host_label)s::text
ORDER BY host_label
"""
FORGET: Final = """
DELETE FROM host_hardware
WHERE sampled_at < statement_timestamp() - make_interval(secs => %(older_than_s)s::float8)
RETURNING host_label
"""


@dataclass(frozen=True, slots=True)
class HostReading:
    """A machine as it was seen `age_s` ago."""

    host_label: str
    reading: dict[str, Any]
    every_s: float
    sampled_at: datetime
    age_s: float

    def is_stale(self, stale_s: float) -> bool:
        """Whether nobody looks any more: a few looks are missing."""
        return self.age_s > max(stale_s, LOOKS_MISSED * self.every_s)


class HardwareRepository:
    """Readings of machines on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "host_hardware")

    def report(
        self, host_label: str, reading: dict[str, Any], *, every_s: float, parts: Sequence[str]
    ) -> bool:
        """Store a machine's reading in place of the one before, and tell `parts`; whether it was taken.

        Several supervisors may look at one machine: the reading of one that gives no devices to workers, or
        sees none, does not replace that of one that does. What a crash of the server forgets is told anew.
        """
        params = {
            "host_label": check.text("host_label", host_label),
            "reading": json.dumps(reading),
            "every_s": check.seconds("every_s", every_s),
            "parts": list(parts),
            "relaxed": self._sql.commits_each,
        }
        return bool(self._sql.rows(REPORT, params))

    def readings(self, host_label: str = "*") -> list[HostReading]:
        """The last of each machine, `*` for any, however old."""
        rows = self._sql.rows(READ, {"host_label": check.text("host_label", host_label)})
        return [HostReading(host, json.loads(text), *rest) for host, text, *rest in rows]

    def forget(self, *, older_than_s: float) -> int:
        """Delete the readings of machines that nobody has looked at for so long; how many."""
        return len(self._sql.rows(FORGET, {"older_than_s": check.seconds("older_than_s", older_than_s)}))
