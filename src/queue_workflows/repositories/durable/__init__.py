"""What durable functions store: their steps, the events that they wait for, and which job spawned which.

Begin with `steps`, the statements that each attempt asks; `events` emits and takes, `waits` parks and wakes.
"""
