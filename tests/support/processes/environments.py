"""The environment of this process for another one, without what is said in it to the tests."""

from __future__ import annotations

import os
from pathlib import Path

# Stays in every environment: else tests would take locks where the programs of this machine meet.
LOCKS = "QWF_LOCK_DIR"


def environment_without(*prefixes: str, locks: Path | None = None) -> dict[str, str]:
    """Without the variables that begin so.

    `locks` is for another user, who cannot enter the directory of the tests' own.
    """
    kept = {
        name: value for name, value in os.environ.items() if name == LOCKS or not name.startswith(prefixes)
    }
    return kept if locks is None else {**kept, LOCKS: str(locks)}
