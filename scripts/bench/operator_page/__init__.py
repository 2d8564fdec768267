"""The operator's page on a database with a long history: `history` fills it, `looks` times the pages.

`tabs` holds what many open tabs cost against its bounds. Begin to read in `measures`.
"""
