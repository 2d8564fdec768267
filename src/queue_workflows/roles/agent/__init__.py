"""The host agent: one process below a supervisor that listens and asks for all idle workers of its host.

    server ──NOTIFY──> agent ──a packet──> each worker that waits at that queue; they look in turn
    server <──one transaction a second── agent <── heartbeats of the workers that rest
                                           └── wishes and what is queued ──> each of them

It holds one connection. Whatever it does not do its workers do by themselves: none waits for it, and none is
at the mercy of it. What a job holds, its lease above all, is its worker's alone. Begin with `agent`.
"""
