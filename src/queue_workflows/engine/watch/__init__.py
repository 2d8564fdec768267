"""Looking on: a run as a whole, a queue's fullness, and waiting until something is over.

`run_reader` reads a run and `run_view` says what its nodes are at; `follow` yields each change until the end,
and `wait_for` waits for a result. `awaitable` has both for asyncio, where `shared_watch` looks for all
callers with one connection. All of them look once a second, whatever they hear. Begin with `run_view`.
"""
