"""The wiring of a host app that writes down the ends of runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from queue_workflows import on_run_finished


@on_run_finished
def hear(run: Any) -> None:
    with Path(os.environ["HEARD"]).open("a") as heard:
        heard.write(f"{run.id}\n")
