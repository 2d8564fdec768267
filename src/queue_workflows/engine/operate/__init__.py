"""Operators' verbs over many rows, page by page, each page one short transaction.

`many_jobs` and `many_runs` cancel and retry what a filter matches, `import_file` enqueues from a file or a
pipe, and `piped_lines` reads the lines of a pipe. A verb that is interrupted has done whole pages. Begin with
`many_jobs`.
"""
