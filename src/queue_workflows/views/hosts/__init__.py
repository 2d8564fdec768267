"""Machines as an operator sees them: what their hardware is at, and all that is on one of them.

`hardware` is what `qwf hw` shows of each, `history` what `qwf hw --history` shows of the last hour. `host` is
one label with its workers, locks and quarantined devices. Begin with `hardware`.
"""
