"""The embedded Postgres: a server from a wheel, started on demand and shared by processes."""
