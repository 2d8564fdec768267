"""This machine: the timer that ends a stuck process, who starts whom, and how a process tree ends."""
