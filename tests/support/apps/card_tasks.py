"""The wiring of a host app whose tasks use a card through a stand-in for the driver's library."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from queue_workflows import ingest_task

# As a framework does when it is imported.
driver = ctypes.CDLL(os.environ["CARD_DRIVER"])


@ingest_task("spoils", queue="fetch")
def spoils(reason: str | None, args: dict[str, Any]) -> dict[str, int]:
    """Spoils the process's context with a code of the driver's, and fails or hides it."""
    driver.spoil(args["code"])
    if args.get("hides"):
        return {"hidden": driver.use()}
    raise RuntimeError(f"CUDA error {driver.use()}")


@ingest_task("uses", queue="fetch")
def uses(reason: str | None, args: dict[str, Any]) -> dict[str, int]:
    """Fails as every use of a card does whose context is spoilt."""
    if code := driver.use():
        raise RuntimeError(f"CUDA error {code}")
    return {"pid": os.getpid()}
