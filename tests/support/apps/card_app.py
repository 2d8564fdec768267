"""A host app that computes on a real card, with PyTorch."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import queue_workflows as qwf

torch: Any = import_module("torch")
# As many an app does when it is imported: it begins nothing on the card, and must do no harm.
assert torch.cuda.is_available()

GB = 1 << 30


def _ones(gb: float) -> Any:
    return torch.ones(int(gb * GB / 4), dtype=torch.float32, device="cuda")


def _model(name: str, gb: float, vram_mb: int) -> qwf.ModelSpec:
    return qwf.ModelSpec(name, load=lambda: _ones(gb), vram_mb=vram_mb)


def models() -> list[qwf.ModelSpec]:
    """Two that fit together, one that needs the room of both, and one that says less than it takes."""
    return [
        _model("first", 6, 6_500),
        _model("second", 5, 5_500),
        _model("large", 9, 9_500),
        _model("liar", 4_000, 9_500),
    ]


def _told() -> dict[str, Any]:
    return {"pid": os.getpid(), "mb": torch.cuda.memory_allocated() >> 20, "sees": torch.cuda.device_count()}


def use(inputs: Any, ctx: Any, model: Any = None) -> dict[str, Any]:
    """Computes on the card, with the model or without."""
    numbers = torch.ones(1000, device="cuda") if model is None else model[:1000]
    return {"sum": float(numbers.sum()), **_told()}


def _out_of_bounds() -> None:
    torch.arange(10, device="cuda")[torch.tensor([100], device="cuda")]
    torch.cuda.synchronize()


def spoil(inputs: Any, ctx: Any) -> dict[str, Any]:
    """An assertion fails on the card: from here on this process can do nothing there."""
    try:
        _out_of_bounds()
    except Exception:
        if not inputs.get("hides"):
            raise
    return {}


def stick(inputs: Any, ctx: Any) -> None:
    """A kernel that runs for minutes, and a call that waits for it."""
    torch.cuda._sleep(int(2e9 * 600))
    torch.cuda.synchronize()


qwf.set_model_registrar(models)
qwf.set_node_resolver({"use": use, "spoil": spoil, "stick": stick}.get)
