"""Schedules as an operator sees them: all there are, and when one ticks next."""
