"""What every measure stands on: a server, shipped workers, `pgbench` beside them, the table at the end."""
