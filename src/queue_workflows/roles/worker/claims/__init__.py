"""The seam between a worker and the jobs of its queue: what it takes in, keeps and lets go of.

`session` claims, takes host locks and slots, and ends, on one connection; `session_by_model` does it for
workers that keep models loaded; `terms` are what holds for as long as the worker lives. Begin with `session`.
"""
