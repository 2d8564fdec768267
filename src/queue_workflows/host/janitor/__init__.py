"""The janitor of a machine: ends what dead owners left behind, and nothing that has an owner.

`resources` are the kinds of things that a host app names, `decisions` says which of them nobody owns any
more, and `teardown` ends one, in a process of its own. Begin with `decisions`, which has the table.
"""
