"""The engine beside every other queue that is installed, in rounds that take turns on one server.

`contenders` says how each is started, filled and watched; `drains`, `latencies`, `enqueues` and `steps` are
what is measured; `cores` keeps the server and the clients apart. `beside.py` is the command.
"""
