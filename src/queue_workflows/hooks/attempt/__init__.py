"""One attempt of a hook's job, from the claim to its result.

`runner` is what a worker of hooks calls; `attempt` runs one script with all that belongs to it, in the
`directories` of its run; `at_seal` ends what runs in the background when the foreground is done; `result`
says how it ended. Begin with `runner`."""
