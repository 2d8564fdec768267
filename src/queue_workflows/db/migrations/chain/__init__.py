"""The revisions of the two chains, as they lie on disk.

`chains` says where they lie, `revisions` reads them, `tables` asks them which tables are the engine's, and
`visible_tables` is what autogenerate may look at, and `host_filter` says so to an `env.py` of an app. Begin with
`chains`."""
