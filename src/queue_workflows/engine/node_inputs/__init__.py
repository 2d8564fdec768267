"""What a node's function is given: its references resolved late, and its model loaded.

`references` reads the scope that `$from` names see, `resolved_inputs` puts a node's inputs together as it
begins, and `loaded_model` has its model in memory before that. Begin with `resolved_inputs`.
"""
