"""The questions of the page as tools of the Model Context Protocol, for programs that ask on a user's behalf.

    program ── tools/call ── arguments fit? ── authorize as for the page ── the page's own look ──> its JSON,
                                                                            redacted, and cut to a size

`tools` lists what can be asked and which page answers; `tool_calls` answers, and `act_calls` does what was
allowed by name. `server` says it in the protocol, `stdio` and `endpoint` carry it. Begin with `tools`. It needs
the extra `queue-workflows[mcp]`.
"""
