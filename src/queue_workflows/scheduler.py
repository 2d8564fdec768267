"""`python -m queue_workflows.scheduler`: the same as `qwf scheduler`."""

from queue_workflows.cli.entry_points import scheduler

if __name__ == "__main__":
    scheduler()
