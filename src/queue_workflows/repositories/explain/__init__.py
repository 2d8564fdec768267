"""What `engine/explain` puts into words: the circumstances in which a job or a run stands still.

`explain_job` reads those of one job, `explain_run` those of a run and its waiting groups, and
`explain_run_jobs` those of several jobs of a run at once; `waits` reads what is over, for where its time
went. Nothing here changes a row. Begin with `explain_job`.
"""
