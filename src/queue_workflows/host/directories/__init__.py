"""Directories in which several processes or accounts meet: made and opened without following a link.

`below` opens names one by one beneath a directory, `data` keeps the ones of ours, and `workspaces` gives each
run one of its own. Begin with `below`.
"""
