"""The processes that `qwf` runs: loops around what the packages below can do."""
