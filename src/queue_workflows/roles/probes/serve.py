"""Answers to probes for as long as a role runs; without probes no web server is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from queue_workflows.roles.probes.health import HealthReport


@contextmanager
def probed(report: HealthReport, address: tuple[str, int] | None, file: Path | None) -> Iterator[None]:
    """Answer at this address, and in this file, meanwhile."""
    with ExitStack() as until_the_end:
        if address is not None or file is not None:
            from queue_workflows.roles.probes.servers import HealthFile, HealthServer

            if address is not None:
                until_the_end.enter_context(HealthServer(report, address))
            if file is not None:
                until_the_end.enter_context(HealthFile(report, file))
        yield
