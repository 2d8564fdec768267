"""How right forecasts are: real workers work loads of several shapes off, and are asked about midway.

`loads` are the shapes, `recorded` is one that was worked off with what was foretold of it, and `measures`
scores: in how many of all answers the range held what then happened, and how far off the middle was.
"""
