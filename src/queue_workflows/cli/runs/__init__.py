"""`qwf run`: workflows and their runs, on the command line.

`start` starts one, `watch` draws it while it goes on, `listing` finds runs, `answer` completes a node that
waits for a person, `decide` cancels, retries, unpoisons and unpins, and `documents` checks a workflow without
a database. Begin with `run`, the group.
"""
