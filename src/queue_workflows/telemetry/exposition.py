"""Figures as text for Prometheus, in its text format 0.0.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from queue_workflows.telemetry.names import FIGURES

# A value of a metric, with its labels in the order of the metric's attributes.
Point: TypeAlias = tuple[tuple[str, ...], float]
Points: TypeAlias = Sequence[Point]
Figures: TypeAlias = Mapping[str, Points]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposed(figures: Figures) -> str:
    """What was read, metric by metric in the order of the table; nothing is said of what was not."""
    lines: list[str] = []
    for metric in FIGURES:
        points = figures.get(metric.name, ())
        if points:
            lines.append(f"# HELP {metric.prometheus} {metric.what}")
            lines.append(f"# TYPE {metric.prometheus} {metric.kind}")
        for values, number in points:
            labels = ",".join(
                f'{name}="{_escaped(value)}"' for name, value in zip(metric.attributes, values, strict=True)
            )
            lines.append(f"{metric.prometheus}{f'{{{labels}}}' if labels else ''} {float(number)!r}")
    return "\n".join([*lines, ""])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
