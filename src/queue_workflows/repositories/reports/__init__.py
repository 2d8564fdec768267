"""What people and dashboards ask: lists, counts, figures, and all that decides whether a job runs.

Nothing here changes a row, and no statement's cost grows with what is stored where it is asked often.
Begin with `queue_statistics`.
"""
