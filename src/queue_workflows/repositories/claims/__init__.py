"""A job's way through a worker: claimed, held, ended, or taken back from the dead.

    queued ──claim──> running ──end──> completed, failed, ... ; scheduled or queued again
                         └──lease lapsed: sweep──> queued again

Each statement after a claim names id, attempt, worker and `running`: the fence. One implementation serves
both families, which `repository` puts together. Begin with `claim` and `end`.
"""
