"""Runs of workflows as rows: their nodes, their outbox, their ends.

`runs` starts and reads them, `nodes` are the counters of each node under the run's row lock, `outbox` holds
the ends of node jobs until the dispatcher has acted on them, and `parked` and `inputs` are nodes that wait
for time or for people. Begin with `outbox`.
"""
