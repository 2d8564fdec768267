"""A host app of the tests' own: one table that knows nothing of ours, one that refers to a run."""
