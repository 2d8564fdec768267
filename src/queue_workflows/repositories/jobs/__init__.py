"""Jobs as rows to insert and to read, of both families.

`enqueue` is the public face, `ingest_rows` checks values without a connection, `bulk_insert` writes one or
many, and `ingest`, `nodes` and `hooks` are the repositories of each kind. What becomes of a job that was
claimed is in `repositories/claims`. Begin with `ingest`.
"""
