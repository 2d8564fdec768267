"""A model of PyTorch on the CPU, where that is installed: loaded, used by several jobs, gone afterwards."""

from __future__ import annotations

import time
import weakref
from typing import Any

import pytest
from support.rows.claimed_jobs import context, node_job

from queue_workflows import ModelSpec
from queue_workflows.engine.execution.executor import execute
from queue_workflows.engine.node_inputs.loaded_model import on_loaded_model
from queue_workflows.engine.outcomes import Completed
from queue_workflows.engine.registry.node_modules import ModuleResolver
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.gpu.models import ModelRegistry

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")


def test_its_weights_are_the_same_for_all_jobs_and_freed_with_it() -> None:
    """The second job finds what the first one loaded; unloaded, nothing of it is left in the process."""

    def load() -> Any:
        torch.manual_seed(7)
        return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)).eval()

    def run(inputs: dict[str, Any], model: Any) -> dict[str, Any]:
        with torch.inference_mode():
            return {"value": float(model(torch.full((1, 64), inputs["x"])))}

    registry = ModelRegistry(lambda: [ModelSpec("small", load=load)])
    cache = ModelCache(registry, queue="gpu", budget_mb=None, keep_s=60, clock=time.monotonic)
    work = ModuleResolver(resolver={"draw": run}.get).find("draw")
    assert work is not None
    outcomes = []
    for _ in range(2):
        job = node_job(required_model="small", inputs={"x": 0.5})
        ctx = context(job)
        ready = on_loaded_model(work, "small", ctx, cache, timeout_s=60, clock=time.monotonic)
        outcomes.append(execute(job, ready, ctx))
        gone = weakref.ref(ctx.model)
        ctx.model = None
        cache.used()
    assert isinstance(outcomes[0], Completed)
    assert outcomes[0] == outcomes[1]
    assert (cache.told["model_hits"], cache.told["model_misses"]) == (1, 1)
    cache.unload_all()
    assert gone() is None
