"""Measures of workers: how many jobs a second, how soon after a commit, and what that costs."""
