"""Pages that keep up with what happens, at the price of one reader for each distinct view.

A topic is a view with its parameters. While somebody watches it, it is read at most once a second, rendered
once, and sent to every watcher if it changed. Begin with `hub`.
"""
