"""Measures of runs of workflows: whole ones, and what the dispatcher alone spends."""
