"""The supervisor of a machine: starts workers, watches them by pidfd, replaces those that end.

    slots ──start_child──> a worker ──its end──> restarts: when again, and what it is charged with
                              └── silent or flagged: liveness

The main thread never waits for a database or a tool: `database_thread` and `hardware_sampler` do. Spare
workers stand by in `spares` and `standby`. Begin with `supervisor`.
"""
