"""What an operator sees, once for the terminal and for the page: one folder a subject.

Each subject has a reader, which takes a psycopg connection and plain values and returns frozen dataclasses;
its JSON, which is what the command's `--json` prints; and the command that shows it. Parsing, tables and
printing stay with the commands. Begin with `workers/listing`.
"""
