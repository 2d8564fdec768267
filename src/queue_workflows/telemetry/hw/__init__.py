"""What this machine and its GPUs are at, through psutil and the vendors' tools; it knows no database."""
