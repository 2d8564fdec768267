"""One attempt of one job, from its function to what becomes of its row.

    callable ──> executor ──> outcome ──> ending ──> the row's next state
                    │ ctx: `context`, inside the host app's `invoke_context`

Everything here is told the time and decides; only the worker in `roles/worker` asks the database. `ending` is
the one function that every end goes through, and `backoff` the one that says when a failed job runs again.
Begin with `executor`.
"""
