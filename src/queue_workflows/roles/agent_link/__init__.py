"""What a worker and its supervisor know of the host agent: where it is, and how to speak to it.

    supervisor ──a secret in the environment──> agent, workers
    worker's main thread ──`wire`──> agent: LISTEN for it, and wake it
    worker's guardian ──`watch`──> agent: what to know while it rests; its heartbeats

The agent itself is in `roles/agent`. A worker that finds none there, or loses it, goes on by connections of
its own. Begin with `address`.
"""
