"""What a history of many jobs costs those who work and look beside it, and what it takes to prune it.

Figures are blocks that the server read, which other work on the machine does not change, with the
milliseconds that it took beside them. Begin to read in `measures`.
"""
