"""This machine: the timer that ends a stuck process, how processes start each other, and how a tree ends."""
