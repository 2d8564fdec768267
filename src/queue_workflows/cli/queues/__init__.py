"""`qwf queue`: what goes into the queues, what comes out, and how full they are.

`queue` is the group; each of its commands is a file: `enqueue`, `import_file`, `run`, `stats`, `pause` and
`retry_failed`. The verbs behind them are in `engine/operate` and `repositories/jobs`. Begin with `queue`.
"""
