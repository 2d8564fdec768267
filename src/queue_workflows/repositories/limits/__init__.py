"""What jobs share, as rows: caps, slots, lanes and rates.

    cap  of a key, set by an operator ──> slots  leased rows, as many as the cap
    lane  jobs of a key that wait, in order ──a slot is free──> the queue, at the place of `lane_turns`
    rate  a token bucket, taken from in one statement

A slot is a row that stays, so nothing is counted and a crash leaks none. What workers and jobs do with them
is in `engine/limits`, which has the diagram of all that jobs share. Begin with `slots`.
"""
