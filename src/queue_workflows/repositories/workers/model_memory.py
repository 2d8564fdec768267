"""What models took of devices: stored by the workers that loaded them, read by all on such devices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements

# So many of the last figures are kept.
KEPT: Final = 8
# More than any host app has.
MOST_READ: Final = 2_000
# A model that nobody has loaded for so long is forgotten.
FORGOTTEN_AFTER_S: Final = 180 * 86_400.0

# What is new stands before what was there.
_STORE: Final = """
INSERT INTO model_memory AS known (model, device, load_mb, peak_mb, loads, declared_mb)
VALUES (
    %(model)s::text, %(device)s::text, %(load_mb)s::jsonb, %(peak_mb)s::jsonb, %(loads)s::bigint,
    %(declared_mb)s::float8
)
ON CONFLICT (model, device) DO UPDATE SET
    load_mb = jsonb_path_query_array(EXCLUDED.load_mb || known.load_mb, '$[0 to {last}]'),
    peak_mb = jsonb_path_query_array(EXCLUDED.peak_mb || known.peak_mb, '$[0 to {last}]'),
    loads = known.loads + EXCLUDED.loads, declared_mb = EXCLUDED.declared_mb,
    last_seen = statement_timestamp()
RETURNING model
"""
STORE: Final = _STORE.replace("{last}", str(KEPT - 1))
READ: Final = """
SELECT model, device, load_mb::text, peak_mb::text, loads, declared_mb, last_seen FROM model_memory
WHERE (%(device)s::text IS NULL OR device = %(device)s::text)
    AND (%(model)s::text IS NULL OR model = %(model)s::text)
ORDER BY model, device
LIMIT {most}
""".replace("{most}", str(MOST_READ))
FORGET: Final = """
DELETE FROM model_memory
WHERE last_seen < statement_timestamp() - make_interval(secs => %(for_s)s::float8)
RETURNING model
"""


class ModelMemoryRow(NamedTuple):
    """A model on a kind of device: the last loads and peaks in MB, the newest first, and what it says."""

    model: str
    device: str
    load_mb: list[float]
    peak_mb: list[float]
    loads: int
    declared_mb: float | None
    last_seen: datetime

    @property
    def held_mb(self) -> float | None:
        """The most that a load of the last ones took."""
        return max(self.load_mb, default=None)

    @property
    def used_mb(self) -> float | None:
        """The most that a load of the last ones took with a job."""
        return max((*self.load_mb, *self.peak_mb), default=None)


class ModelMemoryRepository:
    """The rows of all models and devices."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "model_memory")

    def store(
        self,
        model: str,
        device: str,
        *,
        load_mb: Sequence[float],
        peak_mb: Sequence[float],
        declared_mb: float | None,
    ) -> None:
        """Add what was seen, the newest first."""
        self._sql.rows(
            STORE,
            {
                "model": check.text("model", model),
                "device": check.text("device", device),
                "load_mb": json.dumps([round(mb, 1) for mb in load_mb]),
                "peak_mb": json.dumps([round(mb, 1) for mb in peak_mb]),
                "loads": len(load_mb),
                "declared_mb": declared_mb,
            },
        )

    def read(self, *, device: str | None = None, model: str | None = None) -> list[ModelMemoryRow]:
        """What is known, of a device or a model or of all."""
        rows = self._sql.rows(READ, {"device": device, "model": model})
        return [
            ModelMemoryRow(name, kind, json.loads(loads), json.loads(peaks), *rest)
            for name, kind, loads, peaks, *rest in rows
        ]

    def forget(self, *, for_s: float = FORGOTTEN_AFTER_S) -> list[str]:
        """Forget models that were not loaded for so long; which."""
        return [model for (model,) in self._sql.rows(FORGET, {"for_s": check.seconds("for_s", for_s)})]
