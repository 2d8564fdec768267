"""When the body began, on the clock that all processes of a machine share."""

from __future__ import annotations

import time
from typing import Any


def run(_inputs: dict[str, Any]) -> dict[str, int]:
    return {"at": time.monotonic_ns()}
