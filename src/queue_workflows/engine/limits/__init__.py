"""What jobs share with each other, from the side of the job and its worker.

    enqueued               no `limit_key`, or few of that key in front and no lane ──> queued
                           else ──> LANE: scheduled, `limit_full` ──room for it──────> queued
    claimed by a worker    queued ──> running
      its `host_lock`      HOST LOCK, tried once ──another has it──> HOLD: scheduled, `host_lock`
      its `limit_key`      SLOT of the key, below its CAP ──none is free──> LANE     (no cap: no slot)
    its body runs          `ctx.limit(…)`      WINDOW: a slot of each key, for the length of the block
                           `ctx.rate(…)`       RATE: tokens of the key's bucket, then a wait for them
                           `ctx.host_lock(…)`  HOST LOCK, for the length of the block
                           each waited for by the job's own code; for too long: scheduled again, uncounted
    its end is written     one transaction: its slots are free, its row is over or waits
                           then the lane lets the next one out, and last the host lock is free

    what       kept in                                        freed by
    cap        `concurrency_limits`: one row a key or         an operator, by `qwf limits`
               pattern; one for `exclusive:` keys; or
               `max=` of a window, where that is lower
    slot       `limit_slots`: one leased row a number         the end of its job; else its lease lapses, and a
               below the cap                                  sweep frees what a dead worker left
    lane       the job's own row: `hold_reason`, `hold_key`   a slot of the key that is free, a claim of the
                                                              key, a cap that is raised, or a tick's walk
    window     slots, as above                                the end of its block; else the end of its job
    rate       `rate_limits`: one bucket a key                nobody: the server's time fills it; what was not
                                                              used can be given back
    host lock  a file of the machine, locked by the kernel    the end of its block or job; else the death of
                                                              its process
    hold       the job's own row: `hold_reason`, `hold_key`,  what frees that which it waits for; else the
               and `run_at`, when it is queued all the same   promotion of what is due

A lane is a hold that is never due. A job asks for its host lock first, so that it holds no slot while another
has the lock.

The SQL is in `repositories/limits`, and that of host locks in `repositories/claims/by_host_lock`. Here
`held_slots` and `held_host_locks` know what the jobs of one worker hold, `windows`, `rates` and
`host_lock_in_job` are for a job's body, `wait_loop` is how that waits, and `lane_upkeep` is for ticks and
operators. A worker's claims and ends go by `roles/worker/claims`. Begin with `windows`.
"""
