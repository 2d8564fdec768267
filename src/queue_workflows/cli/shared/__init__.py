"""What several commands need: values in, values out, and how a command ends.

`error_exit` is the one place where an exception becomes a line on stderr and an exit status. `operator` holds
what the operators' commands share, `durations`, `seconds`, `values`, `names` and `run_names` read what people
type, and `progress`, `notices` and `terminal` decide what they see. Begin with `error_exit`.
"""
