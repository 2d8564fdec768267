"""The janitor as a process: `janitor` is its loop, `process` puts it together.

What it decides is in `host/janitor`; a supervisor starts one when there is something to look after. Begin
with `janitor`.
"""
