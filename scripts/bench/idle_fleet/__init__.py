"""Idle workers by the hundred, with a host agent and without. Begin with `real`."""
