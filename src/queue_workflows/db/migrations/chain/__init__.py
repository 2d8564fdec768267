"""The revisions of the two chains, as they lie on disk.

`chains` says where they lie, `revisions` reads them, `tables` asks them which tables are the engine's,
`visible_tables` is what autogenerate may look at, and `host_filter` is that for an `env.py` of an app.
Begin with `chains`."""
