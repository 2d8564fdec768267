"""Workers and machines as rows: signs of life, what operators want of them, what hardware is at.

`heartbeats` are written by workers, `control` by operators, and `obedience` puts both beside each other;
`quarantine` keeps devices from being used that were not given back. Begin with `heartbeats`.
"""
