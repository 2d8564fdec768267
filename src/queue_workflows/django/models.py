"""Nothing: Django tells only apps with this module that a migration begins.

Our tables are made by our own migrations, and read through `queue_workflows.models` and the repositories.
"""
