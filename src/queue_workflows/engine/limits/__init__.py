"""What jobs share with each other, from the side of the job and its worker.

    cap      how many jobs may hold a key at once          `caps` in `repositories/limits`
    slot     one of them, leased                           `held_slots`
    lane     where jobs of a full key wait, in order       `lane_upkeep`
    window   a slot for a part of a job's body             `windows`: `with ctx.limit(...)`
    rate     how often a key may be used in a time         `rates`: `ctx.rate(...)`
    host lock  what one machine has only one of            `held_host_locks`, `host_lock_in_job`
    hold     a row put aside, with the reason, until any of these is free again

`wait_loop` is how a job's own code asks for them and waits. Begin with `windows`.
"""
