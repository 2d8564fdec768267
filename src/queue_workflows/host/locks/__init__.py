"""What one machine has only one of, held by one process tree at a time.

`lock` is the host lock that jobs and programs take, `flock` the file lock under it, which ends with its last
holder, `owner_note` is what a holder writes into the file, and `lock_share` is for several that have a lock
together. Begin with `lock`.
"""
