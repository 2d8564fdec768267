"""Runs of workflows: what starts them, moves them on and ends them.

    verbs.start ──> open_nodes ──> jobs ──> outbox ──> dispatcher ──> advance ──> open_nodes, close_run

An orchestrator's `dispatcher` takes the outbox of one run at a time under that run's row lock; `advance` is
what it does there. `parked_inputs` and `child_runs` complete nodes that no job executes, `retry` opens a run
again, and `finished_run_hooks` tells the host app of its end. Begin with `advance`.
"""
