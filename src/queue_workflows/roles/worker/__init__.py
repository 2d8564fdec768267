"""The worker as a process: claims jobs of one queue and sees each to its end.

`single` runs one job at a time and `concurrent/` many; both work with the `parts` of `common/`, claim through
`claims/` and are watched by the thread in `guardian/`. `process` puts one together. Begin with `single`.
"""
