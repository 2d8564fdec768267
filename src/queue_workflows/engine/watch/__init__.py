"""Looking on: a run as a whole, a queue's fullness, and waiting until something is over.

`run_reader` reads a run and `run_view` says what its nodes are at; `follow` yields each change until the end,
and `wait_for` waits for a result. All of them listen, and look once a second all the same. Begin with
`run_view`.
"""
