"""The wiring of a host app that brings no package, and a task that tells what its worker has loaded."""

from __future__ import annotations

import sys

from queue_workflows import ingest_task


@ingest_task("loaded")
def loaded(reason: str | None) -> list[str]:
    return sorted(sys.modules)
