"""`python -m queue_workflows.orchestrator`: the same as `qwf orchestrator`."""

from queue_workflows.cli.entry_points import orchestrator

if __name__ == "__main__":
    orchestrator()
