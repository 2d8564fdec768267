"""Durable functions: tasks that store their steps, so that another attempt goes on where the last one was.

    function ──calls──> a context, of sync or of async code
    context  ──────────> history   what is stored, and which call is which step
             ──────────> branches   which task of async code makes a call
             ──────────> procedures   what it asks the database, once for both worlds
                            └─ writer   stores the steps of all jobs of a worker that have one, together

Begin with `function`, which makes a task durable. Loaded where such a task is registered, and nowhere else.
"""
