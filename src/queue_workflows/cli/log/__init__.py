"""How the commands log: to stderr, as text or JSON, with the job that a line is of.

`log_options` are the options of the roles, `log_lines` writes a record as a line, and `logs` sets the
handlers. Only commands configure logging; a host app that has done so itself keeps it. Begin with `logs`.
"""
