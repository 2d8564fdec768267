"""How each kind of connection that a caller may bring is asked a statement: one module a driver.

`handles` names the kinds and what a statement brings, `recognize` tells which kind an object is without
loading a driver that nobody uses, `placeholders` writes a statement the way a driver wants it, and `flow`
lets one synchronous flow of a verb be awaited. `failures` says what some refusals of the server mean. Begin
with `recognize`.
"""
