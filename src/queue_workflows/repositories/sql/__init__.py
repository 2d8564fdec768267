"""What every repository is made of: statements, columns, families, rows.

`connection` sends statements inside the caller's transaction, `families` makes one template the SQL of both
kinds of jobs, `columns` and `checks` see to values on their way in, and `pipeline`, `pipeline_commits` and
`prepared` save round trips on hot paths. Begin with `connection`.
"""
