"""A host app with models on a simulated card, each of which says that it takes half of what it does.

What is in use stands in the file `CARD_MEMORY`; what finds too little is refused, as a card does, and written
down beside it. What a job took stays with its model, as the frameworks' allocators keep it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import queue_workflows as qwf

CARD = Path(os.environ["CARD_MEMORY"])
CARD_MB = 24_000
# What a model takes, and its jobs besides.
TRUE_MB = {"painter": (9_000, 1_500), "writer": (8_000, 500), "singer": (11_000, 0), "small": (2_000, 200)}
_grown: set[str] = set()


def _take(what: str, mb: int) -> None:
    used = int(CARD.read_text() or 0)
    if used + mb > CARD_MB:
        with CARD.with_name("refused").open("a") as refused:
            refused.write(f"{what} {mb}\n")
        raise RuntimeError("CUDA out of memory")
    CARD.write_text(str(used + mb))


def _load(name: str) -> str:
    _take(name, TRUE_MB[name][0])
    with CARD.with_name("loads").open("a") as loads:
        loads.write(f"{name}\n")
    return name


def _unload(name: str) -> None:
    taken = TRUE_MB[name][0] + (TRUE_MB[name][1] if name in _grown else 0)
    _grown.discard(name)
    CARD.write_text(str(int(CARD.read_text()) - taken))


def models() -> list[qwf.ModelSpec]:
    """Each says half of the truth."""
    return [
        qwf.ModelSpec(name, load=lambda name=name: _load(name), unload=_unload, vram_mb=sum(mb) / 2)
        for name, mb in TRUE_MB.items()
    ]


def draw(inputs: dict[str, Any], model: str) -> dict[str, Any]:
    """Takes what its model's jobs take, once for as long as that is loaded."""
    if model not in _grown:
        _take(f"a job of {model}", TRUE_MB[model][1])
        _grown.add(model)
    return {"model": model}


qwf.set_model_registrar(models)
qwf.set_node_resolver({"draw": draw}.get)
