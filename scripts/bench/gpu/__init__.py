"""Measures of warm models: which worker gets which job, and what that comes to."""
