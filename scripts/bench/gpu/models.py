"""The wiring of the workers whose placement is measured: models that take as long to load as a table says."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from queue_workflows import ModelSpec, set_model_registrar, set_node_resolver

# Seconds that it takes to load each model, the most wanted first; as from a local disk, for 4 to 40 GB.
LOADS: Final = (12, 30, 8, 20, 6, 40, 10, 15, 25, 5, 18, 9, 35, 7, 22, 14, 11, 28, 16, 4)
# All times are divided by it: loads, jobs, and what a worker is told to be patient about.
SCALE: Final = 50.0
# Where each load is written down.
PLACE: Final = "BENCH_LOADS"


def load(number: int) -> int:
    """Nothing but the time, and a line for the account."""
    with Path(os.environ[PLACE]).open("a") as loads:
        loads.write(f"{number}\n")
    time.sleep(LOADS[number] / SCALE)
    return number


def paint(inputs: dict[str, Any], model: int) -> dict[str, Any]:
    """Take as long as the job says."""
    time.sleep(inputs["s"])
    return {"model": model}


def models() -> list[ModelSpec]:
    return [ModelSpec(f"m{number}", load=partial(load, number)) for number in range(len(LOADS))]


set_model_registrar(models)
set_node_resolver({"paint": paint}.get)
