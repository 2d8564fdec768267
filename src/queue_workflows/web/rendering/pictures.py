"""From what views say to the pictures that show it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from markupsafe import Markup

from queue_workflows.drawing.hardware import Curve
from queue_workflows.drawing.svg.charts import line_chart
from queue_workflows.drawing.svg.graph import draw_graph
from queue_workflows.drawing.svg.grid import Column, draw_grid
from queue_workflows.drawing.svg.model_map import Gpu, Machine, Model, draw_model_map
from queue_workflows.drawing.svg.timeline import Band, Row, draw_timeline
from queue_workflows.drawing.svg.wait_bar import draw_wait_bar
from queue_workflows.engine.explain.wait_bar import Segment
from queue_workflows.states import RUN_TERMINAL
from queue_workflows.views.models import Device, ModelMap, WarmWorker
from queue_workflows.views.runs.graph import RunGraph
from queue_workflows.views.runs.timeline import Bar, RunTimeline, said_of_pause
from queue_workflows.views.workflows import WorkflowGrid
from queue_workflows.web.rendering import texts


def graph_picture(graph: RunGraph, prefix: str) -> Markup:
    """The run as boxes, each leading to its node."""
    named = {box.id: box.named[0] for box in graph.boxes if box.named}

    def href_of(box_id: str) -> str | None:
        node = named.get(box_id)
        return None if node is None else _node_place(prefix, str(graph.run.id), node)

    return _drawn(draw_graph(graph.boxes, graph.edges, href_of=href_of))


def timeline_picture(timeline: RunTimeline, prefix: str) -> Markup:
    """A bar for each node or element, waiting and working told apart."""

    def row(bar: Bar) -> Row:
        place = (
            _node_place(prefix, str(timeline.run_id), bar.node)
            if bar.job is None
            else f"{prefix}/jobs/node:{bar.job}"
        )
        note = f"{bar.members:,} of them" if bar.members > 1 else ""
        return Row(bar.label, bar.state, bar.segments, place, note, 0 if bar.index is None else 1)

    return _drawn(
        draw_timeline(
            [row(bar) for bar in timeline.bars],
            begin=timeline.begin,
            end=timeline.end,
            is_over=timeline.status in RUN_TERMINAL,
            label="Timeline of the run",
            bands=[Band(one.start, one.end, said_of_pause(one)) for one in timeline.pauses],
        )
    )


def wait_bar_picture(segments: Sequence[Segment], state: str) -> Markup:
    """Where one job's time went."""
    return _drawn(draw_wait_bar(segments, state=state))


def model_map_picture(seen: ModelMap, prefix: str) -> Markup:
    """Hosts with their GPUs, the models that are loaded there, and what nobody has."""
    wanted = {one.model: one for one in seen.models}

    def model(name: str, state: str = "loaded") -> Model:
        one = wanted.get(name)
        jobs = 0 if one is None else one.queued + one.held
        return Model(name, state, jobs, one is not None and one.at_least)

    def gpu(one: WarmWorker) -> Gpu:
        place = f"{prefix}/workers/{quote(one.worker.worker_id, safe=':@')}"
        name = one.device.name or one.device.id or one.worker.worker_id
        note = "" if name == one.worker.worker_id else one.worker.worker_id
        share, memory = _memory(one.device)
        models = [*map(model, one.models)]
        return Gpu(name, str(one.worker.state), note, share, memory, models, place)

    machines: dict[str, list[Gpu]] = {}
    for one in seen.workers:
        machines.setdefault(one.worker.host_label, []).append(gpu(one))
    cold = [model(one.model, "wanted") for one in seen.models if one.is_cold]
    hosts = [
        Machine(label, gpus, f"{prefix}/hosts/{quote(label, safe='')}") for label, gpus in machines.items()
    ]
    return _drawn(draw_model_map(hosts, cold))


def _memory(device: Device) -> tuple[float | None, str]:
    """How full it is, and that in words: a worker may be on a device that nothing reports on."""
    used, total = device.memory_used_mb, device.memory_total_mb
    if used is None:
        return None, texts.MEMORY_NOT_REPORTED
    if not total:
        return None, f"{used / 1024:,.1f} GB"
    return used / total, f"{used / 1024:,.1f} of {total / 1024:,.1f} GB"


def curve_picture(curve: Curve) -> Markup:
    """Percents over the last hour."""
    label = f"{curve.name} {curve.what}, in percent, over the last hour"
    return _drawn(line_chart(curve.values, top=100, label=label, unit=" %", first="an hour ago"))


def grid_picture(grid: WorkflowGrid, prefix: str) -> Markup:
    """A column for each run, the newest at the left, and a row for each node."""
    columns = [
        Column(
            row.status,
            f"{row.run} {row.status}",
            {node: cell.state for node, cell in zip(grid.nodes, row.cells, strict=True) if cell is not None},
            f"{prefix}/runs/{row.run}",
        )
        for row in grid.rows
    ]
    return _drawn(draw_grid(grid.nodes, columns, label=f"Nodes of the last runs of {grid.workflow}"))


def _node_place(prefix: str, run: str, node: str) -> str:
    return f"{prefix}/runs/{run}/nodes/{quote(node, safe='')}"


def _drawn(svg: str) -> Markup:
    """Every text in it was escaped where it was drawn."""
    return Markup(svg)  # noqa: S704
