"""The orchestrator as a process: advances runs, and does the upkeep that needs no worker.

`orchestrator` is its loop, `finished_run_hooks` its second thread, `process` puts it together. Any number may
run at once; none leads. What it does to a run is in `engine/runs`. Begin with `orchestrator`.
"""
