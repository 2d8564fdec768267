"""Measures the engine against its database: `queue.py` its speed, `soak.py` and `mutants.py` its word."""
