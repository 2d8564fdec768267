"""What hook scripts say: lines of JSON on their standard output, as records in the database.

`record_types` are the kinds of records, `read` takes them from the files that a script wrote, `store` keeps
them once for each attempt, `machine_records` are those about a machine's programs, and `child_runs` those
that begin a run. Begin with `record_types`."""
