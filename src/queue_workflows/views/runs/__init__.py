"""Runs as an operator sees them: lists of them, one with its nodes, why it does not go on.

`listing` and `show` are the two that everybody opens first, `elements` pages through the jobs of one node and
`question` is what a parked node asks. `graph` folds any run into boxes that can be drawn. Begin with `show`.
"""
