"""The bundled example that `qwf demo` runs."""

from queue_workflows.demo.outcome import Outcome, Row
from queue_workflows.demo.story import Stage, run_demo

__all__ = ["Outcome", "Row", "Stage", "run_demo"]
