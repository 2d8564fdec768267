"""Workers as an operator sees them: all of a host and queue, one with its jobs, and what a wish would do.

`listing` is the list beside what was asked of it, `worker` is one worker, and `what_if` foretells a pause or
a switch-off without writing anything. Begin with `listing`.
"""
