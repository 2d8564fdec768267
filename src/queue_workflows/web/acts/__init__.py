"""Everything that changes something: one list of acts, and one door that they all go through.

    preview (writes nothing): what it would be, the first ten, the command ── button ──> act
    act: token of that preview ── authorize for each target ── done by a writer, page by page ── result

Begin with `act`, which is the shape of one; `all` lists them; `door` is the protocol.
"""
