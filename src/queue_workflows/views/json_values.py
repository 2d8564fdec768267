"""What JSON has no type for, as every answer for machines writes it."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def plain(value: Any) -> Any:
    """A value that `json.dumps` does not know: times in ISO 8601 with their zone, the rest as its text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
