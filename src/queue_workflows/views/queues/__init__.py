"""Queues as operators see them: how full they are, and which jobs come next.

`stats` is what waits, runs and ended, with the workers that are there; `next_jobs` is the line of one queue
in the order of the claim, with what each job will meet. Begin with `next_jobs`.
"""
