"""`qwf job` and `qwf explain`: jobs of both families, one or many.

A job is named as `names` of `cli/shared` reads it: `ingest:7`, `node:7`, or `7` where only one of them
exists. `job` lists, shows, cancels and retries; `explain` prints the reasons that `engine/explain` finds.
Begin with `job`.
"""
