"""A worker with many jobs at once: the main thread is at the database, threads are at the jobs.

    claim_ahead ──how many──> end_and_claim ──jobs──> job_threads, event_loop ──ended──> end_and_claim

Begin with `worker`.
"""
