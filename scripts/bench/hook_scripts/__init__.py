"""Measures of hook scripts beside starting a process bare."""
