"""What operators do to a deployment as a whole, one file a command.

`workers` and `schedule` tell roles what to do, `limits` and `rates` change what jobs share, `overview`,
`hw`, `models`, `metrics` and `doctor` only look, and `run_job` runs any command of this machine within a
deadline. Begin with `workers`.
"""
