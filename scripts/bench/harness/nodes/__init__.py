"""The node modules of the runs that are measured."""
