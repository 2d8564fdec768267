"""Machines as an operator sees them: what their hardware is at, and all that is on one of them.

`hardware` is what `qwf hw` shows of each, `host` is one label with its workers, locks and quarantined
devices. The last reading of a machine is all that is kept, so there is nothing to draw of the hour before it.
Begin with `hardware`.
"""
