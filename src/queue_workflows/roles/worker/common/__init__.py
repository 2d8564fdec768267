"""What both kinds of workers are made of.

`parts` holds them, `connection` and `side_connection` are the worker's lines to the database, `lifecycle`
says what it may do next, and `run_job` runs one claimed job. Begin with `run_job`.
"""
