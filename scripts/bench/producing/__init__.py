"""Measures of enqueueing: one by one, many at once, by several processes together."""
