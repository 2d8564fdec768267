"""Limit keys as an operator sees them: caps, holders, waiting jobs, rates, and what another cap would do.

`listing` is the table of keys and one key with its holders and waiting jobs, `rates` are the token buckets,
and `what_if` foretells a changed cap without writing anything. Begin with `listing`.
"""
