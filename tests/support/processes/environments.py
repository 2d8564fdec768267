"""The environment of this process for another one, without what is said in it to the tests."""

from __future__ import annotations

import os
from pathlib import Path

# They stay in every environment: else tests would take locks where the programs of this machine meet, and
# leave embedded servers that wait for another user.
LOCKS = "QWF_LOCK_DIR"
LINGER = "QWF_EMBEDDED_LINGER_S"


def environment_without(*prefixes: str, locks: Path | None = None) -> dict[str, str]:
    """Without the variables that begin so.

    `locks` is for another user, who cannot enter the directory of the tests' own.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in (LOCKS, LINGER) or not name.startswith(prefixes)
    }
    return kept if locks is None else {**kept, LOCKS: str(locks)}
