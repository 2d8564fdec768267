"""A host app whose document says all that one can say of data; `wire` makes a process its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from queue_workflows import set_ref_resolver, set_workflow_provider

# The echo module returns its inputs, so each result is what the references in them became.
STUDIO = """
name: studio
pipeline: storyboard
inputs: {brief: {type: string}, size: {type: integer, default: 2}}
nodes:
  - id: plan
    inputs:
      brief: {$from: inputs.brief}
      size: {$from: inputs.size}
      scenes: [{kind: day, n: 1}, {kind: night, n: 2}, {kind: day, n: 3}]
      "a key.with dots": {"ünï": [[1, 2], [3]]}
  - id: draw
    for_each: {$filter: {in: {$from: plan.scenes}, where: {$ne: [{$from: it.n}, 2]}}}
    skip_if: {$eq: [{$from: item.n}, {$from: host.unwanted}]}
    inputs: {n: {$from: item.n}, at: {$from: index}, of: {$from: run.workflow}, to: {$from: host.bucket}}
  - id: never
    skip_if: {$ne: [{$from: inputs.brief}, never]}
  - id: show
    inputs:
      all: {$from: draw}
      first: {$from: "draw[0].n"}
      skipped: {$from: "draw[-1].n"}
      deep: {$from: 'plan["a key.with dots"]["ünï"][0][-1]'}
      nothing: {$from: "never.however[3].deep"}
      literal: {$value: {$from: inputs.brief}}
      fair: {$eq: [{$from: inputs.size}, 2.0]}
outputs: {show: {$from: show}, kept: {$filter: {in: {$from: draw}, where: {$ne: [{$from: it}, null]}}}}
"""
STORYBOARD = [
    {"id": "plan", "module": "echo"},
    {"id": "draw", "module": "echo"},
    {"id": "never", "module": "echo"},
    {"id": "show", "module": "echo"},
]


def host(path: str, run: Mapping[str, Any]) -> Any:
    """What this app knows of a run."""
    return {"bucket": f"s3://{run['workflow']}/{run['labels']['team']}", "unwanted": 3}[path]


def every(path: str, run: Mapping[str, Any], found: Callable[[], Any]) -> Any:
    """What `host` knows, and whatever else as it is; it knows of which run it is asked each time."""
    if not run["labels"]["team"]:
        raise ValueError(path)
    return host(path.removeprefix("host."), run) if path.startswith("host.") else found()


def wire() -> None:
    """What the app's module does when it is imported."""
    set_workflow_provider(
        load_workflow={"studio": STUDIO}.get, pipeline_schema={"storyboard": STORYBOARD}.get
    )
    set_ref_resolver(host)
