"""Measures the engine against its database: `queue.py` and its neighbours its speed, `soak.py` its word."""
