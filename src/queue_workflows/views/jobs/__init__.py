"""Jobs as operators see them: a list, one job with its errors, why it waits, what failed alike.

`listing` searches newest first and says how far it has looked; `job` is all that is stored of one, `explain`
why it does not run; `failures` are groups of last errors. Begin with `listing`.
"""
