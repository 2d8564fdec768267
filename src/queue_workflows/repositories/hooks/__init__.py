"""Hook scripts in the database: what they said, and the programs that their plugins need.

`records` stores what a script emitted once for its attempt, and `binaries` has a row for each program of each
machine. Begin with `records`.
"""
