"""What an operator sees, once for the terminal and for the page: a folder or module for each subject.

A reader takes a connection and plain values and returns frozen dataclasses; `json_of` is what the command's
`--json` prints, and `command_of` the command that shows it. No SQL, no options, no tables of text. Begin with
`runs/listing`.
"""
