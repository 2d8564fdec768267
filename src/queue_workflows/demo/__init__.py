"""The bundled example that `qwf demo` runs."""

from queue_workflows.demo.story import Outcome, run_demo

__all__ = ["Outcome", "run_demo"]
