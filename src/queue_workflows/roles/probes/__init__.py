"""How a role is asked how it is: health over HTTP or a file, figures for Prometheus.

`health` says what a probe is told, `servers` and `serve` where, `http` is the small web server, and the
figures come from `figures`, `hardware_figures` and `metrics`. Begin with `health`.
"""
