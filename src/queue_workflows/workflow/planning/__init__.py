"""What an event means for a run; pure functions on plain data.

`graph` is the shape of a document, `progress` how far a run and its nodes are, `plan` what opens, stops or
ends, and `reopening` what a retry runs again. Begin with `plan`."""
