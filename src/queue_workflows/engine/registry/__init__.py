"""What a process knows by name: ingest tasks and node modules.

A row names a function and never holds code; these turn the name into the function, and say what is missing
where there is none. Begin with `tasks`, which has the registry, and `ingest_task`, which has what it holds.
"""
