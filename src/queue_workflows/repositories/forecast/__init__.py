"""What a forecast of a queue is made from: its waiting rows in claim order, what runs, and what ended last.

`queue_now` reads a queue as it is, by the readers of its line and workers, and `ended` how long jobs took.
Begin with `queue_now`.
"""
