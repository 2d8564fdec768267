"""`qwf db`: the schema and the embedded server, on the command line.

`migrations` moves the engine's chain and a host app's own one up and down, and says where they stand; `serve`
keeps the embedded server up for other tools, and stops it. What they do is in `db/migrations` and
`db/embedded`. Begin with `migrations`.
"""
