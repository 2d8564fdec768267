"""When waiting work will run, foretold from how long jobs took: pure, seeded, nothing is read or written.

`history` knows how long jobs of each task took, `replay` plays the waiting work through a fleet once, `plays`
does so many times and takes the shares of all plays, and `worth` says when a guess would be worthless. Begin
with `plays`.
"""
