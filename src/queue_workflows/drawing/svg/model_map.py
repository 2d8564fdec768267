"""Which models are warm where: hosts, their GPUs, the models on each, and how many jobs wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from queue_workflows.drawing.svg.icons import icon_at
from queue_workflows.drawing.svg.looks import look_of, word_of
from queue_workflows.drawing.svg.markup import fitted, linked, percent_of, picture, text_of, titled

MOST_LINES: Final = 600
_LINE: Final = 24
_BAR_LEFT: Final = 0.5
_BAR_WIDTH: Final = 0.38
_NAME_ROOM: Final = 420
_FULL, _HIGH = 0.95, 0.75


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is `loaded`, `cached` or `wanted`, and how many queued jobs need it."""

    name: str
    state: str = "loaded"
    jobs: int = 0
    is_capped: bool = False
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device, what its worker is at, and how full its memory is."""

    name: str
    state: str = "idle"
    note: str = ""
    memory_share: float | None = None
    memory: str = ""
    models: Sequence[Model] = field(default_factory=tuple)
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A host with its devices."""

    name: str
    gpus: Sequence[Gpu] = field(default_factory=tuple)
    href: str | None = None


def draw_model_map(machines: Sequence[Machine], wanted: Sequence[Model] = ()) -> str:
    """Machine by machine, then the models that jobs wait for and nobody has warm."""
    most = max((model.jobs for model in (*_models(machines), *wanted)), default=0)
    lines: list[str] = []
    for machine in machines:
        lines.append(_heading(machine.name, machine.href))
        for gpu in machine.gpus:
            lines.append(_gpu(gpu))
            lines += [_model(model, most, 48) for model in gpu.models]
            if not gpu.models:
                lines.append('<text class="muted" x="48" y="16">no model</text>')
    if wanted:
        lines.append(_heading("Wanted, and warm nowhere", None))
        lines += [_model(model, most, 24) for model in wanted]
    shown = lines[:MOST_LINES]
    inner = "".join(
        f'<svg y="{_LINE * number}" width="100%" height="{_LINE}">{line}</svg>'
        for number, line in enumerate(shown)
    )
    if not shown:
        return ""
    size = f' height="{_LINE * len(shown)}"'
    return picture(inner, label="Models by machine and GPU", css="model-map", size=size, links=True)


def _models(machines: Sequence[Machine]) -> list[Model]:
    return [model for machine in machines for gpu in machine.gpus for model in gpu.models]


def _heading(words: str, href: str | None) -> str:
    rule = '<line class="rule" x1="0" x2="100%" y1="23" y2="23"/>'
    return rule + linked(f'<text class="strong" y="16">{fitted(words, _NAME_ROOM)}</text>', href)


def _gpu(gpu: Gpu) -> str:
    look = look_of(gpu.state)
    words = f"{gpu.name} · {gpu.note}" if gpu.note else gpu.name
    name = (
        f'<g class="{look.css}">{titled(f"{gpu.name}: {word_of(gpu.state)}")}'
        f"{icon_at(gpu.state, 20, 4)}</g>"
        f'<text x="44" y="16">{fitted(words, _NAME_ROOM)}</text>'
    )
    drawn = _clipped(linked(name, gpu.href))
    if gpu.memory_share is not None:
        share = min(1.0, max(0.0, gpu.memory_share))
        tone = "bad" if share >= _FULL else "hold" if share >= _HIGH else "work"
        drawn += _bar(share, f"tone-{tone}", f"memory {gpu.memory}")
    return drawn + _figure(gpu.memory)


def _model(model: Model, most: int, indent: int) -> str:
    look = look_of(model.state)
    name = (
        f'<g class="{look.css}">{titled(f"{model.name}: {word_of(model.state)}")}'
        f"{icon_at(model.state, indent, 4)}</g>"
        f'<text x="{indent + 24}" y="16">{fitted(model.name, _NAME_ROOM - indent)}</text>'
    )
    figure = f"{model.jobs:,}{'+' if model.is_capped else ''}"
    words = f"{figure} {'job' if figure == '1' else 'jobs'}"
    drawn = _clipped(linked(name, model.href))
    if model.jobs and most:
        drawn += _bar(
            model.jobs / most, "tone-hold" if model.state == "wanted" else "tone-idle", f"{words} wait for it"
        )
    return drawn + _figure(words)


def _clipped(inner: str) -> str:
    return f'<svg width="{percent_of(_BAR_LEFT - 0.02)}" height="{_LINE}">{inner}</svg>'


def _bar(share: float, css: str, words: str) -> str:
    at, whole = percent_of(_BAR_LEFT), percent_of(_BAR_WIDTH)
    return (
        f'<g class="{css}">{titled(words)}<rect class="track" x="{at}" y="8" width="{whole}" height="8"/>'
        f'<rect class="tone" x="{at}" y="8" width="{percent_of(share * _BAR_WIDTH)}" height="8"/></g>'
    )


def _figure(words: str) -> str:
    return f'<text class="tiny muted end" x="100%" y="16">{text_of(words)}</text>'
