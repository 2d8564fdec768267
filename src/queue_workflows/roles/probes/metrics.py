"""Where Prometheus scrapes what the database says."""

from __future__ import annotations

from collections.abc import Callable

from queue_workflows.roles.probes.http import Answer, AnsweringServer
from queue_workflows.telemetry.exposition import CONTENT_TYPE, Figures, exposed

_ELSEWHERE = Answer(404, "text/plain; charset=utf-8", "the figures are at /metrics\n")


class MetricsServer(AnsweringServer):
    """GET /metrics."""

    def __init__(self, figures: Callable[[], Figures], address: tuple[str, int]) -> None:
        def answer(path: str) -> Answer:
            return Answer(200, CONTENT_TYPE, exposed(figures())) if path == "/metrics" else _ELSEWHERE

        super().__init__(
            answer, address, name="metrics", advice="give another --port or --host, or end what is there"
        )
