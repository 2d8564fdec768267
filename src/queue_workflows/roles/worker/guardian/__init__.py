"""The thread that keeps a worker's word, whatever its jobs do.

It renews leases, beats, obeys operators and hears signals; `verdicts` end what overran, `held_jobs` sets the
kernel's timer to the earliest lease, and `process_damage` ends a process that a job has spoilt. Begin with
`guardian`.
"""
