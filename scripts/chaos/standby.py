"""Scenarios that need servers of their own: a standby that takes over, and a volume for WAL that is full."""
ON_SERVERS = {}
