"""`python -m queue_workflows.claim_worker`: the same as `qwf worker`."""

from queue_workflows.cli.entry_points import claim_worker

if __name__ == "__main__":
    claim_worker()
