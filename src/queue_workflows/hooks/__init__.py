"""Hook pipelines: directories of executable scripts, run as workflows."""
