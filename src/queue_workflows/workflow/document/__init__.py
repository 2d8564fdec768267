"""A workflow's document: read, checked, and kept as the snapshot of a run.

    text ──> reading ──> nodes, document ──> linking ──> a document without flaws
                             │ wrong             │ wrong
                             └──────> flaws <────┘  (file, line, node, field)

`load` is what others call, `edges` says which node waits for
which, `schemas` checks data, and `json_schema` is for editors. Documents are found by name in
`workflow/providing`. Begin with `load`."""
