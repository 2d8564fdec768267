"""What one job of each kind costs: the server by statement and by record of WAL, the client by process.

`kinds` does the work with the shipped worker and orchestrator; `server_side` and `client_side` say what it
cost; `page` writes docs/cost-of-a-job.md of it. Begin with `kinds`.
"""
