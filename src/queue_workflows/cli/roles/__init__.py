"""The commands that start a process and stay: one file a role.

Each reads its options, checks them, and hands over to the role's `process` in `roles/`; `up` starts all of
them in one terminal, and `demo` adds an example. How a signal ends them is in `cli/shared/signals`. Begin
with `worker`.
"""
