"""References in a document, such as `plan.scenes[0].title`: their syntax, and what they stand for.

They are resolved late, when a node executes. `paths` is the syntax, `references` finds and fills them.
Begin with `references`."""
