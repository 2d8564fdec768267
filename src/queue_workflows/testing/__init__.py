"""The pytest plugin for host apps: a real Postgres, migrated once, cloned for each test file."""
