"""What keeps a deployment going when nobody asks: promote, reclaim, prune.

`tick` is what every worker, orchestrator and scheduler does about once a second, under a try-lock;
`retention` deletes what is old, and `run_files` what runs left on this machine's disk. Begin with `tick`.
"""
