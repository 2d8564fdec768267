"""What an operator sees, once for the terminal and for the page.

A subject's module has a reader, which takes a psycopg connection and plain values and returns frozen
dataclasses; `json_of`, which is what the command's `--json` prints and what the page's `.json` answers; and
`command_of`, the command that shows it. Nothing here parses options, prints or holds SQL.
`filters` reads the one grammar by which jobs and runs are found. Begin with `jobs/listing`.
"""
